"""Programs that set random generators inside the step, to another seed every time: a seed is data, no plan of its own."""

import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import CLASSES, FEATURES, HIDDEN, batches, descend, mlp, sgd

STEPS = 16


def dropping():
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Dropout(0.3), nn.Linear(HIDDEN, CLASSES))


def seeded(accelerate, sets):
    """A dropout after sets(step)."""
    model, i = dropping(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        sets(i)
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches(STEPS):
        yield step(x, y), model, optimizer, torch.get_rng_state()


def noisy(accelerate, noise, *looks):
    """Inputs with noise(their shape, the step) added."""
    model, i = mlp(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x + 0.1 * noise(x.shape, i)), y), optimizer)

    for i, x, y in batches(STEPS):
        yield step(x, y), model, optimizer, *looks


@case(draws=True)
def seed_of_the_step(accelerate):
    yield from seeded(accelerate, torch.manual_seed)


@case(draws=True)
def seed_of_pythons_generator(accelerate):
    yield from seeded(accelerate, lambda i: torch.manual_seed(random.randrange(10_000)))


@case(draws=True)
def two_passes_with_one_seed(accelerate):
    model, i = dropping(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        torch.manual_seed(i)
        first = model(x)
        torch.manual_seed(i)
        return descend(cross_entropy(first, y) + (first - model(x)).pow(2).mean(), optimizer)

    for i, x, y in batches(STEPS):
        yield step(x, y), model, optimizer, torch.get_rng_state()


@case
def generator_seeded_by_hand(accelerate):
    source = torch.Generator()

    def noise(shape, i):
        source.manual_seed(i)
        return torch.randn(shape, generator=source)

    yield from noisy(accelerate, noise, source)


@case
def generator_made_with_a_seed(accelerate):
    yield from noisy(accelerate, lambda shape, i: torch.randn(shape, generator=torch.Generator().manual_seed(i)))


@case(draws=True)
def seed_that_the_step_draws(accelerate):
    def noise(shape, i):
        seed = int(torch.randint(0, 2**31, ()))
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    yield from noisy(accelerate, noise)


@case(draws=True)
def seed_beside_the_generator(accelerate):
    def noise(shape, i):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(i)
            return torch.randn(shape)

    yield from noisy(accelerate, noise)


@case
def data_drawn_by_an_iterator(accelerate):
    model, source = mlp(), batches(STEPS)
    optimizer = sgd(model)

    @accelerate
    def step():
        _, x, y = next(source)
        return descend(cross_entropy(model(x), y), optimizer)

    for _ in range(STEPS):
        yield step(), model, optimizer
