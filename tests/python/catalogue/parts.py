"""What the programs of the catalogue are made of: tiny models, batches, the ordinary loop, small modules of Python."""

import types

import torch
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 12
CHANGE = 5  # the step before which a program changes something: a plan was made by then and replayed once
ROWS, FEATURES, HIDDEN, CLASSES = 8, 8, 16, 4


def mlp(hidden=HIDDEN):
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def sgd(*models, lr=0.1):
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=lr, momentum=0.9)


def adam(*models, lr=1e-2):
    return torch.optim.Adam([p for model in models for p in model.parameters()], lr=lr)


def data(rows=ROWS, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=source), torch.randint(CLASSES, (rows,), generator=source)


def batches(steps=STEPS):
    """(step, inputs, classes), other ones every step."""
    for i in range(steps):
        yield i, *data(seed=i)


def descend(loss, *optimizers):
    """Backward, updates, and no gradients any more."""
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    return loss


def fit(step, *looks, change=None):
    """The ordinary loop; `change` is what the program does before step CHANGE."""
    for i, x, y in batches():
        if i == CHANGE and change is not None:
            change()
        yield step(x, y), *looks


def python_module(source):
    """A module of Python as a program has them beside its script."""
    module = types.ModuleType("settings")
    module.__dict__.update(torch=torch, nn=nn, cross_entropy=cross_entropy)
    exec(compile(source, "settings.py", "exec"), module.__dict__)
    return module
