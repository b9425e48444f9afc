"""Loops that stay as they are, of models whose Python reads what is not compared between passes, or does something."""

import array
import os
import pickle
import queue
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import CHANGE, batches, descend, mlp, sgd

SCALE = {"now": 1.0}


class Read(nn.Module):
    """`read()` makes something of the hidden features."""

    def __init__(self, read):
        super().__init__()
        self.body, self.read = mlp(), read

    def forward(self, x):
        return self.read(self.body(x))


def loop(accelerate, read, change=None, *looks):
    model = Read(read)
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        if i == CHANGE and change is not None:
            change()
        yield descend(cross_entropy(model(x), y), optimizer), model.body, *looks


@case
def all_globals(accelerate):
    SCALE["now"] = 1.0
    yield from loop(accelerate, lambda h: h * globals()["SCALE"]["now"], lambda: SCALE.update(now=3.0))


@case
def an_event(accelerate):
    event = threading.Event()
    yield from loop(accelerate, lambda h: h * 3 if event.is_set() else h, event.set)


@case
def a_length_of_a_queue(accelerate):
    waiting = queue.Queue()
    yield from loop(accelerate, lambda h: h * (1 + waiting.qsize()), lambda: waiting.put(1))


@case
def the_environment(accelerate):
    os.environ.pop("CATALOGUE_SCALE", None)
    yield from loop(
        accelerate,
        lambda h: h * float(os.environ.get("CATALOGUE_SCALE", "1")),
        lambda: os.environ.__setitem__("CATALOGUE_SCALE", "3"),
    )


@case
def a_file(accelerate):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm"
        yield from loop(accelerate, lambda h: h * 3 if path.exists() else h, path.touch)


@case
def a_pickled_number(accelerate):
    kept = {"bytes": pickle.dumps(1.0)}
    yield from loop(
        accelerate, lambda h: h * pickle.loads(kept["bytes"]), lambda: kept.update(bytes=pickle.dumps(3.0))
    )


@case
def an_array(accelerate):
    scales = array.array("d", [1.0])
    yield from loop(accelerate, lambda h: h * scales[0], lambda: scales.__setitem__(0, 3.0))


@case
def a_hook_of_a_tensor_that_counts(accelerate):
    counts = {"calls": 0}

    def scaled(gradient):
        counts["calls"] += 1
        return gradient / counts["calls"]

    def read(h):
        h.register_hook(scaled)
        return h

    yield from loop(accelerate, read, None, counts)


@case
def a_hook_of_a_tensor_that_reads(accelerate):
    scale = {"now": 1.0}

    def read(h):
        h.register_hook(lambda gradient: gradient * scale["now"])
        return h

    yield from loop(accelerate, read, lambda: scale.update(now=3.0))


class Reversal(torch.autograd.Function):
    """Turns the gradient round, as adversarial training of domains does."""

    weight = 1.0
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -Reversal.weight * gradient


class Counting(Reversal):
    @staticmethod
    def backward(ctx, gradient):
        Counting.calls += 1
        return gradient * Counting.calls


class Kept(Reversal):
    @staticmethod
    def forward(ctx, x, owner):
        ctx.owner = owner
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.owner["weight"] * gradient, None


@case
def a_backward_that_reads_its_class(accelerate):
    Reversal.weight = 1.0
    yield from loop(accelerate, Reversal.apply, lambda: setattr(Reversal, "weight", 3.0))


@case
def a_backward_that_reads_what_forward_kept(accelerate):
    owner = {"weight": 1.0}
    yield from loop(accelerate, lambda h: Kept.apply(h, owner), lambda: owner.update(weight=3.0))


@case
def a_backward_that_counts(accelerate):
    Counting.calls = 0
    for step in loop(accelerate, Counting.apply):
        yield *step, Counting.calls
