"""Watched steps are looked at now and then: what their replays did not see is found within a doubling of them."""

import gc
import logging
import weakref

import pytest
import torch
from torch import nn

import stepc

STEPS, CHANGED = 24, 6
MODES = ("exact", "fast")


class Program:
    def __init__(self, config=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.call = stepc.accelerate(self.step, config=config) if config else self.step

    def step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, change=lambda: None):
        losses = []
        for i in range(STEPS):
            if i == CHANGED:
                change()
            losses.append(self.call(torch.randn(6, 4, generator=torch.Generator().manual_seed(i))))
        return losses


@pytest.mark.parametrize("mode", MODES)
def test_steps_that_do_what_their_plan_does(mode):
    accelerated = Program(stepc.Config(mode=mode))
    losses, expected = accelerated.run(), Program().run()
    torch.testing.assert_close(losses, expected)
    stats = accelerated.call.stats
    # Recorded twice and verified; then there are looks after 2, 4, 8 and 16 replays.
    assert (stats["checks"], stats["failed_checks"], stats["traced"]) == (4, 0, "")
    assert stats["replays"] == STEPS - 3 - stats["checks"] and not stats["warnings"]


@pytest.mark.parametrize("mode", MODES)
def test_a_difference_is_found_named_and_traced(mode, monkeypatch, caplog):
    """A function of torch's that its own code finds in its own module: no place that is watched."""

    def change():
        monkeypatch.setattr(torch.nn.functional, "relu", lambda x, inplace=False: torch.relu(x) * 2)

    accelerated = Program(stepc.Config(mode=mode))
    with caplog.at_level(logging.WARNING, "stepc"):
        accelerated.run(change)
    stats = accelerated.call.stats
    assert stats["failed_checks"] == 1 and stats["traced"]
    lines = [line for line in caplog.messages if "replays of this step" in line]
    assert len(lines) == 1 and "aten::mul" in lines[0] and stats["warnings"] == lines
    # From then on it is what eager is, and replayed.
    replays = stats["replays"]
    twin = Program()
    for ours, theirs in zip(accelerated.model.parameters(), twin.model.parameters()):
        theirs.data.copy_(ours)
    for i in range(6):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(accelerated.call(x), twin.call(x))
    assert accelerated.call.stats["replays"] == replays + 6


def trained(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def looped(mode, change=lambda: None, dropout=0.0, **options):
    """The same program as a loop that stays as it is; the model, its optimizer and its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if mode is not None:
        model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode=mode, **options))
    losses = []
    for i in range(STEPS):
        if i == CHANGED:
            change()
        losses.append(trained(model, optimizer, torch.randn(6, 4, generator=torch.Generator().manual_seed(i))))
    return model, optimizer, losses


@pytest.mark.parametrize("mode", MODES)
def test_a_loops_model_is_looked_at_beside_its_replays(mode):
    model, _, losses = looped(mode)
    expected, _, eager_losses = looped(None)
    torch.testing.assert_close(losses, eager_losses, rtol=0 if mode == "exact" else 1e-5, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)
    stats = stepc.stats(model)
    assert (stats["checks"], stats["failed_checks"], stats["warnings"]) == (4, 0, [])
    assert stats["replays"] == STEPS - 4  # seen, recorded twice, verified: a pass that is looked at is a replay, too


@pytest.mark.parametrize("mode", MODES)
def test_a_look_draws_nothing(mode):
    """Fast mode draws its own numbers, and a look does not change which."""
    model, _, losses = looped(mode, dropout=0.5)
    without, _, expected = looped(mode, dropout=0.5, python="watch")
    assert stepc.stats(model)["checks"] == 4 and stepc.stats(without)["checks"] == 0
    torch.testing.assert_close(losses, expected, rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict(), without.state_dict(), rtol=0, atol=0)


def test_a_look_keeps_nothing_alive():
    """Of passes whose backward pass never comes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model, optimizer = stepc.accelerate(model, torch.optim.SGD(model.parameters(), lr=0.1))
    outputs = []
    for i in range(STEPS):
        x = torch.randn(6, 4)
        if i > 6:
            outputs.append(weakref.ref(model(x)))
            assert outputs[-1]() is None
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = stepc.stats(model)
    assert stats["failed_checks"] == 0 and stats["checks"] > 0
    batch = weakref.ref(x)
    del x
    gc.collect()
    assert batch() is None


@pytest.mark.parametrize("mode", MODES)
def test_a_difference_in_a_loop_is_found_named_and_traced(mode, monkeypatch, caplog):
    def change():
        monkeypatch.setattr(torch.nn.functional, "relu", lambda x, inplace=False: torch.relu(x) * 2)

    with caplog.at_level(logging.WARNING, "stepc"):
        model, optimizer, _ = looped(mode, change)
    stats = stepc.stats(model)
    assert stats["failed_checks"] == 1 and stats["traced"]
    lines = [line for line in caplog.messages if "replays of this model" in line]
    assert len(lines) == 1 and "aten::mul" in lines[0]
    # From then on it is what eager is, and replayed.
    twin, *_ = looped(None)
    twin.load_state_dict(model.state_dict())
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for i in range(6):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(trained(model, optimizer, x), trained(twin, twin_optimizer, x))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert stepc.stats(model)["replays"] == stats["replays"] + 6


def test_other_branches_are_none_that_slipped_through():
    """What a guard finds is no fault of the watch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    @stepc.accelerate(config=stepc.Config(mode="exact"))
    def step(x):
        out = model(x)
        return (out.abs().sum() if (x.sum() > 0).item() else out.square().sum()).detach()

    for i in range(40):
        x = torch.full((3, 4), 1.0 if i % 3 else -1.0)
        expected = model(x).abs().sum() if i % 3 else model(x).square().sum()
        assert torch.equal(step(x), expected.detach())
    assert step.stats["checks"] >= 3 and step.stats["failed_checks"] == 0 and not step.stats["traced"]


@pytest.mark.parametrize("verify", ["off", "every:5"])
def test_other_ways_of_verifying_look_at_no_calls(verify):
    accelerated = Program(stepc.Config(mode="exact", verify=verify))
    accelerated.run()
    assert accelerated.call.stats["checks"] == 0
