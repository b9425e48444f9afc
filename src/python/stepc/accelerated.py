"""A training step that was given to accelerate()."""

import functools
import os

from collections.abc import Callable
from typing import Any

from stepc import _C, tree
from stepc.config import Config
from stepc.profile import Profile
from stepc.recording import Recording, Tracing
from stepc.scout import Scout


class Accelerated:
    """A training step that is called like the function it was made of.

    `stats` are the numbers behind `report()`; `graph_text()` is the captured step as text and
    `schedule_text()` its Schedule.
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
        opaque = []  # the structure of a result that a replay cannot give, and the result, which holds what is in it
        eager = functools.partial(self._eager, args, kwargs, opaque)
        out, numbers = self._engine.run(tensors, self._names[text], text, eager)
        number = numbers.pop()
        structure = opaque[0][0] if opaque else self._structures[number]
        if structure is tree.TENSOR:
            return out[0]
        return tree.unflatten(structure, iter(out), iter(numbers))

    def _eager(self, args, kwargs, opaque):
        """The user's function as it is; recorded when the engine records."""
        opaque.clear()
        if _C.is_recording():
            with Recording(self._scout, (args, kwargs)):
                result = self._train_step(*args, **kwargs)
        elif _C.is_tracing():
            with Tracing():
                result = self._train_step(*args, **kwargs)
        else:
            result = self._train_step(*args, **kwargs)
        tensors, numbers = [], []
        structure = tree.flatten(result, tensors, numbers=numbers)
        if (what := tree.opaque(structure)) is not None:
            _C.report_obstacle(f"the step returns {what}, which is neither a tensor nor a nest of them")
            opaque.append((structure, result))
            return tensors, [*numbers, 0]
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
        traced, reason = self.stats["traced"], self._scout.python_reason()
        python = f"traced ({traced})" if traced else f"as configured, though {reason}" if reason else "watched"
        return f"{self._engine.report()}  python: {python}\n"

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

    def schedule_text(self) -> str:
        """What runs, in which order and on which memory, of the plan that ran last, as text; empty before."""
        return self._engine.schedule_text()

    def save_schedule(self, path: str | os.PathLike) -> None:
        """Writes schedule_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.schedule_text())
