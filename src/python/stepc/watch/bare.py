"""The contents of containers, by the interpreter's own methods.

A class of the program may answer differently, load what it is asked for, count how often it is asked, or raise.
"""

import collections
import gc
import types

_NATIVE = (types.WrapperDescriptorType, types.MethodDescriptorType)
_PLAIN = {dict, list, tuple, set, frozenset, collections.deque}  # most are of these


def method(container, name):
    """The one that is not written in Python, bound to a dict, list, tuple, set, deque or a view of a dict."""
    for kind in type(container).__mro__:
        if isinstance(found := vars(kind).get(name), _NATIVE):
            return found.__get__(container)
    raise TypeError(f"{type(container).__name__} has no {name}() but in Python")


def length(container):
    if type(container) in _PLAIN:
        return len(container)
    return method(container, "__len__")()


def entries(container):
    """Of a sequence or a set, its elements; of a dict, its keys."""
    return list(container) if type(container) in _PLAIN else list(method(container, "__iter__")())


def items(mapping):
    return list(mapping.items()) if type(mapping) is dict else list(method(mapping, "items")())


def values(mapping):
    return list(method(mapping, "values")())


def referrers_of(objects):
    """All that the collector knows to refer to one of them, but for what asks: CPython 3.13 counts a call's arguments."""
    asked = tuple(objects)
    return [one for one in gc.get_referrers(*asked) if one is not asked] if asked else []
