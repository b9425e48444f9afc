"""Everything that a step function can reach: its closure, `self`, the globals in its code, and what those hold."""

import collections
import functools
import gc
import types

import torch

from stepc.watch import bare

_OPAQUE = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType)
_SHIFTING = (set, frozenset, collections.deque)  # their elements have no place that can be read again
_MAX_OBJECTS = 200_000
_MAX_LENGTH = 10_000


def functions_of(step):
    """The plain functions behind a callable, and the objects bound to them."""
    if isinstance(step, functools.partial):
        functions, bound = functions_of(step.func)
        return functions, bound + list(step.args) + list(step.keywords.values())
    if isinstance(step, types.MethodType):
        return [step.__func__], [step.__self__]
    if isinstance(step, types.FunctionType):
        return [step], []
    call = getattr(type(step), "__call__", None)
    return ([call] if isinstance(call, types.FunctionType) else []), [step]


def _global_names(code):
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _is_users(value):
    library = ("torch", "transformers", "stepc", "accelerate")
    return isinstance(value, types.FunctionType) and (value.__module__ or "").split(".")[0] not in library


def _of_function(function):
    """(container, name, value) for everything that a function's code can name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield cell, name, cell.cell_contents
        except ValueError:
            continue
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield function.__globals__, name, function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield function.__defaults__, index, value
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield function.__dict__, "__wrapped__", wrapped


def _children(value, in_place=False):
    if in_place and isinstance(value, _SHIFTING):
        return
    if (type(value).__module__ or "").partition(".")[0] == "stepc":
        return  # code that accelerates other parts of the program is not part of the step
    if isinstance(value, dict):
        if bare.length(value) <= _MAX_LENGTH:
            for key, item in bare.items(value):
                yield value, key, item
    elif isinstance(value, (list, tuple)):
        if bare.length(value) <= _MAX_LENGTH:
            for index, item in enumerate(bare.entries(value)):
                yield value, index, item
    elif isinstance(value, _SHIFTING):
        for item in bare.entries(value)[:_MAX_LENGTH]:
            yield None, None, item
    elif isinstance(value, types.FunctionType):
        if _is_users(value):
            yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield None, None, value.__func__
        yield None, None, value.__self__
    elif isinstance(value, functools.partial):
        for item in functions_of(value)[0] + functions_of(value)[1]:
            yield None, None, item
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for name in list(attributes):
                yield attributes, name, attributes[name]
        for kind in type(value).__mro__:
            for name in getattr(kind, "__slots__", ()) or ():
                if isinstance(name, str) and name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield value, name, getattr(value, name)


def _is_known(value):
    """Whether its type can be asked safely: a proxy asks its target, which may not exist."""
    try:
        isinstance(value, dict)
    except Exception:
        return False
    return True


def _is_entered(value, skip):
    return not isinstance(value, (torch.Tensor, torch.Generator, torch.dtype, torch.device, *_OPAQUE, *skip))


def _within(value, skip, in_place):
    """The _children() of a value that is entered; empty if the object's own class raises."""
    try:
        return list(_children(value, in_place)) if _is_entered(value, skip) else []
    except Exception:
        return []


def reachable(step, skip=(), in_place=False):
    """Yields (container, name, value, path) for everything reachable from `step`, each object once, breadth first.

    Tensors and objects of the types `skip` are yielded and not entered. `in_place`: neither are objects whose contents
    have no place of their own.
    """
    functions, bound = functions_of(step)
    queue = collections.deque()
    for function in functions:
        for container, name, value in _of_function(function):
            queue.append((container, name, value, str(name)))
    for value in bound:
        queue.append((None, None, value, "self"))
    seen = set()
    while queue and len(seen) < _MAX_OBJECTS:
        container, name, value, path = queue.popleft()
        if issubclass(type(value), (int, float, str)) or value is None:
            yield container, name, value, path
            continue
        if id(value) in seen or not _is_known(value):
            continue
        seen.add(id(value))
        yield container, name, value, path
        for number, (inner, key, child) in enumerate(_within(value, skip, in_place)):
            if isinstance(key, str):
                queue.append((inner, key, child, f"{path}.{key}"))
            else:
                queue.append((inner, key, child, f"{path}[{key if isinstance(key, int) else number}]"))


def _referrers_of(objects, but):
    """By id: the referrers of each object, from one scan of everything that the collector knows."""
    found = {id(one): [] for one in objects}
    hidden = {id(objects), *map(id, but)}
    for referrer in bare.referrers_of(objects):
        if id(referrer) not in hidden:
            for child in {id(child) for child in gc.get_referents(referrer)} & found.keys():
                found[child].append(referrer)
    return found


def holders_of(tensors, but=()):
    """For each tensor the (container, name) of a dict, list or cell anywhere in the process that holds it, or None.

    Leaves out the lists `but`, references that only running code has, which end when it returns, and what comes and
    goes: the contents of a queue.
    """
    hidden = [tensors, *but]
    referrers = _referrers_of(tensors, hidden)
    containers = [one for found in referrers.values() for one in found if not isinstance(one, types.FrameType)]
    hidden += [containers, *referrers.values()]
    holders = _referrers_of(containers, hidden)
    plain = (tuple, list, dict, types.FrameType)
    objects = [one for found in holders.values() for one in found if not isinstance(one, plain)]
    hidden += [objects, *holders.values()]
    outer = _referrers_of(objects, hidden)

    def stays(container):
        around = holders[id(container)]
        if all(isinstance(one, types.FrameType) for one in around):
            return False
        return not any(isinstance(one, _SHIFTING) for held in around for one in (held, *outer.get(id(held), ())))

    def place_of(tensor):
        for container in referrers[id(tensor)]:
            if isinstance(container, types.FrameType) or not stays(container):
                continue
            if isinstance(container, dict):
                for key, value in bare.items(container):
                    if value is tensor:
                        return container, key
            elif isinstance(container, (list, tuple)):
                for index, value in enumerate(bare.entries(container)):
                    if value is tensor:
                        return container, index
            elif isinstance(container, types.CellType):
                return container, "cell"
        return None

    return [place_of(tensor) for tensor in tensors]
