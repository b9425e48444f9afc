"""The contents of containers, by the interpreter's own methods.

A subclass in the program may answer differently, load entries on request, count requests, or raise.
"""

import collections
import gc
import types

_NATIVE = (types.WrapperDescriptorType, types.MethodDescriptorType)
_PLAIN = {dict, list, tuple, set, frozenset, collections.deque}  # most containers are of these classes


def method(container, name):
    """The built-in method, bound to a dict, list, tuple, set, deque or a view of a dict."""
    for kind in type(container).__mro__:
        if isinstance(found := vars(kind).get(name), _NATIVE):
            return found.__get__(container)
    raise TypeError(f"{type(container).__name__} has no {name}() but in Python")


def length(container):
    if type(container) in _PLAIN:
        return len(container)
    return method(container, "__len__")()


def entries(container):
    """The elements of a sequence or a set; the keys of a dict."""
    return list(container) if type(container) in _PLAIN else list(method(container, "__iter__")())


def items(mapping):
    return list(mapping.items()) if type(mapping) is dict else list(method(mapping, "items")())


def values(mapping):
    return list(method(mapping, "values")())


def referrers_of(objects):
    """All objects known to the collector that refer to one of these, without the caller's own; CPython 3.13 counts a
    call's arguments."""
    asked = tuple(objects)
    return [one for one in gc.get_referrers(*asked) if one is not asked] if asked else []
