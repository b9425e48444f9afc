"""accelerate(): the Python door."""

import functools

import torch

from stepc import _C, tree
from stepc.config import Config
from stepc.recording import Recording
from stepc.scout import Scout


class Accelerated:
    """A training step that is called like the function it was made of.

    `stats` are the numbers behind `report()`; `graph_text()` is the captured step as text.
    """

    def __init__(self, train_step, scout, config):
        functools.update_wrapper(self, train_step)
        self._train_step = train_step
        self._scout = scout
        self.config = config
        self._engine = _C.Step(scout, config.mode, config.verify, config.max_plans, config.max_recordings)
        self._structures = []  # of results, by number
        self._structure_numbers = {}
        self._arguments = {}  # structure of arguments -> its text in the signature

    def __call__(self, *args, **kwargs):
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
    def stats(self):
        """What was measured so far: a dict."""
        return self._engine.stats()

    def report(self):
        """Planned beside measured, in words."""
        return self._engine.report()

    def graph_text(self):
        """The step that was captured last, as text; empty before."""
        return self._engine.graph_text()

    def save_graph(self, path):
        """Writes graph_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.graph_text())


def _named(objects, word):
    if objects is None or isinstance(objects, dict):
        return objects
    if isinstance(objects, (torch.nn.Module, torch.optim.Optimizer)):
        objects = [objects]
    return {f"{word}{index}": one for index, one in enumerate(objects)}


def accelerate(train_step, modules=None, optimizers=None, config=None):
    """Takes a training step as it is and returns one that is called the same way.

    train_step(*args, **kwargs) may take and return any nest of tensors, numbers, lists, tuples, dicts and dataclasses.
    Modules and optimizers may be given, else they are found in the function's closure, `self` and globals.
    """
    if isinstance(train_step, Accelerated):
        raise _C.UserError("this step is accelerated already")
    if not callable(train_step) or isinstance(train_step, torch.nn.Module):
        raise _C.UserError(f"accelerate() takes a training step, a function; this is a {type(train_step).__name__}")
    config = config or Config()
    scout = Scout(train_step, _named(modules, "module"), _named(optimizers, "optimizer"))
    return Accelerated(train_step, scout, config)
