"""Arguments and results as flat lists of leaves and a hashable structure, and back.

Covers lists, tuples, named tuples, dicts, mappings such as transformers' outputs and encodings, dataclasses, objects
among the arguments that hold tensors (batches of graph libraries), and objects in a model's results to which nothing
else refers (caches of keys and values). Any other value that is not a tensor is a constant.
"""

import collections
import dataclasses
import enum
import gc
import sys
import types
import weakref
from collections.abc import Mapping

import numpy
import torch
import torch.utils.data

TENSOR = "tensor"
NUMBER = "number"
ABSENT = "absent"  # an attribute that the step reads

# Constants that equal their text and hold nothing.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), slice, range, enum.Enum)
_PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format, type)


# Not taken apart: they belong to the program, or their contents do not matter.
_NO_RECORDS = _PLAIN + (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_NO_RECORDS += (torch.Generator, torch.utils.data.Dataset, torch.utils.data.Sampler, torch.utils.data.DataLoader, type)
_NO_RECORDS += (numpy.ndarray, numpy.generic, types.FunctionType, types.ModuleType)
# In the flags of a class: Python code may neither change the class nor give its objects another one. So it is for classes of
# C, of which CPython 3.12 and later make some on the heap.
IMMUTABLE = 1 << 8
_ALL = object()
# Beyond these limits an object is a constant, distinguished by its identity.
_DEEPEST = 20
_MOST_OBJECTS = 1000
_MOST_HELD = 100_000
_LONGEST_WORDS = 100  # of the text for constants


class Attributes:
    """How the objects among a step's arguments are taken apart.

    Tensors in them are inputs. Attributes that the step reads are part of the structure; recordings find out which
    these are.
    """

    def __init__(self, all_count=False):
        self._read = {}  # class -> names
        self._of_others = (_ALL,) if all_count else ()
        self._open = []  # ids of objects that are being taken apart now
        self._looked_at = 0
        self.apart = set()  # ids of objects of the last arguments that were

    def add(self, kind, name):
        """The step reads this attribute of objects of the class; None: it may read any."""
        self._read.setdefault(kind, set()).add(_ALL if name is None else name)

    def of(self, kind):
        return self._read.get(kind, self._of_others)

    def begin(self):
        self.apart.clear()
        self._looked_at = 0
        return self

    def enter(self, value):
        """The attributes of the object; None: it is not taken apart."""
        if len(self._open) == _DEEPEST or self._looked_at == _MOST_OBJECTS or id(value) in self._open:
            return None
        held = attributes_of(value)
        if held is not None:
            self._looked_at += 1
            self._open.append(id(value))
        return held

    def leave(self, has_tensors):
        one = self._open.pop()
        if has_tensors:
            self.apart.add(one)


def flatten(value, leaves, names=None, path="", numbers=None, attributes=None):
    """Appends the tensors of `value` to `leaves` and returns its structure, which includes the names of the tensors'
    attributes.

    With `numbers` (a list) int, float and bool leaves are appended there; otherwise they are constants of the
    structure. With `attributes` objects that hold tensors are taken apart.
    """
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        leaves.append(value)
        if names is not None:
            names.append(path or "batch")
        return f"{TENSOR} with {', '.join(sorted(held))}" if (held := value.__dict__) else TENSOR
    if numbers is not None and issubclass(kind, (bool, int, float)):
        numbers.append(value if kind is bool else (int if issubclass(kind, int) else float)(value))
        return NUMBER
    if not isinstance(attributes, Attributes) and (parts := _parts_of(value)) is not None:
        parts = [(name, flatten(part, leaves, names, path, numbers, attributes)) for name, part in parts]
        return ("made", kind, tuple(parts))
    if kind is dict or isinstance(value, Mapping) and kind is not types.MappingProxyType:
        items = tuple(
            (key, flatten(item, leaves, names, f"{path}.{key}" if path else str(key), numbers, attributes))
            for key, item in value.items()
        )
        return ("mapping", kind, items)
    if kind in (list, tuple) or isinstance(value, (list, tuple)):
        items = tuple(
            flatten(item, leaves, names, f"{path}[{index}]" if names is not None else "", numbers, attributes)
            for index, item in enumerate(value)
        )
        return ("sequence", kind, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = tuple(
            (name, flatten(getattr(value, name), leaves, names, f"{path}.{name}", numbers, attributes))
            for name in _attributes_of(value)
        )
        return ("dataclass", kind, items)
    if attributes is not None and (held := attributes.enter(value)) is not None:
        count = len(leaves)
        try:
            structure = _of_object(kind, held, leaves, names, path, numbers, attributes)
        finally:
            attributes.leave(len(leaves) > count)
        if len(leaves) > count:
            return structure
    return ("constant", _Constant(value))


def _parts_of(value):
    """The parts from which a container of an unusual class is made again: its entries and its attributes; None: not
    such a class."""
    kind = type(value)
    if kind in (dict, list, tuple, collections.OrderedDict, torch.Size) or dataclasses.is_dataclass(value):
        return None
    if isinstance(value, tuple):
        if hasattr(kind, "_fields") or hasattr(kind, "n_fields"):  # named tuples, and torch's
            return None
        entries = tuple(value)
    elif isinstance(value, list):
        entries = list(value)
    elif isinstance(value, dict):
        entries = dict(value)
    elif isinstance(value, Mapping) and hasattr(value, "__dict__"):
        entries = ()
    else:
        return None
    return ("entries", entries), ("attributes", _held_by(value))


def _held_by(value):
    held = dict(getattr(value, "__dict__", None) or {})
    for base in type(value).__mro__:
        for name, raw in vars(base).items():
            if isinstance(raw, types.MemberDescriptorType) and hasattr(value, name):
                held[name] = getattr(value, name)
    return held


def _made_again(kind, entries, held):
    """Makes the container without its constructor, like _of_attributes()."""
    native = next(base for base in kind.__mro__ if base.__flags__ & IMMUTABLE)
    new = native.__new__(kind, entries) if issubclass(kind, tuple) else native.__new__(kind)
    if isinstance(new, list):
        list.extend(new, entries)
    elif isinstance(new, dict):
        for key, value in entries.items():
            native.__setitem__(new, key, value)
    for name, value in held.items():
        object.__setattr__(new, name, value)
    return new


def _of_object(kind, held, leaves, names, path, numbers, attributes):
    read, items = attributes.of(kind), []
    for name, item in held.items():
        count = len(leaves)
        structure = flatten(item, leaves, names, f"{path}.{name}" if path else name, numbers, attributes)
        if len(leaves) > count or name in read or _ALL in read:
            items.append((name, structure))
    items += ((name, ABSENT) for name in read if name is not _ALL and name not in held)
    return ("object", kind, tuple(items))


def attributes_of(value):
    """The attributes by name of an object of a class that Python code made; None: it is not taken apart."""
    kind = type(value)
    if isinstance(value, _NO_RECORDS) or kind.__flags__ & IMMUTABLE and kind is not types.SimpleNamespace:
        return None
    if hasattr(kind, "__next__") or isinstance(value, (dict, list, tuple, set, frozenset)):
        return None
    held = _held_by(value)
    if any(isinstance(one, (torch.nn.Module, torch.optim.Optimizer)) for one in held.values()):
        return None
    return held


def held_tensors(value):
    """All tensors in containers and objects, each once."""
    found, seen, pending = [], set(), [value]
    while pending and len(seen) < _MOST_HELD:
        one = pending.pop()
        if id(one) in seen or isinstance(one, _PLAIN):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, Mapping):
            pending += one.values()
        elif isinstance(one, (list, tuple, set, frozenset, collections.deque)):
            pending += one
        elif (held := attributes_of(one)) is not None:
            pending += held.values()
    return found


def containers_in(value):
    """All lists and mappings in a nest of them and of tuples."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop()
        if id(one) in seen or not isinstance(one, (list, tuple, Mapping)):
            continue
        seen.add(id(one))
        if not isinstance(one, tuple):
            yield one
        pending += one.values() if isinstance(one, Mapping) else one


def _items_of(value):
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def same_containers(result, given):
    """The lists and mappings of `given` that occur in `result`, as pairs of paths (result, given); of nested ones only
    the outermost."""
    if not isinstance(result, (list, tuple, Mapping)):
        return ()
    here, found = {}, []

    def look(value, path):
        if isinstance(value, (list, Mapping)):
            here[id(value)] = None if id(value) in here else path  # given twice, so ambiguous
        for key, item in _items_of(value):
            look(item, (*path, key))

    def find(value, path):
        if here.get(id(value)) is not None:
            found.append((path, here[id(value)]))
            return
        for key, item in _items_of(value):
            find(item, (*path, key))

    look(given, ())
    find(result, ())
    return tuple(found)


def with_containers(result, same, given):
    """`result`, which was just made, with the containers of `given` that same_containers() found."""
    for there, here in same:
        one = given
        for key in here:
            one = one[key]
        result = _with(result, there, one)
    return result


def _with(value, path, new):
    if not path:
        return new
    part = _with(value[path[0]], path[1:], new)
    if not isinstance(value, tuple):
        value[path[0]] = part
        return value
    parts = [*value[: path[0]], part, *value[path[0] + 1 :]]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def flatten_result(box, leaves):
    """Like flatten() for the one element of `box`, the only list that holds it; objects that only the result holds are
    nests."""

    def attempt(attributes):
        del leaves[:]
        return flatten(box, leaves, attributes=attributes)[2][0]

    structure = attempt(None)
    if opaque(structure) is not None:
        del structure  # it refers to the objects weakly
        structure = attempt(_Owned(box))
        if opaque(structure) is not None:
            structure = attempt(None)
    return structure


class _Owned:
    """Takes objects in a result apart, as Attributes does in arguments: each object once, with all its attributes."""

    def __init__(self, box):
        self.objects = _owned(box)

    def of(self, kind):
        return (_ALL,)

    def enter(self, value):
        if id(value) not in self.objects:
            return None
        self.objects.remove(id(value))  # a second occurrence is the same object, which a nest cannot express
        return vars(value)

    def leave(self, has_tensors):
        pass


def _owned(box):
    """The ids of the objects in a result that consist of their attributes and that only the result holds.

    No code can distinguish such an object from another one of its class with the same attributes.
    """
    found, references, seen, pending = [], collections.Counter(), {id(box)}, [box]
    while pending:
        for one in gc.get_referents(pending.pop()):
            references[id(one)] += 1
            is_object = _is_its_attributes(one)
            if id(one) not in seen and (is_object or isinstance(one, (Mapping, list, tuple))):
                seen.add(id(one))
                pending.append(one)
                if is_object:
                    found.append(one)
    one = None
    in_hand = 3  # `found`, `one` and the argument
    return {id(one) for one in found if sys.getrefcount(one) - in_hand == references[id(one)]}


def _is_its_attributes(one):
    kind = type(one)
    return (
        kind.__new__ is object.__new__
        and hasattr(one, "__dict__")
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and not hasattr(kind, "__del__")
        and not isinstance(one, torch.nn.Module)
        and weakref.getweakrefcount(one) == 0
    )


def unflatten(structure, leaves, numbers):
    """Builds the value again from iterators over its tensors and numbers."""
    if isinstance(structure, str):
        return next(numbers if structure is NUMBER else leaves)
    if structure[0] == "constant":
        return structure[1].value
    _, kind, items = structure
    if structure[0] == "sequence":
        values = [unflatten(item, leaves, numbers) for item in items]
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    values = {name: unflatten(item, leaves, numbers) for name, item in items if item is not ABSENT}
    if structure[0] in ("dataclass", "object"):
        return _of_attributes(kind, values)
    if structure[0] == "made":
        return _made_again(kind, values["entries"], values["attributes"])
    if kind is dict:
        return values
    if kind is collections.OrderedDict or issubclass(kind, collections.UserDict):
        return kind(values)
    return kind(**values)


def _attributes_of(value):
    """The fields of a dataclass that have a value, and its other attributes."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return names + [name for name in getattr(value, "__dict__", ()) if name not in names]


def _of_attributes(kind, values):
    """The object again, without its constructor, which takes no field with init=False and may compute."""
    new = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


class _Constant:
    """A leaf that is not a tensor. Hashable values are equal by value, others by identity.

    Holds an object that is not plain only weakly, if that is possible; after the object is gone, nothing equals the
    constant.
    """

    __slots__ = ("_held", "_hash", "_is_hashable")

    def __init__(self, value):
        self._held = (lambda: value) if isinstance(value, _PLAIN) else _reference(value)
        try:
            self._hash = hash((type(value), hash(value)))
            self._is_hashable = True
        except TypeError:
            self._hash = id(value)
            self._is_hashable = False

    @property
    def value(self):
        return self._held()

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        if not isinstance(other, _Constant) or self._hash != other._hash:
            return False
        a, b = self.value, other.value
        if type(a) is not type(b) or self._is_gone() or other._is_gone():
            return False
        # Floats must be equal bit by bit: 0.0 differs from -0.0.
        return a == b and repr(a) == repr(b) if self._is_hashable else a is b

    def _is_gone(self):
        return isinstance(self._held, weakref.ref) and self._held() is None

    def __repr__(self):
        return repr(self.value)


def _reference(value):
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _words(value):
    """A text that is the same in every process; for an object, whose repr may contain its address, only its class."""
    return repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"


def describe(structure):
    """The constants of a structure in words, for log lines."""
    found = []

    def visit(part, path):
        if isinstance(part, str):
            return
        if part[0] == "constant":
            said = _words(part[1].value)
            found.append(f"{path}={said}" if path else said)
        elif part[0] == "sequence":
            for index, item in enumerate(part[2]):
                visit(item, f"{path}[{index}]")
        else:
            for name, item in part[2]:
                visit(item, f"{path}.{name}" if path else str(name))

    visit(structure, "")
    text = ", ".join(found)
    return text if len(text) <= _LONGEST_WORDS else text[:_LONGEST_WORDS] + "..."


def opaque(structure):
    """The place of an object that is neither a tensor nor plain, in words; None if there is none."""

    def visit(part, path):
        if isinstance(part, str):
            return None
        if part[0] == "constant":
            value = part[1].value
            kind = type(value).__name__
            return None if isinstance(value, _PLAIN) else f"'{path}' of type {kind}" if path else f"a {kind}"
        for name, item in enumerate(part[2]) if part[0] == "sequence" else part[2]:
            found = visit(item, f"{path}[{name}]" if part[0] == "sequence" else f"{path}.{name}" if path else str(name))
            if found is not None:
                return found
        return None

    return visit(structure, "")
