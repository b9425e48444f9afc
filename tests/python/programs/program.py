"""A program: somebody's training loop, run as it is and then with its one line of stepc.

A program is a function that takes a `Run`: it makes its model from the run's seed, passes what it trains through
`run.accelerate`, calls `run.saw` after every step with what that step showed (a loss, a norm, a count), and returns
the modules, optimizers, schedulers and values to be looked at in the end. In exact mode all of it must be eager's bit
by bit; in fast mode within rounding, parameters in proportion to how far training moved them, and where rounding
decides (a bias before a batch norm, whose gradient is noise) as near as eager is to eager with its parameters rounded
otherwise. And in the second half of the run everything accelerated must have been replayed.
"""

import copy
import random
import re

import numpy
import torch

from catalogue.case import Door, listening
from harness import Training, assert_same, difference, leaves, state_leaves

REPLAYED = 0.8  # of the calls in the second half of a run: a few may be new plans' recordings or compared calls
CALLS = ("replays", "recordings", "eager_calls")
# Fast mode's distance from eager after a few dozen steps: of a step's numbers relative to their size, and of what
# training has changed (parameters, buffers, optimizer state) relative to the change.
TOLERANCE = 1e-3
ABSOLUTE = 1e-6
NUDGE = 2.0**-24
NUDGED = 8  # times the distance of a run whose parameters were nudged by so much


class Run:
    """One run of a program, and what it showed."""

    def __init__(self, mode, folder, nudged=False):
        self.folder, self.nudged = folder, nudged
        self.door = Door(mode)
        self.steps = []  # what each step showed
        self.stats = []  # after each step, of everything accelerated
        self.before = []  # (path, leaf) of modules and the like when they were accelerated
        self.after = []

    def accelerate(self, *objects, **options):
        return self.door(*objects, **options)

    def started(self, *modules):
        """What training begins with: fast mode's distance is told relative to the way from here."""
        if self.nudged:
            signs = torch.Generator().manual_seed(0)
            for parameter in (one for module in modules for one in module.parameters()):
                with torch.no_grad():
                    parameter *= 1 + NUDGE * (torch.randint(2, parameter.shape, generator=signs) * 2 - 1)
        self.before = copied(state_leaves(Training(None, list(modules))))

    def saw(self, *values):
        self.steps.append(copied(leaves(list(values))))
        self.stats.append(self.door.stats())


def copied(found):
    return [(path, leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf))
            for path, leaf in found]


def go(program, mode, folder, nudged=False):
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run = Run(mode, folder / (mode or ("nudged" if nudged else "eager")), nudged)
    run.folder.mkdir()
    with listening() as lines:
        training = program(run)
    run.after = copied(state_leaves(training))
    run.lines = lines.stepc
    return run


def check(program, mode, folder, eager=None):
    """Compares a program's two runs. `eager`: it may run eagerly, and then a line of log matches this pattern."""
    expected, seen = go(program, None, folder), go(program, mode, folder)
    assert len(seen.steps) == len(expected.steps) > 20, f"{len(seen.steps)} steps, in eager {len(expected.steps)}"
    if mode == "exact":
        for step, (a, b) in enumerate(zip(expected.steps, seen.steps)):
            assert_same(a, b, f"step {step}")
        assert_same(expected.after, seen.after, "the state at the end")
    else:
        nudged = go(program, None, folder, nudged=True)
        for step, (a, b, other) in enumerate(zip(expected.steps, seen.steps, nudged.steps)):
            assert_near(a, b, other, {}, f"step {step}")
        assert_near(expected.after, seen.after, nudged.after, dict(expected.before), "the state at the end")
    assert_replayed(seen, eager)


def assert_near(expected, seen, nudged, before, where):
    paths = [path for path, _ in expected]
    assert [path for path, _ in seen] == paths, f"{where}: the state has other members"
    found = [f"{path}: {text}" for (path, a), (_, b), (_, other) in zip(expected, seen, nudged, strict=True)
             if not path.endswith("generator") and (text := too_far(a, b, other, before.get(path)))]
    assert not found, f"{where}, eager and fast: {'; '.join(found[:5])} ({len(found)} differ)"


def too_far(a, b, nudged, before):
    """What separates two leaves more than fast mode may, in words."""
    if isinstance(a, float) and isinstance(b, float):
        a, b, nudged, before = torch.tensor(a), torch.tensor(b), torch.tensor(nudged), None
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or not a.is_floating_point():
        return difference(a, b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return difference(a, b)
    a, b, nudged = a.double(), b.double(), nudged.double()
    size = a.norm() if before is None else (a - before.double()).norm()
    error, allowed = (a - b).norm(), TOLERANCE * size + NUDGED * (a - nudged).norm() + ABSOLUTE
    return "" if error <= allowed else f"off by {error:.2e} of {size:.2e}"


def assert_replayed(run, eager):
    half, last = run.stats[len(run.stats) // 2], run.stats[-1]
    counts = [{key: b[key] - a[key] for key in CALLS} for a, b in zip(half, last)]
    if counts and all(one["replays"] >= REPLAYED * sum(one.values()) > 0 for one in counts):
        return
    lines = run.lines + [line for one in last for line in one["warnings"]]
    assert eager is not None, f"{counts} in the second half of the run; lines: {lines}"
    assert any(re.search(eager, line) for line in lines), f"no line says /{eager}/; {counts}; lines: {lines}"
