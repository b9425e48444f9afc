"""Planning without running: plan(), and models that hold no memory until materialise()."""

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from stepc import _C, around, tree, virtual_cuda
from stepc.door import Modules, Optimizers, _named
from stepc.recording import Recording
from stepc.scout import Scout

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_here = threading.local()  # `left`: its region that showed a GPU and is over


class Plan:
    """A step that was captured without being run.

    `obstacle` says why the step would run eagerly, and is empty if it can be replayed.
    """

    def __init__(self, plan):
        self._plan = plan

    @property
    def obstacle(self) -> str:
        return self._plan.obstacle

    @property
    def stats(self) -> dict[str, Any]:
        """Calls, parameters and bytes: a dict."""
        return self._plan.stats()

    def graph_text(self) -> str:
        """The captured step as text: as Accelerated.graph_text(), without allocations."""
        return self._plan.graph_text()

    def save_graph(self, path: str | os.PathLike) -> None:
        """Writes graph_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.graph_text())

    def report(self) -> str:
        """The plan in words."""
        return self._plan.report()

    def plan_for(self, target: str | os.PathLike | None = None, mode: str = "fast") -> _C.TargetPlan:
        """The step on a machine that need not be here: as Accelerated.plan_for().

        `target`: the card of virtual(device="cuda") where it is left out. `mode`: "fast", as stepc would run it, or
        "exact", with eager's choices: the captured calls, each one kernel.
        """
        target = target or virtual_cuda.target()
        if target is None:
            raise _C.UserError('plan_for() takes a target: "h100", say')
        if mode not in ("fast", "exact"):
            raise _C.UserError(f'mode: must be "fast" or "exact", found "{mode}"')
        return self._plan.plan_for(os.fspath(target), mode == "exact")


def plan(
    train_step: Callable[..., Any],
    *batch: Any,
    modules: Modules | None = None,
    optimizers: Optimizers | None = None,
) -> Plan:
    """Captures train_step(*batch) without running its kernels and without its memory.

    Tensors in `batch` keep their values, so masks and positions are computed from them. Model, optimizer, generators
    and everything else that the step can reach are unchanged afterwards. Models built inside virtual() hold no memory,
    so they may be larger than the machine. A step that needs a value that was never computed ends with UserError.
    """
    if not callable(train_step) or isinstance(train_step, torch.nn.Module):
        raise _C.UserError(f"plan() takes a training step, a function; this is a {type(train_step).__name__}")
    scout = Scout(train_step, _named(modules, "module"), _named(optimizers, "optimizer"))
    leaves = []
    tree.flatten(batch, leaves)

    def step():
        with Recording(scout):
            result = train_step(*batch)
        tensors, numbers = [], []
        tree.flatten(result, tensors, numbers=numbers)
        return tensors, numbers + [0]  # the number of the result's structure, as an accelerated step has it

    with _explained():
        return Plan(_C.plan(scout, leaves, step))


class virtual:
    """A region in which tensors have sizes but no memory, except small ones.

        with stepc.virtual():
            model = LlamaForCausalLM(config)

    The model can be planned directly; materialise() gives it memory and values.

    With device="cuda" a program that trains on a GPU is planned where there is none: torch finds one, the card
    `target`, and what is made there or moved there has sizes alone. That lasts for the life of the process; after the
    region what is there can be planned, and nothing runs.

        with stepc.virtual(device="cuda", target="h100"):
            model = LlamaForCausalLM(config).to("cuda")
            plan = stepc.plan(train_step, batch)
        print(plan.plan_for().report())
    """

    def __init__(self, device: str | torch.device = "cpu", target: str = "h100"):
        if str(device) not in ("cpu", "cuda", "cuda:0"):
            raise _C.UserError(f'virtual(): device: must be "cpu" or "cuda", found "{device}"')
        self._target = None if str(device) == "cpu" else target

    def __enter__(self):
        if self._target is not None:
            virtual_cuda.show(self._target)
        self._region, _here.left = getattr(_here, "left", None) or _C.VirtualRegion(), None
        self._region.refuse(False)
        return self

    def __exit__(self, kind, error, trace):
        if virtual_cuda.target() is None:
            self._region.close()
        else:
            self._region.refuse(True)
            _here.left = self._region
        if error is not None:
            _explain(error)
        return False


def materialise(module: torch.nn.Module, weights: dict[str, torch.Tensor] | str | os.PathLike | None = None) -> torch.nn.Module:
    """Gives a module that was built inside virtual() its memory and values, one tensor at a time.

    `weights` is a dict of tensors by state-dict name or the path of a safetensors file. Each tensor is copied, and a
    tied tensor may be given once. Without `weights` every part's own initialiser runs: `reset_parameters()`, and the
    `_init_weights()` of a transformers model. Tensors that already have memory are overwritten too. Returns the module.
    """
    if weights is None:
        _initialise(module)
    elif isinstance(weights, (str, os.PathLike)):
        import safetensors

        with safetensors.safe_open(weights, framework="pt") as file:
            _load(module, set(file.keys()), file.get_tensor)
    else:
        _load(module, set(weights), weights.__getitem__)
    return module


def _tensors(module):
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _load(module, names, get):
    given, loaded = set(), set()
    for name, tensor in _tensors(module):
        if name not in names:
            continue
        given.add(name)
        value = get(name)
        if value.shape != tensor.shape:
            raise _C.UserError(f"the weights' '{name}' is {list(value.shape)}, the module's {list(tensor.shape)}")
        _C.materialise(tensor)
        with torch.no_grad():
            tensor.copy_(value)
        loaded.add(tensor.untyped_storage()._cdata)
    unknown = sorted(names - given)
    if unknown:
        raise _C.UserError(f"the module has no tensor '{unknown[0]}' ({len(unknown)} unknown names in the weights)")
    persistent = module.state_dict(keep_vars=True)
    for name, tensor in _tensors(module):
        missing = name in persistent and tensor.untyped_storage()._cdata not in loaded
        if missing or _C.is_virtual(tensor):
            raise _C.UserError(f"the weights have no tensor '{name}'")


def _initialise(module):
    owners = [(path, part) for path, part in module.named_modules() if hasattr(part, "_init_weights")]
    for path, part in module.named_modules():
        own = [*part._parameters.items(), *part._buffers.items()]
        fresh = {f"{path}.{name}".lstrip("."): tensor for name, tensor in own if tensor is not None}
        fresh = {name: tensor for name, tensor in fresh.items() if _C.is_virtual(tensor)}
        for tensor in fresh.values():
            _C.materialise(tensor)
            _mark(tensor)
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
        inner = [owner for above, owner in owners if path == above or not above or path.startswith(above + ".")]
        with torch.no_grad():
            for owner in inner[-1:]:
                owner._init_weights(part)
        for name, tensor in fresh.items():
            if _is_marked(tensor):
                raise _C.UserError(f"'{name}' of {type(part).__name__} has no initialiser: give materialise() weights")


def _mark(tensor):
    """Fills memory with what no initialiser writes."""
    with torch.no_grad():
        tensor.fill_(_mark_of(tensor.dtype))


def _is_marked(tensor):
    last = tensor.detach().reshape(-1)[-1]
    return bool(last != last or last == _mark_of(tensor.dtype))


def _mark_of(dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).min


# ---- errors


class _explained:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            _explain(error)
        return False


def _explain(error):
    """Raises UserError with the user's line in place of an error about values that do not exist."""
    text = str(error)
    if isinstance(error, _C.UserError) or not around.is_of_virtual(text):
        return
    line = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith((_HERE, _TORCH)):
            line = f" (at {os.path.basename(path)}:{trace.tb_lineno})"
        trace = trace.tb_next
    raise _C.UserError(text.splitlines()[0] + line) from error


# ---- putting back
