"""Twins: the same training program twice, one copy eager and one accelerated, compared bit by bit after every step.

A test gives `run_twins` a function that builds a `Training` and one that makes the batch of a step. Both copies are built
from the same seed, see the same batches and have random generators of their own. Compared are outputs, parameters,
gradients, buffers, optimizer and scheduler state, batches (a step may write into them) and generators; and that enough
steps were really replayed, so that no test passes by running eagerly.
"""

import contextlib
import copy
import dataclasses
import inspect
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

import stepc

WARM_UP = 4  # calls until the first replay that counts: at most three recordings and one verified replay


@dataclasses.dataclass
class Training:
    """One copy of a training program: the step, and everything whose bits it may change."""

    step: Callable
    modules: list = dataclasses.field(default_factory=list)
    optimizers: list = dataclasses.field(default_factory=list)
    schedulers: list = dataclasses.field(default_factory=list)
    watch: Any = None  # a nest of tensors, numbers and generators that belongs to the step but to no module


@dataclasses.dataclass
class Arguments:
    """A batch with keyword arguments."""

    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Raised:
    """The outcome of a step that raised one of the exceptions that the test expects."""

    kind: type
    text: str


def train(model, loss_of, optimizer=None, learning_rate=1e-2, watch=None):
    """The ordinary step over `model`: forward, backward, clipping, update, with a new learning rate every step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Training(step, [model], [optimizer], [decay(optimizer)], watch)


def decay(optimizer):
    """Another learning rate every step."""
    return LambdaLR(optimizer, lambda step: 0.95**step)


def source_of(seed):
    """A generator for batches, apart from those that the step draws from."""
    return torch.Generator().manual_seed(seed)


# ---- bits


def bits(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def difference(a, b):
    """What separates two leaves, in words; empty when not a bit does."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.is_sparse and b.is_sparse:
            return difference(a.coalesce().indices(), b.coalesce().indices()) or difference(
                a.coalesce().values(), b.coalesce().values())
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        if torch.equal(bits(a), bits(b)):
            return ""
        largest = (a.detach().to(torch.complex128) - b.detach().to(torch.complex128)).abs().max().item()
        return f"{a.dtype}{list(a.shape)}, largest difference {largest:.3g}"
    if isinstance(a, float) and isinstance(b, float) and type(a) is not type(b):
        a, b = float(a), float(b)  # a number read while the step is recorded says so when it is compared
    if type(a) is not type(b):
        return f"{type(a).__name__} and {type(b).__name__}"
    if isinstance(a, float):
        return "" if struct.pack("d", a) == struct.pack("d", b) else f"{a!r} and {b!r}"
    return "" if a == b else f"{a!r} and {b!r}"


def leaves(value, path=""):
    """(path, leaf) of every tensor, number and string in a nest."""
    if isinstance(value, torch.Generator):
        yield f"{path}.generator", value.get_state()
    elif isinstance(value, numpy.ndarray):
        yield path, torch.from_numpy(value.copy())
    elif isinstance(value, Mapping):
        yield f"{path}.keys", [str(key) for key in value]
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{path}.type", type(value).__name__
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, (list, tuple)):
        yield f"{path}.type", (type(value).__name__, len(value))
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif not callable(value) or isinstance(value, torch.Tensor):
        yield path, value


def gradients_of(value):
    """What a backward pass may have left on the leaves of a nest."""
    return [leaf.grad for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_leaf]


def state_leaves(training):
    """Everything that the step may have changed, generators last."""
    for number, module in enumerate(training.modules):
        for name, parameter in module.named_parameters():
            yield f"module {number} parameter {name}", parameter
            yield f"module {number} gradient {name}", parameter.grad
        for name, buffer in module.named_buffers():
            yield f"module {number} buffer {name}", buffer
    for number, optimizer in enumerate(training.optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            path = f"optimizer {number} group {group_number}"
            yield from leaves({key: item for key, item in group.items() if key != "params"}, path)
            for index, parameter in enumerate(group["params"]):
                yield from leaves(optimizer.state.get(parameter, {}), f"{path} state {index}")
    for number, scheduler in enumerate(training.schedulers):
        state = {key: item for key, item in scheduler.state_dict().items() if key != "lr_lambdas"}
        yield from leaves(state, f"scheduler {number}")
    yield from leaves(training.watch, "watched")
    yield "torch generator", torch.get_rng_state()
    yield "Python generator", random.getstate()
    yield from leaves(numpy.random.get_state(), "NumPy generator")


def assert_same(eager, accelerated, where):
    """Both iterables of (path, leaf) hold the same paths with the same bits."""
    found = []
    eager, accelerated = list(eager), list(accelerated)
    assert [path for path, _ in accelerated] == [path for path, _ in eager], f"{where}: the state has other members"
    for (path, a), (_, b) in zip(eager, accelerated):
        if text := difference(a, b):
            found.append(f"{path or 'output'}: {text}")
    assert not found, f"{where}, eager and accelerated: {'; '.join(found[:5])} ({len(found)} differ)"


# ---- twins


class Twin:
    """A training program with random generators of its own."""

    def __init__(self, build, accelerate):
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        self.training = build()
        self.call = accelerate(self.training)
        self.save_generators()

    def save_generators(self):
        self.generators = torch.get_rng_state(), random.getstate(), numpy.random.get_state()

    @contextlib.contextmanager
    def turn(self):
        torch.set_rng_state(self.generators[0])
        random.setstate(self.generators[1])
        numpy.random.set_state(self.generators[2])
        try:
            yield self
        finally:
            self.save_generators()

    def take_step(self, batch, raises):
        if isinstance(batch, Arguments):
            args, kwargs = batch.args, batch.kwargs
        else:
            args, kwargs = batch if isinstance(batch, tuple) else (batch,), {}
        try:
            output = self.call(*args, **kwargs)
        except raises as error:
            return Raised(type(error), str(error))
        for scheduler in self.training.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(float(output))
            else:
                scheduler.step()
        return output


def detached(value):
    def detach(leaf):
        if dataclasses.is_dataclass(leaf):
            fields = {field.name: detached(getattr(leaf, field.name)) for field in dataclasses.fields(leaf)}
            return dataclasses.replace(leaf, **fields)
        return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(detach, value)


def accelerate_found(training, config=None):
    """Modules and optimizers are found by stepc itself, as in most programs."""
    return stepc.accelerate(training.step, config=config or stepc.Config(mode="exact", verify="first", pace="off"))


def accelerate_given(training, config=None):
    return stepc.accelerate(training.step, modules=training.modules, optimizers=training.optimizers,
                            config=config or stepc.Config(mode="exact", verify="first", pace="off"))


def run_twins(build, make_batch, steps=None, replays=5, config=None, accelerate=accelerate_found, before=None,
              around=None, raises=(), quiet=None):
    """Trains both twins for `steps` and returns the accelerated step.

    replays   so many steps at least were replayed; a verified first replay does not count. 0: may run eagerly.
    before    before(i, training): what the program does between two steps, done for each twin
    around    around(i): a context in which both twins take step i
    raises    exceptions that a step may raise, in both twins alike
    quiet     no warning may be given; by default where replays are asked for
    """
    steps = replays + WARM_UP if steps is None else steps
    quiet = replays > 0 if quiet is None else quiet
    eager = Twin(build, lambda training: lambda *args, **kwargs: detached(training.step(*args, **kwargs)))
    accelerated = Twin(build, lambda training: accelerate(training, config))
    kept = []
    for i in range(steps):
        batch = make_batch(i)
        seen = []
        for twin in (eager, accelerated):
            own_batch = copy.deepcopy(batch)
            with twin.turn():
                if before is not None:
                    before(i, twin.training)
                with around(i) if around is not None else contextlib.nullcontext():
                    output = twin.take_step(own_batch, raises)
                seen.append((output, own_batch, list(state_leaves(twin.training))))
        for number, name in enumerate(("output", "batch")):
            assert_same(leaves(seen[0][number]), leaves(seen[1][number]), f"{name} of step {i}")
        assert_same(seen[0][2], seen[1][2], f"state after step {i}")
        for path, leaf in leaves(seen[1][0]):
            assert not isinstance(leaf, torch.Tensor) or leaf.grad_fn is None, f"step {i} returned a grad_fn: {path}"
        kept.append((seen[0][0], seen[1][0]))
    for i, (eager_output, output) in enumerate(kept):
        assert_same(leaves(eager_output), leaves(output), f"output of step {i}, looked at after the last step")
    assert_replayed(accelerated.call.stats, replays, quiet)
    return accelerated.call


def assert_replayed(stats, replays, quiet=True):
    keys = ("recordings", "replays", "checks", "failed_checks", "eager_calls", "plans", "guard_misses")
    counts = {key: stats[key] for key in keys}
    # A step that is looked at is one that a plan would have replayed.
    replayed = stats["replays"] + stats["checks"]
    assert replayed >= replays and not stats["failed_checks"], f"{counts}, wanted {replays}; warnings: {stats['warnings']}"
    assert not (quiet and stats["warnings"]), stats["warnings"]


def line_of(function, marker):
    """`file.py:line` of the one line of a function's source that ends with the comment `marker`."""
    lines, first = inspect.getsourcelines(function)
    found = [first + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1, f"{marker} is on lines {found}"
    return f"{Path(inspect.getsourcefile(function)).name}:{found[0]}"
