"""A step on several ranks: the ranks, the mesh of the step, and access to its whole tensors."""

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterator

import torch

from stepc import _C

_PRESETS = {"ddp": {"dp_replicate": -1}, "fsdp": {"dp_shard": -1}, "auto": {"strategy": "auto"}}
_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_OPTIONS = {"strategy": str, "zero": int, "sequence_parallel": bool, "context": str, "reduce": str, "overlap": bool, "order": str,
            "chunks": int, "stages": list}
_ELASTIC = {"stall_seconds": (1, 86400), "check_every": (0, 1 << 40), "output_dir": None}  # with the bounds of numbers
_OF_RUNS = ("snapshot_every", "snapshot_copies", "rejoin_seconds")
_KINDS = {int: "a whole number", bool: "True or False", str: "a text", list: "a list of modules' names"}
_SECONDS_TO_TELL = 60  # the others that this rank ends by an exception
_EXAMPLE = 'such as {"dp_shard": 2, "tp": 2}'
_NAMED = {"shard": 'such as {"*.q_proj.weight": {0: "tp"}}', "batch_dims": 'such as {"x": 1}'}

_steps = weakref.WeakSet()  # that run on ranks


def check(config):
    """UserError for what says nothing of ranks; returns `parallel` as a dict, of this process alone an empty one where the
    step is cut into micro-batches, else None."""
    if config.batch not in ("local", "global"):
        raise _C.UserError(f'batch is "{config.batch}"; it is "local" or "global"')
    if config.loss_mean not in ("all", "ranks"):
        raise _C.UserError(f'loss_mean is "{config.loss_mean}"; it is "all" or "ranks"')
    chosen = config.parallel
    if chosen is None:
        for name, unset in (("shard", None), ("batch_dims", None), ("loss_mean", "all"), ("elastic", None)):
            if getattr(config, name) != unset:
                raise _C.UserError(f"{name} is given, and parallel is not: it says which ranks there are, {_EXAMPLE}")
        if config.micro_batches == 1:
            return None
        chosen = {}
    if isinstance(chosen, str):
        if chosen not in _PRESETS:
            raise _C.UserError(f'parallel is "{chosen}"; it is "ddp", "fsdp", "auto" or a dict, {_EXAMPLE}')
        chosen = _PRESETS[chosen]
    if not isinstance(chosen, dict):
        raise _C.UserError(f'parallel is {chosen!r}; it is "ddp", "fsdp", "auto" or a dict, {_EXAMPLE}')
    for name, value in chosen.items():
        if name not in _AXES and name not in _OPTIONS:
            raise _C.UserError(f"parallel has {name!r}; it has {', '.join((*_AXES, *_OPTIONS))}")
        if type(value) is not _OPTIONS.get(name, int):
            raise _C.UserError(f"parallel has {name} = {value!r}; it is {_KINDS[_OPTIONS.get(name, int)]}")
    if not all(isinstance(name, str) for name in chosen.get("stages", [])):
        raise _C.UserError(f'parallel has stages = {chosen["stages"]!r}; it is a list of modules\' names, such as ["layers.0", "layers.2"]')
    if chosen.get("strategy", "auto") != "auto":
        raise _C.UserError(f'parallel has strategy = "{chosen["strategy"]}"; it is "auto", or left out where the axes are given')
    _elastic(config)
    if config.shapes is not None:
        raise _C.UserError("shapes and parallel do not go together yet: pad batches to a few sizes")
    for name in ("shard", "batch_dims"):
        given = getattr(config, name)
        if given is not None and not (isinstance(given, dict) and all(isinstance(key, str) for key in given)):
            raise _C.UserError(f"{name} is {given!r}; it is a dict whose keys are names, {_NAMED[name]}")
    for pattern, dims in (config.shard or {}).items():
        if not isinstance(dims, dict) or not all(type(dim) is int and dim >= 0 and isinstance(axis, str)
                                                 for dim, axis in dims.items()):
            raise _C.UserError(f'shard has {pattern!r}: {dims!r}; it is a dimension and an axis, such as {{0: "tp"}}')
    for name, dim in (config.batch_dims or {}).items():
        if dim is not None and (type(dim) is not int or dim < 0):
            raise _C.UserError(f"batch_dims has {name!r}: {dim!r}; it is the dimension of its rows, or None for no rows")
    return chosen


def _elastic(config):
    """What `elastic` says, as the engine takes it; UserError for what it cannot say."""
    given = {} if config.elastic is None else config.elastic
    if not isinstance(given, dict):
        raise _C.UserError(f'elastic is {given!r}; it is a dict, such as {{"stall_seconds": 120, "output_dir": "out"}}')
    for name, value in given.items():
        if name in _OF_RUNS:
            raise _C.UserError(f"elastic has {name}, which is of `stepc train` alone; a step of your own goes on from what "
                               "step.save() has written")
        if name not in _ELASTIC:
            raise _C.UserError(f"elastic has {name!r}; it has {', '.join(_ELASTIC)}")
        if name == "output_dir":
            if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
                raise _C.UserError(f"elastic has output_dir = {value!r}; it is a path")
            continue
        least, most = _ELASTIC[name]
        is_number = type(value) is int or (name == "stall_seconds" and type(value) is float)
        if not is_number or not least <= value <= most:
            kind = "a number of seconds" if name == "stall_seconds" else "a number of calls"
            raise _C.UserError(f"elastic has {name} = {value!r}; it is {kind} from {least}" +
                               (f" to {most}" if name == "stall_seconds" else ""))
    return {name: os.path.abspath(value) if name == "output_dir" else value for name, value in given.items()}


def refuse_sharded(modules):
    """UserError for modules that something else has spread over ranks: whose parameters are DTensors."""
    of_torch = sys.modules.get("torch.distributed.tensor")  # while nobody has imported it there are none
    if of_torch is None:
        return
    for module in modules:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, of_torch.DTensor):
                raise _C.UserError(f"this {type(module).__name__} is sharded already ('{name}' is a DTensor, of fully_shard or a "
                                   "DistributedConfig, say), and stepc shards a model itself: make it whole on every rank, and "
                                   'give stepc.Config(parallel="fsdp") or (parallel={"dp_shard": 2, "tp": 2})')


def parallel_of(config):
    """The same as the engine takes it; None: the step is this process's alone."""
    chosen = check(config)
    if chosen is None:
        return None
    return {
        "axes": [(name, chosen[name]) for name in _AXES if name in chosen],
        "is_searched": "strategy" in chosen,
        "zero": chosen.get("zero", 0 if "strategy" in chosen else 3),
        "sequence_parallel": chosen.get("sequence_parallel", True),
        "means_by_rank": config.loss_mean == "ranks",
        "reduce": chosen.get("reduce", "float32"),
        "context": chosen.get("context", "auto"),
        "overlap": chosen.get("overlap", False),
        "micro_batches": config.micro_batches,
        "stages": chosen.get("stages", []),
        "order": chosen.get("order", "1f1b"),
        "chunks": chosen.get("chunks", 1),
        "shard": [(pattern, dict(dims)) for pattern, dims in (config.shard or {}).items()],
        "batch": config.batch,
        "batch_dims": dict(config.batch_dims or {}),
        "elastic": _elastic(config),
        "ranks": _ranks(_elastic(config)) if config.parallel is not None else _C.one_rank(),
    }


def _ranks(elastic):
    """The program's own group, if it has one; else that of whoever started the processes."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        group = _C.ranks_by(distributed.get_rank(), distributed.get_world_size(), store, elastic)
    else:
        group = _C.ranks(elastic)
    if group.size() > 1:
        _tell_of_exceptions(group)
    return group


@functools.cache
def _tell_of_exceptions(group):
    """A rank that an exception ends says so, in the next call that the others make together."""
    shown = sys.excepthook

    def show(kind, error, traceback):
        shown(kind, error, traceback)
        if issubclass(kind, Exception) and not _is_of_others(error):
            why = str(error).splitlines()
            words = f"{kind.__name__}: {why[0]}" if why else kind.__name__
            telling = threading.Thread(target=group.tell, args=(words,), daemon=True)
            telling.start()
            telling.join(_SECONDS_TO_TELL)

    sys.excepthook = show


def _is_of_others(error):
    """Whether it began with another rank's: what this one was at is left, and nobody waits to hear of it."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (_C.LostRank, _C.RankFailed)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def joined(step):
    """Remembers a step on ranks for full_parameters()."""
    _steps.add(step)


@contextlib.contextmanager
def full_parameters(*objects: torch.nn.Module | torch.optim.Optimizer, rank0_only: bool = False) -> Iterator[bool]:
    """Gives code whole tensors that the ranks hold in parts: for saving, sampling, inspection.

        with stepc.full_parameters(model, rank0_only=True) as is_here:
            if is_here:
                model.save_pretrained("out")

    Inside, modules have their parameters and buffers, and optimizers their state, gathered one tensor at a time. With
    `rank0_only` only rank 0 has them, and its changes are dropped. Otherwise every rank has them, and changes that all
    ranks make alike count. All ranks enter it together. Yields whether this rank has the values.
    """
    tensors = list({id(tensor): tensor for one in objects for tensor in _tensors_of(one)}.values())
    steps = sorted(_steps, key=lambda step: step.number)
    is_here = not rank0_only or all(step.rank() == 0 for step in steps)
    for step in steps:
        step.gather(tensors, is_here)
    try:
        yield is_here
    finally:
        for step in steps:
            step.scatter(tensors, not rank0_only)


@contextlib.contextmanager
def distributed_state(step) -> Iterator[dict[str, dict[str, torch.Tensor]]]:
    """The tensors of an accelerated step on ranks for torch.distributed.checkpoint to save and load, in a `with`.

        with stepc.distributed_state(step) as state:
            torch.distributed.checkpoint.save(state, checkpoint_id="out")    # or load()

    `state` has "model" and "optimizer": by name, DTensors on the memory that the ranks hold, so that loading changes
    the step. A tensor that a DTensor cannot describe (columns that are cut into heads) is whole inside the `with`. Each
    rank of a pipeline gives the tensors of its stage, and a stage of one rank gives plain tensors. Needs
    torch.distributed, and a step that was called. All ranks enter it together.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    engine = getattr(step, "_engine", None)
    if engine is None or not engine.is_on_ranks() or not engine.mesh():
        raise _C.UserError("distributed_state() takes a step on ranks, of accelerate(train_step, config=Config(parallel=...))")
    if not torch.distributed.is_initialized():
        raise _C.UserError("distributed_state() needs torch.distributed: call torch.distributed.init_process_group() at the "
                           "beginning of the program")
    held = engine.held_tensors()
    whole = [tensor for _, _, tensor, split, _, _ in held if split is None]
    sizes = dict(engine.mesh())
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if "pp" in sizes:
        of_stage = tuple(axis for axis in sizes if axis != "pp")
        mesh = mesh[of_stage] if of_stage else None
    engine.gather(whole, True)
    state = {"model": {}, "optimizer": {}}
    for name, is_of_model, tensor, split, own, is_of_stage in held:
        if not is_of_stage:
            continue
        if split is not None and mesh is None:
            tensor = own
        elif split is not None:
            placements = [Replicate() if dim < 0 else Shard(dim) for dim in split]
            contiguous = torch.empty(tensor.shape, device="meta").stride()
            tensor = DTensor.from_local(own, mesh, placements, run_check=False, shape=tensor.shape, stride=contiguous)
        state["model" if is_of_model else "optimizer"][name] = tensor
    try:
        yield state
    finally:
        engine.scatter(whole, True)


def _tensors_of(one):
    if isinstance(one, torch.nn.Module):
        yield from one.parameters()
        yield from one.buffers()
    elif isinstance(one, torch.optim.Optimizer):
        for group in one.param_groups:
            for parameter in group["params"]:
                yield from (value for value in one.state.get(parameter, {}).values() if isinstance(value, torch.Tensor))
    else:
        raise _C.UserError(f"full_parameters() takes modules and optimizers; this is a {type(one).__name__}")
