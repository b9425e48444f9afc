"""Programs with parts that torch.compile has compiled: they are planned as they are written."""

import logging

import pytest
import torch
from torch import nn

import stepc


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.two(self.one(x).tanh())


class HasAFunction(Net):
    def __init__(self):
        super().__init__()
        self.function = torch.compile(lambda hidden: hidden.sin() * 2, backend="eager")

    def forward(self, x):
        return super().forward(self.function(x))


def in_place():
    model = Net()
    model.one.compile(backend="eager")
    return model


def a_part():
    model = Net()
    model.one = torch.compile(model.one, backend="eager")
    return model


FORMS = pytest.mark.parametrize("make", [in_place, a_part, HasAFunction], ids=lambda make: make.__name__)


@FORMS
def test_a_loops_model_with_a_compiled_part_is_replayed(make, caplog):
    caplog.set_level(logging.INFO, "stepc")
    torch._dynamo.reset()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
    for _ in range(14):
        loss = model(torch.ones(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stats = stepc.stats(model)
    assert stats["replays"] > 4 and not stats["warnings"]
    said = [line for line in caplog.messages if "compiled by torch.compile" in line]
    assert len(said) == (make is not HasAFunction) and all("'model.one'" in line for line in said)


@FORMS
def test_a_step_with_a_compiled_part_is_replayed(make):
    torch._dynamo.reset()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = stepc.accelerate(step, config=stepc.Config(mode="exact"))
    for _ in range(16):
        step(torch.ones(4, 6))
    assert step.stats["replays"] > 3 and not step.stats["warnings"]
