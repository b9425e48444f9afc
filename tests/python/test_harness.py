"""The twins must be able to tell: each of these wrong steps differs from eager in one thing only."""

import random
from types import SimpleNamespace

import numpy
import pytest
import torch

from harness import WARM_UP, difference, run_twins, train


def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return train(model, lambda model, x: model(x).square().mean(), watch={"scale": 1.0})


def make_batch(i):
    return torch.full((3, 4), float(i)) + torch.arange(12.0).reshape(3, 4)


def scale_parameter(training, loss, batch):
    with torch.no_grad():
        training.modules[0][0].weight[0, 0] *= 1.0000001


def leave_gradient(training, loss, batch):
    training.modules[0][0].bias.grad = torch.zeros(4)


def change_buffer(training, loss, batch):
    training.modules[0][1].running_mean[1] += 1e-6


def change_optimizer_state(training, loss, batch):
    state = training.optimizers[0].state[training.modules[0][0].weight]
    state["exp_avg"][0, 0] = -0.0 if state["exp_avg"][0, 0] == 0 else state["exp_avg"][0, 0] * 1.001


def change_hyperparameter(training, loss, batch):
    training.optimizers[0].param_groups[0]["weight_decay"] *= 1.0000000001


def step_scheduler(training, loss, batch):
    training.schedulers[0].last_epoch += 1


def change_watched(training, loss, batch):
    training.watch["scale"] += 1e-12


def draw_torch(training, loss, batch):
    torch.rand(1)


def draw_python(training, loss, batch):
    random.random()


def draw_numpy(training, loss, batch):
    numpy.random.rand()


def write_batch(training, loss, batch):
    batch[0, 0] += 1


def change_output(training, loss, batch):
    loss.mul_(1.000001)


WRONGS = [scale_parameter, leave_gradient, change_buffer, change_optimizer_state, change_hyperparameter, step_scheduler,
          change_watched, draw_torch, draw_python, draw_numpy, write_batch, change_output]


def pretending(wrong, at, replays=100):
    """An accelerate() that runs eagerly, does `wrong` once at step `at` and claims so many replays."""

    def accelerate(training, config):
        calls = 0

        def step(batch):
            nonlocal calls
            loss = training.step(batch).detach()
            if calls == at:
                wrong(training, loss, batch)
            calls += 1
            return loss

        step.stats = dict(recordings=2, replays=replays, eager_calls=0, plans=1, guard_misses=0, checks=0, failed_checks=0,
                          warnings=[])
        return step

    return accelerate


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.__name__)
def test_a_wrong_step_is_noticed(wrong):
    with pytest.raises(AssertionError, match="step 6"):
        run_twins(build, make_batch, accelerate=pretending(wrong, at=6))


def test_a_right_step_passes():
    run_twins(build, make_batch, accelerate=pretending(None, at=-1))


def test_an_eager_step_does_not_count_as_replayed():
    with pytest.raises(AssertionError, match="wanted 5"):
        run_twins(build, make_batch, accelerate=pretending(None, at=-1, replays=4))


def test_an_output_overwritten_later_is_noticed():
    def accelerate(training, config):
        kept = torch.zeros(())

        def step(batch):
            return kept.copy_(training.step(batch).detach())

        step.stats = SimpleNamespace()
        return step

    with pytest.raises(AssertionError, match="looked at after the last step"):
        run_twins(build, make_batch, steps=WARM_UP, accelerate=accelerate)


def test_bits_not_values_are_compared():
    nan, other_nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert difference(nan, nan.clone()) == "" and difference(nan, other_nan) != ""
    assert difference(torch.tensor(0.0), torch.tensor(-0.0)) != "" and difference(0.0, -0.0) != ""
    assert difference(torch.zeros(2), torch.zeros(2, dtype=torch.float64)) != "" and difference(1, 1.0) != ""
