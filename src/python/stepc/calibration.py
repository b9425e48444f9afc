"""Measuring this machine, so that step times can be predicted."""

import os

from stepc import _C
from stepc.config import Config


def calibrate(config: Config | None = None, rounds: int = 3) -> str:
    """Measures this machine in under a minute and keeps the result beside the generated kernels, like `stepc
    calibrate`. Predictions of steps with the same number of threads then use it: `step.predicted_seconds`,
    `step.report()` and `step.profile()`. Without it they use a default. Only the plans of memory_budget="auto" depend
    on it.

    Returns the rates as a table. `config` gives the kernel_directory; by default the usual one. `rounds` is how often
    everything is measured, about ten seconds each; the shortest time counts.
    """
    return _C.calibrate(os.fspath((config or Config()).kernel_directory), rounds)
