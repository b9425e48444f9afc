"""A case: an ordinary training program, run as it is and then accelerated, compared step by step.

A program is a generator function that takes `accelerate` and yields after every step what is to be looked at: the
step's output first, then models, optimizers, schedulers, generators and any Python values. In exact mode all of it,
what the program prints and logs and the random generators must be the same bit by bit; in fast mode within TOLERANCE.
And the last steps must be replays, unless the case is allowed to run eagerly with a line of log that says why.
"""

import contextlib
import copy
import dataclasses
import functools
import io
import logging
import multiprocessing
import random
import re
import traceback
import weakref
from collections.abc import Callable

import numpy
import torch
import transformers
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

import stepc
from harness import Training, assert_same, difference, leaves, state_leaves

MODES = ("exact", "fast")
TRACED = "traced"  # exact, and the program's own code runs at every call from the start: of loops, whose models are watched
LAST = 3  # steps at the end, of which all but one must be replays: one may be a traced or verified call
# Fast mode's distance from eager, relative to the tensor's norm, after a dozen steps.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 1e-2,
             torch.complex64: 2e-5}
ABSOLUTE = 1e-6
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
SECONDS = 120  # for a case in a process of its own
CASES = {}


class WrongValues(AssertionError):
    """The accelerated program did something else than the eager one."""


class Slipped(AssertionError):
    """A look at a watched step found that its replays were not what it does by now: only chance made it look there."""


class NotReplayed(AssertionError):
    """The accelerated program did not run as its case says."""


def modes_of(case):
    return (*MODES, TRACED) if case.name.startswith("loop") else MODES


@dataclasses.dataclass(frozen=True)
class Case:
    """A program and how it is to run.

    eager  None: the last steps are replays. Else they may run eagerly, and then a line of log matches this pattern
    draws  the step draws from torch's generator: fast mode draws its own numbers, so only shapes are compared there
    narrow the step computes in bfloat16, so fast mode has its tolerance for everything
    """

    program: Callable
    eager: str | None = None
    draws: bool = False
    narrow: bool = False

    @property
    def name(self):
        return f"{self.program.__module__.rpartition('.')[2]}.{self.program.__name__}"


def case(program=None, **options):
    """Puts a program into the catalogue; `options` are Case's."""
    if program is None:
        return lambda program: case(program, **options)
    new = Case(program, **options)
    assert new.name not in CASES, f"two cases are called {new.name}"
    CASES[new.name] = new
    return program


# ---- one run


def config_of(mode):
    name, python = ("exact", "trace") if mode == TRACED else (mode, "auto")
    return stepc.Config(mode=name, python=python, pace="off")


class Door:
    """What a program gets as `accelerate`: stepc's, or nothing at all."""

    def __init__(self, mode):
        self.mode = mode
        self.made = []

    def __call__(self, *objects, **options):
        if self.mode is None:
            return objects if len(objects) > 1 else objects[0]
        result = stepc.accelerate(*objects, config=config_of(self.mode), **options)
        self.made += [weakref.ref(one) for one in (result if isinstance(result, tuple) else (result,))]
        return result

    def stats(self):
        """The statistics of all that was accelerated and is still there."""
        return [stats_of(one) for one in (ref() for ref in self.made) if one is not None]


def stats_of(one):
    if isinstance(one, stepc.Accelerated):
        return one.stats
    stats = stepc.stats(one)
    if isinstance(one, torch.optim.Optimizer):
        return stats
    return {**stats, "checks": 0, "is_model": True}  # a model's checks are replays, too


class Lines(logging.Handler):
    """The lines that were logged: the program's own, and stepc's."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.own, self.stepc = [], []

    def emit(self, record):
        mine = record.name.split(".")[0] == "stepc"
        (self.stepc if mine else self.own).append(record.getMessage())


@contextlib.contextmanager
def listening():
    lines, root, stepc_log = Lines(), logging.getLogger(), logging.getLogger("stepc")
    levels = root.level, stepc_log.level
    root.setLevel(logging.INFO)
    stepc_log.setLevel(logging.INFO)
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        root.setLevel(levels[0])
        stepc_log.setLevel(levels[1])


@dataclasses.dataclass
class Run:
    """What one run of a program showed."""

    steps: list = dataclasses.field(default_factory=list)  # of lists of (path, leaf), each as it was after that step
    last_outputs: list = dataclasses.field(default_factory=list)  # of the outputs, looked at after the last step
    stats: list = dataclasses.field(default_factory=list)  # after each step, of everything accelerated
    lines: list = dataclasses.field(default_factory=list)  # what stepc logged


def run(program, mode):
    transformers.utils.logging.warning_once.cache_clear()  # what is said once a process is said in both runs
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    found, door, outputs, text = Run(), Door(mode), [], io.StringIO()
    with listening() as lines, contextlib.redirect_stdout(text):
        for seen in program(door):
            output, *looks = seen if isinstance(seen, tuple) else (seen,)
            found.steps.append(list(copied(shown(output, looks, text.getvalue(), lines.own))))
            outputs.append(output)
            found.stats.append(door.stats())
            del seen, output, looks
    found.lines = lines.stepc + [line for stats in found.stats[-1] for line in stats["warnings"]]
    found.last_outputs = [list(copied(leaves(output))) for output in outputs]
    return found


def shown(output, looks, text, lines):
    """(path, leaf) of all that the program lets us see."""
    of = lambda kinds: [one for one in looks if isinstance(one, kinds)]
    kinds = torch.nn.Module, torch.optim.Optimizer, (LRScheduler, ReduceLROnPlateau)
    yield from leaves(output)
    rest = [one for one in looks if not isinstance(one, (torch.nn.Module, torch.optim.Optimizer, *kinds[2]))]
    yield from state_leaves(Training(None, *(of(kind) for kind in kinds), watch=rest))
    yield "printed", text
    yield "logged", "\n".join(lines)


def copied(found):
    for path, leaf in found:
        yield path, leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


# ---- comparing


def check(case, mode):
    """Runs a case; raises WrongValues, NotReplayed or what the program raises."""
    eager, accelerated = run(case.program, None), run(case.program, mode)
    if len(eager.steps) != len(accelerated.steps):
        raise WrongValues(f"{len(accelerated.steps)} steps where eager takes {len(eager.steps)}")
    same = assert_same if mode != "fast" else functools.partial(assert_near, narrow=case.narrow)
    pairs = [(f"step {i}", *pair) for i, pair in enumerate(zip(eager.steps, accelerated.steps))]
    pairs += [(f"the output of step {i}, after the last step", *pair)
              for i, pair in enumerate(zip(eager.last_outputs, accelerated.last_outputs))]
    for where, a, b in pairs:
        if mode == "fast" and case.draws:
            a, b = without_draws(a), without_draws(b)
        try:
            same(a, b, where)
        except AssertionError as error:
            raise WrongValues(str(error)) from None
    check_how_it_ran(case, accelerated)


def check_how_it_ran(case, run):
    if any(stats["failed_checks"] for stats in run.stats[-1]):
        raise Slipped(f"replays were not what the step does: {run.lines}")
    if replays := not_replayed(run):
        if case.eager is None:
            raise NotReplayed(f"eager where replays are wanted: {replays}; lines: {run.lines}")
        if not any(re.search(case.eager, line, re.IGNORECASE) for line in run.lines):
            raise NotReplayed(f"eager, and no line says /{case.eager}/: {run.lines}")


def not_replayed(run):
    """Why the last steps were no replays, or nothing."""
    if not run.stats[-1]:
        return "nothing that was accelerated is there any more"
    before, after = run.stats[-1 - LAST], run.stats[-1]
    # A step that is looked at is one that a plan would have replayed.
    counts = [sum(b[key] - a[key] for key in ("replays", "checks")) for a, b in zip(before[-len(after):], after)]
    # The optimizer's replays are not the model's.
    if sum(counts) >= LAST - 1 and all(count for count, stats in zip(counts, after) if "is_model" in stats):
        return ""
    keys = ("recordings", "replays", "eager_calls", "plans", "guard_misses")
    return f"{counts} replays in the last {LAST} steps, {[{key: stats[key] for key in keys} for stats in after]}"


def assert_near(eager, accelerated, where, narrow=False):
    """As harness.assert_same, with fast mode's tolerance for numbers that are not whole."""
    eager, accelerated = list(eager), list(accelerated)
    paths = [path for path, _ in eager], [path for path, _ in accelerated]
    assert paths[0] == paths[1], f"{where}: the state has other members"
    pairs = [(path, a, b) for (path, a), (_, b) in zip(eager, accelerated)]
    found = [f"{path or 'output'}: {text}" for path, a, b in pairs if (text := distance(a, b, narrow))]
    assert not found, f"{where}, eager and accelerated: {'; '.join(found[:5])} ({len(found)} differ)"


def distance(a, b, narrow):
    """What separates two leaves more than fast mode may, in words."""
    if isinstance(a, str) and isinstance(b, str) and NUMBER.split(a) == NUMBER.split(b):
        pairs = zip(NUMBER.findall(a), NUMBER.findall(b))
        return "" if all(abs(float(x) - float(y)) <= 1e-3 * (1 + abs(float(x))) for x, y in pairs) else difference(a, b)
    if isinstance(a, float) and isinstance(b, float):
        a, b = torch.tensor(a), torch.tensor(b)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or a.dtype not in TOLERANCE or a.is_sparse:
        return difference(a, b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return difference(a, b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return "other elements are finite"
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a[finite].to(wide), b[finite].to(wide)
    error, size = float((x - y).norm()), float(x.norm())
    allowed = TOLERANCE[torch.bfloat16 if narrow else a.dtype] * size + ABSOLUTE
    return "" if error <= allowed else f"off by {error:.2e} of {size:.2e}"


def without_draws(found):
    """What is the same whichever numbers a step draws: shapes, and all that is no tensor, no float and no text."""
    for path, leaf in found:
        if isinstance(leaf, torch.Tensor):
            yield path, str((leaf.dtype, list(leaf.shape)))
        elif not isinstance(leaf, (float, str)):
            yield path, leaf


# ---- in a process of its own


def check_isolated(case, mode):
    """As check(), in a child process: one that dies is a failure of this case alone."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=report, args=(case, mode, theirs))
    child.start()
    theirs.close()
    answer = "no answer"
    if ours.poll(SECONDS):
        with contextlib.suppress(EOFError):
            answer = ours.recv()
        child.join()
    else:
        child.kill()
        child.join()
        raise TimeoutError(f"no end after {SECONDS} s")
    if answer == "no answer":
        raise ChildProcessError(f"crashed with signal {-child.exitcode}")
    if answer is not None:
        raise AssertionError(answer)


def report(case, mode, pipe):
    torch.set_num_threads(1)
    try:
        check(case, mode)
        pipe.send(None)
    except (WrongValues, NotReplayed) as error:
        pipe.send(f"{type(error).__name__}: {error}")
    except Exception:
        pipe.send(traceback.format_exc())
