"""What a checkpoint of an accelerated step has besides tensors: options of optimizers, schedulers, and objects that
save() was given."""

import dataclasses
import math
import os
from typing import Any

import torch

from stepc import _C, generators, plain
from stepc.host_state import beside_parameters, numbers_in

_FILE = "program_state.json"
_MODEL_FILES = ("config", "generation_config")  # of transformers' models


@dataclasses.dataclass(frozen=True)
class Loaded:
    """directory: of the checkpoint. step: the number that it was saved with. state: what save() was given, by name."""

    directory: str
    step: int
    state: dict[str, Any]


def save(engine, scout, directory, number, state):
    values = {name: one.state_dict() if hasattr(one, "state_dict") else one for name, one in state.items()}
    parts = {"optimizers": {path: _options_of(one) for path, one in scout.optimizers.items()},
             "schedulers": {path: one.state_dict() for path, one in scout.schedulers.items()}, "state": values,
             "generators": {path: generators.state_of(one) for path, one in scout.host_generators().items()}}
    texts = {part: plain.to_json(value, part) for part, value in parts.items()}
    text = "{" + ",\n".join(f'"{part}": {one}' for part, one in texts.items()) + "}\n"
    is_first = not engine.is_on_ranks() or engine.rank() == 0
    return engine.save(os.fspath(directory), number, {_FILE: text, **(_model_files(scout.modules) if is_first else {})})


def _read(engine, directory, objects):
    """Of rank 0, with what differs from rank to rank of this one: generators, and the states of what is given to load()."""
    saved = _parts_of(os.path.join(directory, _FILE))
    rank, count = (engine.rank(), math.prod(size for _, size in engine.mesh())) if engine.is_on_ranks() else (0, 1)
    own, last, behind = (os.path.join(directory, f"shard-{n:05}-{_FILE}") for n in (rank + 1, count, count + 1))
    if rank > 0 and os.path.exists(last) and not os.path.exists(behind):  # as many ranks as then
        read = _parts_of(own)
        saved["generators"] = read["generators"]
        saved["state"].update({name: read["state"][name] for name in objects if name in read["state"]})
    return saved


def _parts_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            read = {"generators": {}} | plain.from_json(file.read())  # older checkpoints have no generators
        return {part: dict(read[part]) for part in ("optimizers", "schedulers", "state", "generators")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise _C.UserError(f"{path} is damaged or missing: {type(error).__name__}: {error}") from None


def load(engine, scout, directory, objects):
    saved, known = {}, {}

    def accept(found):  # before anything changes
        saved.update(_read(engine, found, objects))
        _check(found, saved["state"], objects, "save() was given")
        known.update(scout.host_generators())
        for path, state in saved["generators"].items():
            if path not in known:
                raise _C.UserError(f"{found}: the program has no generator '{path}'; where its step makes that, call the step "
                                   "once before load()")
        _check(found, saved["optimizers"], scout.optimizers, "its step had the optimizers")
        _check(found, saved["schedulers"], scout.schedulers, "its step had the schedulers")
        for path, optimizer in scout.optimizers.items():
            if not _are_options(saved["optimizers"][path]):
                raise _C.UserError(f"{os.path.join(found, _FILE)} is damaged: what it has of '{path}' is not an optimizer's")
            groups = len(saved["optimizers"][path]["groups"])
            if groups != len(optimizer.param_groups):
                raise _C.UserError(f"{found}: '{path}' has {groups} groups of parameters, the program's has "
                                   f"{len(optimizer.param_groups)}")

    found, number = engine.load(os.fspath(directory), accept)
    for path, optimizer in scout.optimizers.items():
        _set_options(optimizer, saved["optimizers"][path])
    for path, scheduler in scout.schedulers.items():
        scheduler.load_state_dict(saved["schedulers"][path])
    for path, state in saved["generators"].items():
        generators.set_state(known[path], state)
    for name, one in objects.items():
        one.load_state_dict(saved["state"][name])
    return Loaded(found, number, saved["state"])


def _check(directory, saved, wanted, words):
    for name in wanted:
        if name not in saved:
            raise _C.UserError(f"{directory} has no '{name}': {words} {', '.join(saved) or 'none'}")


def _options_of(optimizer):
    """What it holds in numbers; its tensors are the engine's."""
    groups = [{name: one for name, one in group.items() if name != "params" and not isinstance(one, torch.Tensor)}
              for group in optimizer.param_groups]
    numbers = [numbers_in(optimizer.state.get(parameter, {})) for parameter in _parameters_of(optimizer)]
    own = numbers_in(beside_parameters(optimizer))
    return {"groups": groups, "numbers": numbers if any(numbers) else []} | ({"own": own} if own else {})


def _are_options(saved):
    """Whether this may be of _options_of()."""
    if not isinstance(saved, dict) or not isinstance(saved.get("own", {}), dict):
        return False
    lists = [saved.get("groups"), saved.get("numbers")]
    return all(isinstance(one, list) and all(isinstance(each, dict) for each in one) for one in lists)


def _set_options(optimizer, saved):
    for group, options in zip(optimizer.param_groups, saved["groups"]):
        group.update(options)
    for parameter, numbers in zip(_parameters_of(optimizer), saved["numbers"]):
        if numbers:
            optimizer.state[parameter].update(numbers)
    optimizer.state.update(saved.get("own", {}))


def _parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _model_files(modules):
    """Of one model of transformers, what from_pretrained() reads beside the weights."""
    if len(modules) != 1:
        return {}
    (model,) = modules.values()
    found = {name: getattr(model, name, None) for name in _MODEL_FILES}
    return {f"{name}.json": one.to_json_string() for name, one in found.items() if hasattr(one, "to_json_string")}
