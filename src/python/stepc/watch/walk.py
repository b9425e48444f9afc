"""What a step function can reach: its closure, `self`, the globals that its code names, and what those hold."""

import collections
import functools
import gc
import types

import torch

_OPAQUE = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType)
_SHIFTING = (set, frozenset, collections.deque)  # what is in them stands at no place that can be read again
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
    """(container, name, value) of everything that a function's code can name."""
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
        return  # what accelerates other parts of the program is none of it
    if isinstance(value, dict):
        if len(value) <= _MAX_LENGTH:
            for key in list(value):
                yield value, key, value[key]
    elif isinstance(value, (list, tuple)):
        if len(value) <= _MAX_LENGTH:
            for index, item in enumerate(value):
                yield value, index, item
    elif isinstance(value, _SHIFTING):
        for item in list(value)[:_MAX_LENGTH]:
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


def reachable(step, skip=(), in_place=False):
    """Yields (container, name, value, path) for everything reachable from `step`, each object once, breadth first.

    Tensors and objects of the types `skip` are yielded and not entered. `in_place`: nor what has no place of its own.
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
        if isinstance(value, (int, float, bool, str)) or value is None:
            yield container, name, value, path
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield container, name, value, path
        if isinstance(value, (torch.Tensor, torch.Generator, torch.dtype, torch.device)) or isinstance(value, skip):
            continue
        if isinstance(value, _OPAQUE):
            continue
        for number, (inner, key, child) in enumerate(_children(value, in_place)):
            if isinstance(key, str):
                queue.append((inner, key, child, f"{path}.{key}"))
            else:
                queue.append((inner, key, child, f"{path}[{key if isinstance(key, int) else number}]"))


def _is_shifting(holders):
    """Whether what they hold, or an object whose attributes it is, comes and goes: a queue of records."""
    objects = [one for one in holders if not isinstance(one, (tuple, list, dict, types.FrameType))]
    if any(isinstance(one, _SHIFTING) for one in objects):
        return True
    return any(isinstance(outer, _SHIFTING) for one in objects for outer in gc.get_referrers(one))


def holder_of(tensor, but=()):
    """(container, name) of a dict, list or cell anywhere in the process that holds `tensor`, or None.

    Not the list `but`, and nothing that only running code refers to: that is gone when it returns.
    """
    referrers = gc.get_referrers(tensor)
    for referrer in referrers:
        if isinstance(referrer, types.FrameType) or referrer is but:
            continue
        holders = [one for one in gc.get_referrers(referrer) if one is not referrers]
        if all(isinstance(one, types.FrameType) for one in holders) or _is_shifting(holders):
            continue
        if isinstance(referrer, dict):
            for key, value in list(referrer.items()):
                if value is tensor:
                    return referrer, key
        elif isinstance(referrer, (list, tuple)):
            for index, value in enumerate(referrer):
                if value is tensor:
                    return referrer, index
        elif isinstance(referrer, types.CellType):
            return referrer, "cell"
    return None
