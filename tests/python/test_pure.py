"""Config(python="pure"): the step's Python is the person's word, does not run at replays, and is checked now and then."""

import collections
import copy
import logging
import types

import pytest
import torch
from torch import nn

import stepc
from harness import source_of

STEPS, CHANGED = 24, 6
MODES = ("exact", "fast")


class Scaled(nn.Module):
    """A model with a number and a text of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.scale, self.kind, self.calls = 2.0, "square", 0

    def forward(self, x):
        y = self.body(x) * self.scale
        return y.square().mean() if self.kind == "square" else y.abs().mean()


class Program:
    """A step, how often its Python ran, and what it reads beside its arguments and modules: `rate`."""

    def __init__(self, mode=None, optimizer=torch.optim.AdamW, **config):
        torch.manual_seed(0)
        self.model, self.runs = Scaled(), collections.deque()  # whose length nobody looks at
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        self.rate = 1.0
        runs, model, optimizer = self.runs, self.model, self.optimizer

        def step(x, *others):
            runs.append(1)
            loss = self.loss_of(x, *others)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        self.call = step if mode is None else stepc.accelerate(
            step, modules={"model": model}, optimizers={"optimizer": optimizer},
            config=stepc.Config(mode=mode, python="pure", **config))

    def loss_of(self, x, *others):
        return self.model(x) * self.rate

    def run(self, change=lambda program: None, steps=STEPS, others=lambda i: ()):
        losses = []
        for i in range(steps):
            if i == CHANGED:
                change(self)
            losses.append(self.call(torch.randn(6, 4, generator=source_of(i)), *others(i)))
            self.scheduler.step()
        return losses


def assert_as_eager(mode, change=lambda program: None, kind=Program, **run):
    """The accelerated program, after its losses and parameters were those of eager."""
    eager, pure = kind(), kind(mode)
    expected, losses = eager.run(change, **run), pure.run(change, **run)
    exactly = {"rtol": 0, "atol": 0} if mode == "exact" else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(losses, expected, **exactly)
    torch.testing.assert_close(pure.model.state_dict(), eager.model.state_dict(), **exactly)
    return pure


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam])
def test_its_python_runs_where_it_is_recorded_and_checked(mode, optimizer):
    """With a new learning rate at every step, by known functions or the optimizer's own code."""
    pure = assert_as_eager(mode, kind=lambda *mode: Program(*mode, optimizer=optimizer))
    stats = pure.call.stats
    assert (stats["checks"], stats["failed_checks"], stats["traced"]) == (4, 0, "")  # after 2, 4, 8 and 16 replays
    # A step without a plan, or beside a verified replay, runs as it is, and so does one that is looked at.
    assert len(pure.runs) == STEPS - stats["replays"] <= 8
    # The numbers of a known update are found out again after each check.
    assert stats["known_updates"] == (0 if optimizer is torch.optim.NAdam else stats["replays"] - stats["checks"])
    assert "python: pure" in pure.call.report()


@pytest.mark.parametrize("mode", MODES)
def test_a_difference_is_named_ends_it_and_counts_as_eagers(mode, caplog):
    def change(program):
        program.rate = 0.5  # no argument, module, optimizer or scheduler: the word was wrong

    eager, pure = Program(), Program(mode)
    with caplog.at_level(logging.WARNING, "stepc"):
        for i in range(STEPS):
            x = torch.randn(6, 4, generator=source_of(i))
            if i == CHANGED:
                change(pure), change(eager)
            failed = pure.call.stats["failed_checks"]
            eager.model.load_state_dict(pure.model.state_dict())
            eager.optimizer.load_state_dict(copy.deepcopy(pure.optimizer.state_dict()))
            loss, expected = pure.call(x), eager.call(x)
            if i < CHANGED or failed or pure.call.stats["failed_checks"]:
                torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(pure.model.state_dict(), eager.model.state_dict(), rtol=1e-4, atol=1e-6)
    stats = pure.call.stats
    assert stats["failed_checks"] == 1 and stats["replays"] > STEPS - 12
    assert all("aten::mul" in line and "1.0 and then 0.5" in line for line in caplog.messages), caplog.messages
    assert 'python="pure" ends here' in caplog.messages[-1] and stats["warnings"] == caplog.messages
    assert "traced" in pure.call.report()


@pytest.mark.parametrize("mode", MODES)
def test_arguments_are_read(mode):
    class Numbers(Program):
        def loss_of(self, x, factor, options):
            return self.model(x) * factor * (options.weight * 3 if options.is_on else options.weight)

    def others(i):
        return 0.5 + i % 2, types.SimpleNamespace(is_on=i % 2 == 0, weight=torch.tensor(1.0 + i))

    pure = assert_as_eager(mode, kind=Numbers, others=others)
    assert pure.call.stats["plans"] == 2 and pure.call.stats["traced"] == "", pure.call.stats["warnings"]
    assert pure.call.stats["replays"] >= STEPS - 16


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name, value, said", [("scale", 3.0, "model.scale was 2.0 and is 3.0"),
                                               ("kind", "absolute", "model.kind was 'square' and is 'absolute'")])
def test_modules_are_read(mode, name, value, said, caplog):
    with caplog.at_level(logging.INFO, "stepc"):
        pure = assert_as_eager(mode, lambda program: setattr(program.model, name, value))
    stats = pure.call.stats
    assert any(said in line for line in caplog.messages), caplog.messages
    assert (stats["plans"], stats["failed_checks"], stats["traced"]) == (2, 0, "") and stats["replays"] > STEPS - 16


@pytest.mark.parametrize("mode", MODES)
def test_what_it_does_is_left_out_at_replays_and_said_once(mode, caplog):
    class Counts(Program):
        def loss_of(self, x):
            self.model.calls += 1
            return self.model(x)

    with caplog.at_level(logging.WARNING, "stepc"):
        pure = assert_as_eager(mode, kind=Counts)
    assert pure.call.stats["traced"] == "" and pure.call.stats["plans"] == 1
    assert pure.model.calls == len(pure.runs) < 10
    assert [line for line in caplog.messages if "calls" in line] == caplog.messages and len(caplog.messages) == 1


@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_it_reads_and_decides_by_are_traced(mode, caplog):
    """A replay that only looks at numbers would take a branch of another call."""

    class Decides(Program):
        def loss_of(self, x):
            loss = self.model(x)
            return loss * 2 if loss.item() > 0.2 else loss

    with caplog.at_level(logging.WARNING, "stepc"):
        pure = assert_as_eager(mode, kind=Decides)
    assert any('python="pure" ends here' in line and ".item()" in line for line in caplog.messages), caplog.messages
    assert pure.call.stats["replays"] > 8


@pytest.mark.parametrize("mode", MODES)
def test_a_pure_loop(mode):
    """Its model counts its calls, which no replay of a loop does."""

    class Counts(Scaled):
        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = Counts()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if accelerated:
            model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode=mode, python="pure"))
        for i in range(STEPS):
            loss = model(torch.randn(6, 4, generator=source_of(i)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[STEPS:], losses[:STEPS], rtol=1e-4, atol=1e-6)
    stats = stepc.stats(model)
    assert stats["replays"] >= STEPS - 6 and stats["failed_checks"] == 0 and not stats["warnings"]
    assert model.calls == STEPS - stats["replays"] + stats["checks"]
