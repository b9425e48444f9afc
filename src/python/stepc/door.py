"""accelerate(): the Python door."""

import functools
import os

import torch

from collections.abc import Callable, Iterable
from typing import Any

from stepc import _C, tree
from stepc.config import Config
from stepc.profile import Profile
from stepc.recording import Recording
from stepc.scout import Scout


Modules = torch.nn.Module | Iterable[torch.nn.Module] | dict[str, torch.nn.Module]
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | dict[str, torch.optim.Optimizer]


class Accelerated:
    """A training step that is called like the function it was made of.

    `stats` are the numbers behind `report()`; `graph_text()` is the captured step as text.
    """

    def __init__(self, train_step: Callable[..., Any], scout: Scout, config: Config):
        functools.update_wrapper(self, train_step)
        self._train_step = train_step
        self._scout = scout
        self.config = config
        self._engine = _C.Step(scout, config)
        self._structures = []  # of results, by number
        self._structure_numbers = {}
        self._arguments = {}  # structure of arguments -> its text in the signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors, names = [], []
        arguments = tree.flatten(args[0], tensors) if len(args) == 1 and not kwargs else None
        if arguments is None:
            arguments = tree.flatten((args, kwargs), tensors)
        text = self._arguments.get(arguments)
        if text is None:
            text = self._arguments[arguments] = f"{len(self._arguments)}: {tree.describe(arguments)}"
            tree.flatten(args[0] if len(args) == 1 and not kwargs else (args, kwargs), [], names)
            self._names = {**getattr(self, "_names", {}), text: names}
        out, numbers = self._engine.run(tensors, self._names[text], text, functools.partial(self._eager, args, kwargs))
        structure = self._structures[numbers.pop()]
        if structure is tree.TENSOR:
            return out[0]
        return tree.unflatten(structure, iter(out), iter(numbers))

    def _eager(self, args, kwargs):
        """The user's function as it is; recorded when the engine records."""
        if _C.is_recording():
            with Recording(self._scout):
                result = self._train_step(*args, **kwargs)
        else:
            result = self._train_step(*args, **kwargs)
        tensors, numbers = [], []
        structure = tree.flatten(result, tensors, numbers=numbers)
        number = self._structure_numbers.get(structure)
        if number is None:
            number = self._structure_numbers[structure] = len(self._structures)
            self._structures.append(structure)
        return tensors, numbers + [number]

    @property
    def stats(self) -> dict[str, Any]:
        """What was measured so far: a dict."""
        return self._engine.stats()

    def report(self) -> str:
        """Planned beside measured, in words."""
        return self._engine.report()

    def memory(self) -> str:
        """Fast mode: where every byte of the step goes at its peak, as a table; empty before the step is planned."""
        return self._engine.memory_text()

    def save_memory(self, path: str | os.PathLike) -> None:
        """Fast mode: writes a picture (SVG) of the step's live bytes by instruction."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._engine.memory_svg())

    def profile(self, path: str | os.PathLike | None = None) -> Profile:
        """Times the instructions of a replayed call: `with step.profile("trace.json") as profile: step(batch)`."""
        return Profile(self._engine, path)

    def graph_text(self) -> str:
        """The step that was captured last, as text; empty before."""
        return self._engine.graph_text()

    def save_graph(self, path: str | os.PathLike) -> None:
        """Writes graph_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.graph_text())


def _named(objects, word):
    if objects is None or isinstance(objects, dict):
        return objects
    if isinstance(objects, (torch.nn.Module, torch.optim.Optimizer)):
        objects = [objects]
    return {f"{word}{index}": one for index, one in enumerate(objects)}


def accelerate(
    train_step: Callable[..., Any] | torch.nn.Module,
    *objects: torch.optim.Optimizer,
    modules: Modules | None = None,
    optimizers: Optimizers | None = None,
    config: Config | None = None,
) -> Any:
    """Runs a training step, or the parts of a loop, from a plan.

    step = accelerate(train_step): takes a training step as it is and returns one that is called the same way.
    train_step(*args, **kwargs) may take and return any nest of tensors, numbers, lists, tuples, dicts and dataclasses.
    Modules and optimizers may be given, else they are found in the function's closure, `self` and globals.

    model, optimizer = accelerate(model, optimizer): for a loop that stays as it is. Both are the objects that were
    given; calling the model, its backward pass and optimizer.step() run from plans, everything between them as written.
    The whole step is the faster form.
    """
    from stepc import loop  # it needs Accelerated

    config = config or Config()
    if isinstance(train_step, torch.nn.Module):
        return _accelerate_loop(loop, train_step, objects, config)
    if isinstance(train_step, Accelerated):
        raise _C.UserError("this step is accelerated already")
    if objects or not callable(train_step):
        raise _C.UserError(
            "accelerate() takes a training step, a function, or a model and its optimizers; this is a "
            f"{type(train_step).__name__}"
        )
    scout = Scout(train_step, _named(modules, "module"), _named(optimizers, "optimizer"))
    for module in scout.modules.values():
        _set_precision(module, config)
    return Accelerated(train_step, scout, config)


def _accelerate_loop(loop, model, optimizers, config):
    if hasattr(type(model), "graph_text"):
        raise _C.UserError("this model is accelerated already")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise _C.UserError(f"accelerate(model, ...) takes optimizers, not a {type(optimizer).__name__}")
    _set_precision(model, config)
    loop.accelerate_model(model, config)
    for optimizer in optimizers:
        loop.accelerate_optimizer(optimizer, config)
    return (model, *optimizers) if optimizers else model


def _set_precision(module, config):
    """Runs the module's forward pass under autocast."""
    if config.precision is None:
        return
    forward = module.forward

    @functools.wraps(forward)
    def autocast(*args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args, **kwargs)

    module.forward = autocast
