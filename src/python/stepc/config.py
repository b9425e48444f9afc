"""What a person may choose for an accelerated step."""

import dataclasses
import os

from stepc import _C, ranks
from stepc.shapes import Shapes

PRECISIONS = (None, "bf16", "fp8")
# What a field takes, for the error if it gets a value of another type.
TEXTS = {
    "mode": 'one of "fast", "exact", "eager"',
    "capture": '"run" or "virtual"',
    "python": 'one of "auto", "watch", "trace", "pure"',
    "pace": '"auto" or "off"',
    "verify": 'one of "first", "every:N", "always", "off"',
    "memory_budget": '"none", "auto" or a size such as "12GiB"',
    "fp8_recipe": '"tensorwise" or "rowwise"',
    "batch": '"local" or "global"',
    "kernel_directory": "a path",
}
WHOLE_NUMBERS = ("micro_batches", "max_plans", "max_recordings")
FLAGS = ("device_graphs", "device_kernels")


@dataclasses.dataclass(frozen=True)
class Config:
    """How a step is accelerated.

    mode: "fast" runs the step as one simplified graph with fused kernels, as accurate as eager; "exact" replays the
        recorded kernels, bit-equal to eager; "eager" runs the step eagerly.
    capture: "run" records the step while it runs, until two recordings agree; "virtual" captures it without executing
        anything, so that the first call already runs the plan and takes the plan's memory, not eager's.
    python: what happens to the step's Python at a replay. "watch": it does not run, and the values that it read are
        compared instead. "trace": it runs at every call, without kernels. "auto": watches if a recording has found that
        safe, because the Python only calls tensor operators, and traces all other steps; it traces every step on a
        CPython other than 3.11 to 3.13. "pure": you promise that the Python does nothing and reads nothing but its
        arguments, modules, optimizers and schedulers: it does not run, nothing is watched, and some calls check the
        promise. `report()` says which of these a step has and why.
    pace: "auto" gives a plan up if its replays take longer than eager; "off" never does.
    verify: which replays are compared with eager: "first" (of every plan), "every:N", "always" or "off".
    precision: "bf16" runs the modules' forward passes under autocast, whatever the dtype of their parameters: inside the
        step, or in calls of a loop's model that record gradients; "fp8" does so too, and linear layers of the plan
        multiply in float8, but an output layer and sizes that 16 does not divide (a CPU emulates it); None changes
        nothing.
    fp8_recipe: how precision "fp8" scales. "tensorwise": each tensor by its largest element, gradients as e5m2;
        "rowwise": each row or column that a product sums by its own, gradients as e4m3 too.
    memory_budget: what fast mode may hold at once, model and optimizer included. "12GiB" recomputes activations that do
        not fit in the backward pass; "auto" recomputes as long as that costs at most 8 % of the time, by the rates of
        calibrate(); "none" keeps all.
    kernel_directory: where generated kernels are kept between runs: None is $XDG_CACHE_HOME/stepc/kernels or
        ~/.cache/stepc/kernels, "" nowhere.
    shapes: the sizes that batches of a whole step are padded to, and compiled for within the first call; None: each
        length is compiled when it comes.
    parallel: spreads the step over ranks (docs/parallel.md): "ddp", "fsdp" or axes, such as {"dp_shard": 2, "tp": 2}; one
        axis may be -1 and takes the ranks that the others leave. "auto", or {"strategy": "auto", "tp": 2}, chooses the
        axes that are not given, and a pipeline's micro-batches, by plans of the step at its first call. The dict may also
        have `zero`, `sequence_parallel`, `context`, `reduce` and `overlap`. An axis `pp` is a pipeline, with `stages`
        (modules that they begin with), `order` and `chunks` beside it.
    micro_batches: into how many parts a step cuts its rows, to run one after the other, as many as a pipeline needs. The
        numbers are those of all rows, and less is held at once.
    batch: what each rank gives: "local", rows of its own, as under DDP; "global", the whole batch, equal on all ranks.
    batch_dims: which dimension of a tensor of the batch its rows are, {"name": 1}; None: it has no rows. By default the
        first dimension, if it is as long as the first tensor's rows.
    loss_mean: the rows of a mean that the step computes. "all": those of all ranks, as on one process. "ranks": a rank's
        own, and losses and gradients are then the means over the ranks, as under DDP. The two differ if the means of the
        ranks have different counts, such as the tokens that count.
    shard: parameters to split differently than stepc finds: {"*.q_proj.weight": {0: "tp"}}.
    elastic: what happens when ranks are lost (docs/elastic.md), a dict. `stall_seconds` (600), one for all steps of the
        process: how long ranks wait for one that does not answer, before they end with a line that names it; set more if
        one rank has longer work of its own, such as an evaluation on rank 0 alone. `output_dir`: where ranks leave what
        they did last, for `stepc blame`; by default the directory of save(). `check_every`: the number of training calls
        between comparisons of what several ranks hold alike; they also compare before every save().
    device_graphs: on a device, calls that need nothing from the host become one launch (docs/gpu.md).
    device_kernels: on CUDA, fast mode runs stepc's own kernels, which have never run in steps on a GPU; without it the
        recorded calls (docs/gpu.md).
    max_plans: signatures (shapes, flags, settings) whose plans are kept, and plans of one signature.
    max_recordings: recordings of one signature without a plan, before it stays eager.
    """

    mode: str = "fast"
    capture: str = "run"
    python: str = "auto"
    pace: str = "auto"
    verify: str = "first"
    precision: str | None = None
    fp8_recipe: str = "tensorwise"
    memory_budget: str = "none"
    kernel_directory: str | os.PathLike | None = None
    shapes: Shapes | None = None
    parallel: str | dict[str, int | str] | None = None
    micro_batches: int = 1
    batch: str = "local"
    batch_dims: dict[str, int | None] | None = None
    loss_mean: str = "all"
    shard: dict[str, dict[int, str]] | None = None
    elastic: dict[str, float | int | str | os.PathLike] | None = None
    device_graphs: bool = True
    device_kernels: bool = False
    max_plans: int = 8
    max_recordings: int = 6

    def __post_init__(self):
        if self.kernel_directory is None:
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
            object.__setattr__(self, "kernel_directory", os.path.join(cache, "stepc", "kernels"))
        elif isinstance(self.kernel_directory, os.PathLike):
            object.__setattr__(self, "kernel_directory", os.fspath(self.kernel_directory))
        for name, takes in TEXTS.items():
            if not isinstance(value := getattr(self, name), str):
                raise _C.UserError(f"{name} is {value!r}; it is {takes}")
        for name in WHOLE_NUMBERS:
            if type(value := getattr(self, name)) is not int:
                raise _C.UserError(f"{name} is {value!r}; it is a whole number")
        for name in FLAGS:
            if type(value := getattr(self, name)) is not bool:
                raise _C.UserError(f"{name} is {value!r}; it is True or False")
        if self.shapes is not None and not isinstance(self.shapes, Shapes):
            raise _C.UserError(f'shapes is {self.shapes!r}; it is a stepc.Shapes, such as '
                               'stepc.Shapes({"input_ids": (1, 0)}, sizes=[128, 256])')
        ranks.check(self)
        if self.precision not in PRECISIONS:
            raise _C.UserError(f'precision is {self.precision!r}; it is "bf16", "fp8" or None')
        _C.check_config(self)
