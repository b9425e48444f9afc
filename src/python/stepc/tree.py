"""Arguments and results as flat lists of leaves and a hashable structure, and back.

Covers lists, tuples, named tuples, dicts, mappings such as transformers' outputs and encodings, and dataclasses; what
is none of these and no tensor is a constant.
"""

import collections
import dataclasses
from collections.abc import Mapping

import torch

TENSOR = "tensor"
NUMBER = "number"


def flatten(value, leaves, names=None, path="", numbers=None):
    """Appends the tensors of `value` to `leaves` and its structure is returned.

    With `numbers` (a list) int, float and bool leaves are appended there; else they are constants of the structure.
    """
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        leaves.append(value)
        if names is not None:
            names.append(path or "batch")
        return TENSOR
    if numbers is not None and issubclass(kind, (bool, int, float)):
        numbers.append(value if kind is bool else (int if issubclass(kind, int) else float)(value))
        return NUMBER
    if kind is dict or isinstance(value, Mapping):
        items = tuple(
            (key, flatten(item, leaves, names, f"{path}.{key}" if path else str(key), numbers))
            for key, item in value.items()
        )
        return ("mapping", kind, items)
    if kind in (list, tuple) or isinstance(value, (list, tuple)):
        items = tuple(
            flatten(item, leaves, names, f"{path}[{index}]" if names is not None else "", numbers)
            for index, item in enumerate(value)
        )
        return ("sequence", kind, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = tuple(
            (name, flatten(getattr(value, name), leaves, names, f"{path}.{name}", numbers))
            for name in _attributes_of(value)
        )
        return ("dataclass", kind, items)
    return ("constant", _Constant(value))


def unflatten(structure, leaves, numbers):
    """Builds the value again from iterators over its tensors and numbers."""
    if structure is TENSOR:
        return next(leaves)
    if structure is NUMBER:
        return next(numbers)
    if structure[0] == "constant":
        return structure[1].value
    _, kind, items = structure
    if structure[0] == "sequence":
        values = [unflatten(item, leaves, numbers) for item in items]
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    values = {name: unflatten(item, leaves, numbers) for name, item in items}
    if structure[0] == "dataclass":
        return _of_attributes(kind, values)
    if kind is dict:
        return values
    if kind is collections.OrderedDict or issubclass(kind, collections.UserDict):
        return kind(values)
    return kind(**values)


def _attributes_of(value):
    """The fields of a dataclass that have a value, and what its objects hold besides."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return names + [name for name in getattr(value, "__dict__", ()) if name not in names]


def _of_attributes(kind, values):
    """An object as it was, without its constructor: that would take no field with init=False, and compute anew."""
    new = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


class _Constant:
    """A leaf that is no tensor, equal to its equals: by value where that is hashable, else by identity."""

    __slots__ = ("value", "key")

    def __init__(self, value):
        self.value = value
        try:
            self.key = (type(value), value, hash(value))
        except TypeError:
            self.key = (type(value), id(value))

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        # A float is itself bit by bit: 0.0 is not -0.0.
        return isinstance(other, _Constant) and self.key == other.key and repr(self.value) == repr(other.value)

    def __repr__(self):
        return repr(self.value)


def describe(structure):
    """The constants of a structure in words, for log lines."""
    found = []

    def visit(part, path):
        if part is TENSOR or part is NUMBER:
            return
        if part[0] == "constant":
            found.append(f"{path}={part[1]!r}" if path else repr(part[1]))
        elif part[0] == "sequence":
            for index, item in enumerate(part[2]):
                visit(item, f"{path}[{index}]")
        else:
            for name, item in part[2]:
                visit(item, f"{path}.{name}" if path else str(name))

    visit(structure, "")
    return ", ".join(found)[:200]
