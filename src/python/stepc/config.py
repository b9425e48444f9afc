"""What a person may choose for an accelerated step."""

import dataclasses
import os

from stepc import _C

PRECISIONS = (None, "bf16")


@dataclasses.dataclass(frozen=True)
class Config:
    """How a step is accelerated.

    mode: "fast" runs the step as one simplified graph with fused kernels, as accurate as eager; "exact" replays the
        recorded kernels, bit-equal to eager; "eager" runs the step as it is.
    capture: "run" records the step while it runs, until two recordings agree; "virtual" captures it without executing
        anything, so that the first call runs the plan already and takes the plan's memory, not eager's.
    verify: which replays are compared with eager: "first" (of every plan), "every:N", "always" or "off".
    precision: "bf16" runs the modules' forward passes under autocast, whatever their parameters are, inside the step or
        where a loop's model records gradients; None changes nothing.
    memory_budget: what fast mode may hold at once, model and optimizer included: "12GiB" makes activations again in
        the backward pass where they do not fit; "auto" as long as that costs at most 8 % of the time; "none" keeps all.
    kernel_directory: where generated kernels are kept between runs: None is $XDG_CACHE_HOME/stepc/kernels or
        ~/.cache/stepc/kernels, "" nowhere.
    max_plans: signatures (shapes, flags, settings) whose plans are kept, and plans of one signature.
    max_recordings: recordings of one signature without a plan before it stays eager.
    """

    mode: str = "fast"
    capture: str = "run"
    verify: str = "first"
    precision: str | None = None
    memory_budget: str = "none"
    kernel_directory: str | None = None
    max_plans: int = 8
    max_recordings: int = 6

    def __post_init__(self):
        if self.kernel_directory is None:
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
            object.__setattr__(self, "kernel_directory", os.path.join(cache, "stepc", "kernels"))
        _C.check_config(self)
        if self.precision not in PRECISIONS:
            raise _C.UserError(f'precision is "{self.precision}"; it is "bf16" or None')
