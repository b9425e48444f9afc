"""Programs whose step asks torch how something is set, and that set it otherwise after the plan was made."""

import torch
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import descend, fit, mlp, sgd


def weighted(accelerate, asks, sets, value, was):
    """A loss that is doubled where asks() is true; before step CHANGE the program calls sets(value)."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y) * (2.0 if asks() else 1.0), optimizer)

    try:
        yield from fit(step, model, optimizer, change=lambda: sets(value))
    finally:
        sets(was)


def setter(owner, name):
    return lambda value: setattr(owner, name, value)


@case
def flag_of_a_backend(accelerate):
    flags = torch.backends.cudnn
    yield from weighted(accelerate, lambda: flags.benchmark, setter(flags, "benchmark"), True, flags.benchmark)


@case
def fast_path_of_attention(accelerate):
    flags = torch.backends.mha
    yield from weighted(accelerate, flags.get_fastpath_enabled, flags.set_fastpath_enabled, False, True)


@case
def warnings_said_always(accelerate):
    yield from weighted(accelerate, torch.is_warn_always_enabled, torch.set_warn_always, True, False)


@case
def arguments_of_distributions_checked(accelerate):
    kind = torch.distributions.Distribution
    yield from weighted(accelerate, lambda: kind._validate_args, kind.set_default_validate_args, False, True)


@case
def mode_that_the_step_enters_itself(accelerate):
    """What is asked for inside of it is no setting of the program's."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        with torch.no_grad():
            weight = 1.0 if torch.is_grad_enabled() else 0.5
        return descend(cross_entropy(model(x), y) * weight, optimizer)

    yield from fit(step, model, optimizer)
