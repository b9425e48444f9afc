"""Measuring this machine, so that step times can be predicted."""

import os

from stepc import _C
from stepc.config import Config


def calibrate(config: Config | None = None, rounds: int = 3) -> str:
    """Measures this machine in under a minute and keeps the result beside the generated kernels; `stepc calibrate` does
    the same. Predictions of steps with as many threads use it from then on: `step.predicted_seconds`, `step.report()`
    and `step.profile()`. Until then they are made from a default. Of what runs the plans of
    memory_budget="auto" depend on it, nothing else.

    Returns the rates as a table. `config`: whose kernel_directory; by default the usual one. `rounds`: how often everything
    is measured, about ten seconds each; the shortest time counts.
    """
    return _C.calibrate(os.fspath((config or Config()).kernel_directory), rounds)
