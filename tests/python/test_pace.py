"""Steps whose replays cost more than they save: what an eager call costs beside the program's own, and what is looked for."""

import collections
import gc
import random
import time
import types

import pytest
import torch
from torch import nn

import stepc
import stepc.loop
from harness import source_of


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def make_batch(i, rows=8):
    return torch.randn(rows, 6, generator=source_of(i))


class Asked:
    """The engine, and how often it was asked to run a step, or a pass of a model."""

    def __init__(self, engine):
        self.engine, self.runs = engine, 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run(self, *given):
        self.runs += 1
        return self.engine.run(*given)

    def begin(self, *given):
        self.runs += 1
        return self.engine.begin(*given)


def counted(step):
    step._engine = Asked(step._engine)
    return step


def trained(result_of, **config):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, *others):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return result_of(model, loss, x, *others)

    return counted(stepc.accelerate(step, config=stepc.Config(**config))), model


def test_eager_calls_in_a_row_are_made_without_the_engine():
    step, model = trained(lambda model, loss, x, batch: (loss, {"rows": loss * 2, "n": 3}, model[0].weight, batch, [x]), mode="eager")
    eager, twin = trained(lambda model, loss, *_: loss)
    for i in range(120):
        x = make_batch(i)
        batch = {"x": x}
        loss, made, weight, given, (same,) = step(x, batch)
        assert not loss.requires_grad and not made["rows"].requires_grad and made["n"] == 3, i
        assert weight is model[0].weight and given is batch and same is x, i
        torch.testing.assert_close(loss, eager(x))
        assert loss.numpy() * 2 == made["rows"].numpy()
    assert step.stats["eager_calls"] == 120 and 8 <= step._engine.runs < 20


def test_a_graph_for_the_program_is_left_to_it():
    model = mlp()
    step = counted(stepc.accelerate(lambda x, out: model(x).square().mean() if out else model(x).detach(),
                                    config=stepc.Config(mode="eager")))
    for i in range(60):
        assert not step(make_batch(i), False).requires_grad
    assert step._engine.runs < 20
    for i in range(5):
        model.zero_grad()
        step(make_batch(i), True).backward()
        assert model[0].weight.grad.abs().sum() > 0


def test_other_calls_after_many_eager_ones_are_recorded():
    def result_of(model, loss, x):
        for _ in range(int(x[0, 0].abs() * 1e4) % 97 if len(x) == 4 else 0):  # hardly ever twice the same
            loss = loss * 1.01
        return loss

    step, _ = trained(result_of)
    for i in range(120):
        step(make_batch(i, rows=4))
    assert step.stats["replays"] == 0 and len(step.stats["warnings"]) == 1, step.stats["warnings"]
    assert step._engine.runs < 80
    for i in range(300):
        step(make_batch(i))
    assert step.stats["replays"] > 30, step.stats["warnings"]


def test_eager_passes_of_a_loop_are_made_without_the_engine():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.calls, self.counts = mlp(), 0, True

        def forward(self, x):
            self.calls += self.counts
            return self.body(x)

    model, twin = Counts(), Counts()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (model, twin)]
    model, optimizers[0] = stepc.accelerate(model, optimizers[0], config=stepc.Config(mode="exact", python="watch"))
    segments = model.__dict__["_compiled_call_impl"]
    segments.engine = Asked(segments.engine)

    def train(steps):
        for i in range(steps):
            for one, optimizer in zip((model, twin), optimizers):
                one(make_batch(i)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    train(120)
    stats = stepc.stats(model)
    assert stats["eager_calls"] == 120 and stats["replays"] == 0 and model.calls == 120
    assert 8 <= segments.engine.runs < 30
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters()))
    model.counts = twin.counts = False
    before, recordings = segments.engine.runs, stats["recordings"]
    train(300)
    assert segments.engine.runs > before, "it is asked again"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters()))
    assert stepc.stats(model)["recordings"] >= recordings


@pytest.mark.parametrize("pace, is_left", [("auto", True), ("off", False)])
def test_a_traced_step_whose_replays_do_not_pay_is_left_to_eager(pace, is_left, monkeypatch):
    """By a clock on which every call of the step's begins ten milliseconds before it is timed."""
    counts = []
    step, _ = trained(lambda model, loss, x: (counts.append(1), loss)[1], pace=pace)
    monkeypatch.setattr(stepc.accelerated, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() - 0.01))
    for i in range(160):
        step(make_batch(i))
    stats, warnings = step.stats, step.stats["warnings"]
    assert stats["traced"] and len(counts) == 160
    assert len(warnings) == is_left and all("times as long, for its Python runs beside the plan" in text for text in warnings)
    assert (stats["replays"] < 80) if is_left else (stats["replays"] > 150), stats


@pytest.mark.parametrize("pace", ["off", "auto"])
@pytest.mark.parametrize("seconds, is_left", [(0.95e-3, False), (1.1e-3, True)])
def test_a_loop_whose_replays_do_not_pay_is_left_to_eager(seconds, is_left, pace, monkeypatch):
    """By a clock on which the loop takes a millisecond as it is."""
    model, twin = mlp(), mlp()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (model, twin)]
    model, optimizers[0] = stepc.accelerate(model, optimizers[0], config=stepc.Config(mode="exact", pace=pace))
    took = []

    class Told(Asked):
        def took(self, signature, as_it_is, measured):
            took.append((as_it_is, measured))
            self.engine.took(signature, as_it_is, 1e-3 if as_it_is else seconds)

    segments = model.__dict__["_compiled_call_impl"]
    segments.engine = Told(segments.engine)
    for i in range(120):
        for one, optimizer in zip((model, twin), optimizers):
            loss = one(make_batch(i)).square().mean()
            if i == 60:
                time.sleep(1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters())), i
    if pace == "off":
        assert stepc.stats(model)["replays"] >= 120 - 5 and not any(as_it_is for as_it_is, _ in took)
        return
    assert [one[0] for one in took] == 32 * [False] + 32 * [True] + [False], took
    assert [measured > 1 for _, measured in took].count(True) == 1 and min(took)[1] > 0
    stats = stepc.stats(model)
    assert len(stats["warnings"]) == is_left and all("1.10 times as long" in text for text in stats["warnings"])
    assert (stats["replays"] < 95) if is_left else (stats["replays"] >= 120 - 32 - 5), stats


def test_a_checkpoint_that_is_loaded_ends_eager_calls(tmp_path):
    step, _ = trained(lambda model, loss, x: loss, mode="eager")
    for i in range(60):
        step(make_batch(i))
    step.save(tmp_path)
    before = step._engine.runs
    step.load(tmp_path)
    step(make_batch(0))
    assert step._engine.runs == before + 1


@pytest.mark.parametrize("python", ["auto", "trace"])
def test_garbage_that_a_step_leaves_is_sought_among_the_young(python):
    """A collection of everything takes many times as long as a small step."""

    class Holds:
        pass

    model, count = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        holds = Holds()
        holds.itself, holds.hidden = holds, model[1](model[0](x))
        loss = model[2](holds.hidden).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count.append(1)
        return loss

    step = stepc.accelerate(step, config=stepc.Config(python=python))
    for i in range(8):
        step(make_batch(i))
    before = step.stats["replays"]
    collected = []

    def note(phase, about):
        collected.append((phase, about["generation"]))

    gc.collect()
    gc.callbacks.append(note)
    try:
        for i in range(6):
            step(make_batch(i))
    finally:
        gc.callbacks.remove(note)
    assert step.stats["replays"] >= before + 5 and len(count) == 14
    assert collected.count(("start", 1)) >= 5 and ("start", 2) not in collected


@pytest.mark.parametrize("holds", [list, collections.deque, lambda made: {"memory": tuple(made)}])
def test_owners_of_many_tensors_are_sought_at_once(holds, monkeypatch):
    """One look at all that the process has takes long beside a small step."""
    looks = []
    for name in ("get_objects", "get_referrers"):
        original = getattr(gc, name)
        monkeypatch.setattr(gc, name, lambda *given, original=original: looks.append(1) or original(*given))

    def made():
        model, draws = mlp(), random.Random(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        memory = holds([(torch.randn(6, generator=source_of(i)), float(i)) for i in range(60)])

        def step():
            rows = memory["memory"] if isinstance(memory, dict) else memory
            inputs, rates = zip(*draws.sample(list(rows), 40))
            loss = (model(torch.stack(inputs)).square().mean(1) * torch.tensor(rates)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), [one.detach().clone() for one in model.parameters()]

        return step

    eager, step = made(), stepc.accelerate(made(), config=stepc.Config(mode="exact"))
    for _ in range(14):
        expected, seen = eager(), step()
        assert torch.equal(expected[0], seen[0]) and all(map(torch.equal, expected[1], seen[1]))
    assert step.stats["replays"] >= 3, step.stats["warnings"]
    assert len(looks) <= 24
