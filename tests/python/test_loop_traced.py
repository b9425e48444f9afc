"""Loops whose model's own code runs at every call, beside its plan: effects happen once, as in eager."""

import contextlib
import io
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stepc
from stepc.watch.bytecode import why_unwatched
from test_loop import build, plain, run_loops

TRACED = stepc.Config(mode="exact", verify="first", python="trace")


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()).relu())


def run(kind, loop=plain, config=TRACED, replays=5):
    model = run_loops(loop, lambda: build(kind), replays=replays, config=config)
    stats = stepc.stats(model)
    assert stats["traced"] and not stats["warnings"], stats
    return stats


class Plain(Base):
    """Norms, dropout and in-place calls."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.2)

    def forward(self, x):
        return self.head(self.dropout(nn.functional.relu(self.norm(self.one(x)), inplace=True)))


class Keeps(Base):
    """Leaves tensors on the module: with a graph, without one, a view of another."""

    def forward(self, x):
        hidden = self.one(x).tanh()
        self.hidden, self.seen, self.first = hidden.detach(), hidden.data * 2, hidden.detach()[:, 0]
        self.aux_loss = hidden.square().mean()
        return self.head(self.two(hidden))


def with_aux_loss(model, optimizer, scheduler, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y) + 0.1 * model.aux_loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), model.hidden.clone(), model.seen.clone(), model.first.clone()


class Counts(Base):
    """Draws from NumPy and counts, and takes the numbers into the pass."""

    def __init__(self):
        super().__init__()
        self.calls, self.scales = 0, []

    def forward(self, x):
        self.calls += 1
        self.scales.append(0.5 + numpy.random.rand() + 0.1 * random.random())
        return super().forward(x * self.scales[-1]) / (1 + self.calls)


class _Scaled(torch.autograd.Function):
    seen = []

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        _Scaled.seen.append(ctx.factor)
        return gradient * x.cos() * ctx.factor, None


class HasFunction(Base):
    """An autograd.Function and a hook, whose code runs in the backward pass."""

    def __init__(self):
        super().__init__()
        self.passes = 0

    def note(self, gradient):
        self.passes += 1
        return gradient * 0.5

    def forward(self, x):
        hidden = _Scaled.apply(self.one(x), 0.5 + 0.01 * self.passes)
        hidden.register_hook(self.note)
        return self.head(self.two(hidden))


class Result:
    def __init__(self, logits):
        self.logits = logits


class ReturnsAnObject(Base):
    def forward(self, x):
        return Result(super().forward(x))


def of_an_object(model, optimizer, scheduler, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x).logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


class ReturnsWhatItIsGiven(Base):
    def forward(self, x):
        return x, super().forward(x)


def with_gradients_of_inputs(model, optimizer, scheduler, loader):
    for x, y in loader:
        x = (x * 2).requires_grad_()
        same, logits = model(x)
        assert same is x
        loss = nn.functional.cross_entropy(logits, y) + 1e-2 * same.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), x.grad.clone()


class Checkpoints(Base):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x):
        return self.head(checkpoint(self.block, self.one(x), use_reentrant=False))


class EndsWithACheckpoint(Checkpoints):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.3))

    def forward(self, x):
        return checkpoint(self.block, self.one(x), use_reentrant=False)


class Chooses(Base):
    """Takes one of two ways, by a number of its own."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        hidden = self.one(x).tanh()
        if self.calls % 5 == 0:
            hidden = self.two(hidden)
            self.kept = hidden
        return self.head(hidden)


class Reads(Base):
    """Reads numbers of the pass, in forward and backward, and decides by one."""

    def __init__(self):
        super().__init__()
        self.largest, self.norms = [], []

    def forward(self, x):
        hidden = self.one(x).tanh()
        self.largest.append(hidden.abs().max().item())
        if self.largest[-1] > 2:
            hidden = hidden / 2
        hidden.register_hook(lambda gradient: self.norms.append(gradient.norm().item()))
        return self.head(hidden)


KINDS = [Plain, Counts, HasFunction, ReturnsWhatItIsGiven, Checkpoints, EndsWithACheckpoint, Reads]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_model_runs_beside_its_plan(kind):
    run(kind, with_gradients_of_inputs if kind is ReturnsWhatItIsGiven else plain)


def test_what_a_pass_leaves_on_the_module_is_there_and_has_a_gradient():
    run(Keeps, with_aux_loss)


def test_a_result_is_whatever_object_the_model_makes():
    run(ReturnsAnObject, of_an_object)


def test_a_pass_that_leaves_its_plan_goes_on_eagerly():
    stats = run(Chooses, replays=3)
    assert stats["departures"] > 0
    stats = train(Chooses(), 45, config=TRACED)  # both ways have plans by then, and each is verified
    assert stats["plans"] == 2 and stats["replays"] > 20 and not stats["warnings"], stats


def test_what_only_its_own_code_does_is_found_out():
    """Without a word in the config the loop's first passes show it."""
    stats = run(Counts, config=stepc.Config(mode="exact"))
    assert (why_unwatched() or "changes self.calls") in stats["traced"]


def test_what_is_printed_is_printed_once():
    class Prints(Base):
        def forward(self, x):
            print("a pass")
            return super().forward(x)

    model = Prints()
    model, optimizer = stepc.accelerate(model, torch.optim.SGD(model.parameters(), lr=0.1), config=TRACED)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        for _ in range(12):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert text.getvalue() == "a pass\n" * 12
    assert stepc.stats(model)["replays"] > 4


# ---- faults that were found


def train(model, calls, optimizer=None, config=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=config or stepc.Config(mode="exact"))
    for _ in range(calls):
        loss = model(torch.ones(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return stepc.stats(model)


def test_a_checkpoint_at_the_end_of_a_model_draws_again_what_it_drew():
    stats = train(EndsWithACheckpoint(), 12)
    assert stats["replays"] > 6 and not stats["warnings"]


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_counter_among_the_buffers_is_replayed(mode):
    class Counter(Base):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            self.count += 1
            return super().forward(x)

    model = Counter()
    stats = train(model, 20, config=stepc.Config(mode=mode))
    assert stats["replays"] > 8 and not stats["warnings"] and model.count == 20


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_norm_with_a_cumulative_mean_is_replayed(mode):
    class Norm(Base):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, momentum=None)

        def forward(self, x):
            return self.norm(super().forward(x))

    if mode == "exact":
        run(Norm, config=stepc.Config(mode="exact"))
    model = Norm()
    stats = train(model, 20, config=stepc.Config(mode=mode))
    assert stats["replays"] > 8 and not stats["warnings"] and model.norm.num_batches_tracked == 20


def test_a_parameters_hook_that_was_removed_is_none():
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))

    def step():
        model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(6):
        step()
    before = stepc.stats(model)["replays"]
    handle = model.weight.register_hook(lambda gradient: gradient * 0.5)
    for _ in range(2):
        step()
    assert stepc.stats(model)["replays"] == before
    handle.remove()
    for _ in range(24):
        step()
    assert stepc.stats(model)["replays"] >= before + 20
