"""The catalogue's runner sees what it is there to see."""

import os
import signal

import pytest
import torch
from torch.nn.functional import cross_entropy

from catalogue.case import Case, Door, NotReplayed, WrongValues, check, check_isolated
from catalogue.parts import batches, descend, fit, mlp, sgd


def step_of(model, optimizer):
    return lambda x, y: descend(cross_entropy(model(x), y), optimizer)


def right(accelerate):
    model = mlp()
    optimizer = sgd(model)
    yield from fit(accelerate(step_of(model, optimizer)), model, optimizer)


def differing(accelerate, harm):
    """Does `harm` where it is accelerated, after the steps are over."""
    model = mlp()
    optimizer, found = sgd(model), []
    step, is_accelerated = accelerate(step_of(model, optimizer)), accelerate.mode is not None
    for i, x, y in batches():
        loss = step(x, y)
        if i == 11 and is_accelerated:
            harm(model, optimizer, found)
        yield loss, model, optimizer, found


HARMS = {
    "parameter": lambda model, optimizer, found: model[0].bias.data.add_(1e-3),
    "gradient": lambda model, optimizer, found: setattr(model[0].bias, "grad", torch.zeros(16)),
    "optimizer": lambda model, optimizer, found: optimizer.param_groups[0].update(lr=0.2),
    "list": lambda model, optimizer, found: found.append(1),
    "print": lambda model, optimizer, found: print("one line more"),
}


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_program_that_does_the_same_passes(mode):
    check(Case(right), mode)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_differs_is_seen(harm, mode):
    with pytest.raises(WrongValues, match="step 11"):
        check(Case(lambda accelerate: differing(accelerate, HARMS[harm])), mode)


def test_a_bit_is_seen_in_exact_mode():
    harm = lambda model, optimizer, found: model[0].bias.data.view(torch.int32).add_(1)
    with pytest.raises(WrongValues, match="0.bias"):
        check(Case(lambda accelerate: differing(accelerate, harm)), "exact")


def test_generators_are_compared():
    harm = lambda model, optimizer, found: torch.rand(1)
    with pytest.raises(WrongValues, match="torch generator"):
        check(Case(lambda accelerate: differing(accelerate, harm)), "exact")


def test_an_output_that_is_written_to_later_is_seen():
    def program(accelerate):
        model = mlp()
        optimizer, kept = sgd(model), []
        step, is_accelerated = accelerate(step_of(model, optimizer)), accelerate.mode is not None
        for i, x, y in batches():
            kept.append(step(x, y).detach())
            if i == 11 and is_accelerated:
                kept[3].add_(1)
            yield kept[-1], model

    with pytest.raises(WrongValues, match="output of step 3, after the last step"):
        check(Case(program), "exact")


def without_a_plan(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.to_sparse().to_dense()), y), optimizer))
    yield from fit(step, model, optimizer)


def test_running_eagerly_is_a_failure_unless_it_is_allowed_and_said():
    with pytest.raises(NotReplayed, match="replays are wanted"):
        check(Case(without_a_plan), "exact")
    with pytest.raises(NotReplayed, match="no line says /because I say so/"):
        check(Case(without_a_plan, eager="because I say so"), "exact")
    check(Case(without_a_plan, eager="sparse|dense"), "exact")


def test_a_crash_is_the_failure_of_one_case():
    def program(accelerate):
        if accelerate.mode is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from right(accelerate)

    with pytest.raises(ChildProcessError, match="signal 9"):
        check_isolated(Case(program), "exact")
    check_isolated(Case(right), "exact")


def test_without_a_mode_nothing_is_accelerated():
    model, step = mlp(), lambda x: x
    assert Door(None)(step) is step and Door(None)(model, 3) == (model, 3)
