"""Watched steps are looked at now and then: what their replays did not see is found within a doubling of them."""

import logging

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
    assert (stats["checks"], stats["slips"], stats["traced"]) == (4, 0, "")
    assert stats["replays"] == STEPS - 3 - stats["checks"] and not stats["warnings"]


@pytest.mark.parametrize("mode", MODES)
def test_what_slips_through_is_found_named_and_traced(mode, monkeypatch, caplog):
    """A function of torch's that its own code finds in its own module: no place that is watched."""

    def change():
        monkeypatch.setattr(torch.nn.functional, "relu", lambda x, inplace=False: torch.relu(x) * 2)

    accelerated = Program(stepc.Config(mode=mode))
    with caplog.at_level(logging.WARNING, "stepc"):
        accelerated.run(change)
    stats = accelerated.call.stats
    assert stats["slips"] == 1 and stats["traced"]
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
    assert step.stats["checks"] >= 3 and step.stats["slips"] == 0 and not step.stats["traced"]


@pytest.mark.parametrize("verify", ["off", "every:5"])
def test_other_ways_of_verifying_look_at_no_calls(verify):
    accelerated = Program(stepc.Config(mode="exact", verify=verify))
    accelerated.run()
    assert accelerated.call.stats["checks"] == 0
