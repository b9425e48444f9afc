"""step.profile(): the time of each instruction of a replayed step."""

import os

from typing import Any

from stepc import _C


class Profile:
    """The time of each instruction of a replayed step, beside its prediction for this machine.

    Made by step.profile(), used in a with block around calls of the step; the last call of the block counts. Afterwards
    str() is a table by kind and by module, and save() writes a trace that ui.perfetto.dev opens.
    """

    def __init__(self, engine: Any, path: str | os.PathLike | None):
        self._engine = engine
        self._path = path
        self._text = self._events = None

    def __enter__(self) -> "Profile":
        self._engine.start_profile()
        return self

    def __exit__(self, kind, error, trace) -> None:
        found = self._engine.finish_profile()
        if kind is not None:
            return
        if found is None:
            raise _C.UserError(
                "no call in the profile's block was replayed: the first calls of a step are recorded, and some steps run "
                "eagerly for good; step.stats['replays'] says when replays have begun, step.report() why not"
            )
        self._text, self._events = found
        if self._path is not None:
            self.save(self._path)

    def __str__(self) -> str:
        return self._text or "nothing is profiled yet"

    def save(self, path: str | os.PathLike) -> None:
        """Writes the trace: instructions as they ran, and with their predicted times, as two tracks."""
        if self._events is None:
            raise _C.UserError("nothing is profiled yet: call the step in a with block of step.profile()")
        _C.write_file(os.fspath(path), self._events)
