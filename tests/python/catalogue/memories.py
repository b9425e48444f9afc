"""Programs that draw what they train on from a memory of earlier steps: other tensors of it every time, which the step
only reads. They are data, wherever they stand."""

import collections
import random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import FEATURES, adam, batches, descend, mlp, sgd

STEPS, SIZE = 20, 8


def trained(accelerate, memory, put, pick):
    """Every step trains on pick(memory), (inputs, classes) of three earlier batches."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step():
        x, y = zip(*pick(memory))
        return descend(cross_entropy(model(torch.cat(x)), torch.cat(y)), optimizer)

    for i, x, y in batches(STEPS + SIZE):
        put((x, y))
        if i >= SIZE:
            yield step(), model, optimizer


@case
def sample_of_a_deque(accelerate):
    memory = collections.deque(maxlen=SIZE)
    yield from trained(accelerate, memory, memory.append, lambda memory: random.sample(memory, 3))


@case
def sample_of_a_list(accelerate):
    memory = []

    def put(pair):
        memory.append(pair)
        del memory[:-SIZE]

    yield from trained(accelerate, memory, put, lambda memory: random.sample(memory, 3))


@case
def transitions_with_numbers(accelerate):
    """Of deep Q-learning: actions and rewards are numbers of Python."""

    class Transition(NamedTuple):
        state: torch.Tensor
        action: int
        reward: float
        following: torch.Tensor

    model, memory = mlp(), collections.deque(maxlen=4 * SIZE)
    optimizer, source = adam(model), torch.Generator().manual_seed(0)

    def act(i):
        state, following = torch.randn(2, FEATURES, generator=source).unbind()
        memory.append(Transition(state, i % 4, i % 7 / 10, following))

    @accelerate
    def step():
        batch = Transition(*zip(*random.sample(memory, SIZE)))
        value = model(torch.stack(batch.state)).gather(1, torch.tensor(batch.action)[:, None]).squeeze(1)
        with torch.no_grad():
            target = torch.tensor(batch.reward) + 0.9 * model(torch.stack(batch.following)).max(1).values
        return descend((value - target).pow(2).mean(), optimizer)

    for i in range(STEPS + SIZE):
        act(i)
        if i >= SIZE:
            yield step(), model, optimizer


@case
def memory_that_the_step_fills(accelerate):
    model, memory = mlp(), collections.deque(maxlen=6)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        memory.append((x, y))
        x, y = zip(*random.sample(memory, min(2, len(memory))))
        return descend(cross_entropy(model(torch.cat(x)), torch.cat(y)), optimizer)

    for _, x, y in batches(2 * STEPS):
        yield step(x, y), model, optimizer, len(memory)


@case
def gradient_held_to_that_of_a_sample(accelerate):
    """Of averaged gradient episodic memory: which way the step goes hangs on what it drew from its memory."""
    model, memory = mlp(), []
    optimizer = sgd(model)

    def gradient():
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    @accelerate
    def step(x, y):
        kept_x, kept_y = random.choice(memory)
        optimizer.zero_grad()
        cross_entropy(model(kept_x), kept_y).backward()
        reference = gradient()
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        new = gradient()
        if torch.dot(new, reference) < 0:
            new -= torch.dot(new, reference) / torch.dot(reference, reference) * reference
            torch.nn.utils.vector_to_parameters(new, [p.grad for p in model.parameters()])
        optimizer.step()
        return loss

    for i, x, y in batches(2 * STEPS):
        if i % 2 == 0 and len(memory) < 4:
            memory.append((x.clone(), y.clone()))
        yield step(x, y), model, optimizer
