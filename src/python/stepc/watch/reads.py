"""The Python values that a step read while it was recorded: the place of each, its value then, and its value now.

The engine compares them before every replay (python/python_program.h). Each other value that appears at a place gets a
number, which separates the step's signatures.
"""

import types
import weakref

import numpy
import torch

from stepc.tree import IMMUTABLE
from stepc.watch import bare
from stepc.watch.known import BUFFERS, PLAIN

ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()
# How a place is compared: by the object there, a container's length, all contents, an object's type. Only for the
# engine: by the object there through a weak reference, and by the type of the object there.
ITEM, LENGTH, CONTENTS, TYPE, WEAK, KIND = range(6)
# A place with this many values is no choice between plans: it changes from step to step.
MOST_VALUES = 6
# The same for a place with a new value in this many recorded calls in a row.
MOST_NEWS = 2
MOST_PLACES = 200_000
MOST_BYTES = 16 << 10  # of an array that is compared by its contents
MOST_ELEMENTS = 10_000


# Entries of every class's dict that are no methods, or that are made on request.
_NO_METHODS = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations__", "__slots__",
               "__firstlineno__", "__static_attributes__", "__abstractmethods__", "__parameters__", "__orig_bases__",
               "__dataclass_fields__", "__dataclass_params__", "__match_args__"}
# The objects in which the engine finds tensors.
_OWNERS = (torch.nn.Module, torch.optim.Optimizer)


def same(a, b):
    """Whether two values are one: the same object, or numbers, texts or tuples of them that are equal bit by bit."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, frozenset)):
        if isinstance(a, frozenset):
            return a == b
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (float, complex)):
        return repr(a) == repr(b)
    if isinstance(a, numpy.generic):
        return a.tobytes() == b.tobytes()
    if isinstance(a, types.MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    return isinstance(a, PLAIN) and a == b


def _methods_of(kind):
    """(class, name, function) for everything that a class and its bases can be asked to do, in the order of the
    classes.

    Includes functions, properties and other descriptors, and the objects behind operators; not the numbers beside them.
    """
    found = []
    for base in kind.__mro__:
        found += (base, "", None)
        if base.__flags__ & IMMUTABLE:
            continue
        for name, value in vars(base).items():
            if name in _NO_METHODS or not (hasattr(type(value), "__get__") or name.startswith("__") and name.endswith("__")):
                continue
            found += (base, name, getattr(value, "_stepc_stands_for", value))
    return tuple(found)


def contents_of(container):
    """The contents of a container in a fixed order, for same(); None: too much to compare.

    For a class: its methods, with those of its bases.
    """
    if isinstance(container, type):
        return _methods_of(container)
    if isinstance(container, numpy.ndarray):
        if container.dtype.hasobject or container.nbytes > MOST_BYTES:
            return None
        return container.shape, container.strides, container.dtype.str, container.tobytes()
    if isinstance(container, BUFFERS):
        size = container.nbytes if hasattr(container, "nbytes") else len(container)
        return None if size > MOST_BYTES else bytes(container)
    if bare.length(container) > MOST_ELEMENTS:
        return None
    if isinstance(container, (dict, types.MappingProxyType)):
        return tuple(part for item in bare.items(container) for part in item)
    if isinstance(container, (set, frozenset)):
        return frozenset(bare.entries(container))
    return tuple(bare.entries(container))


def _value_at(container, name):
    if isinstance(container, type):
        return vars(container).get(name, ABSENT)
    if isinstance(container, dict):
        value = dict.get(container, name, ABSENT)
        return value._stepc_stands_for if type(value) is types.FunctionType and hasattr(value, "_stepc_stands_for") else value
    try:
        if isinstance(container, (list, tuple)):
            return bare.method(container, "__getitem__")(name)
        if isinstance(container, types.CellType):
            return container.cell_contents
        return getattr(container, name)
    except (IndexError, ValueError, AttributeError):
        return ABSENT


class Place:
    """A value that the step read. `words` name it; `line` is the line of the read, if it is known."""

    __slots__ = ("container", "how", "name", "words", "line", "values", "number", "was_tensor", "is_slot", "met",
                 "news", "news_at")

    def __init__(self, container, how, name, words, line):
        self.container, self.how, self.name, self.words, self.line = container, how, name, words, line
        self.values = []
        self.number = 0
        self.met = 0  # the number of recordings that read it
        self.news, self.news_at = 0, None  # recorded calls in a row with a new value, and the last of them
        self.is_slot = False  # the engine itself reads the tensor there
        self.was_tensor = isinstance(self.look(), torch.Tensor)

    def now(self):
        if self.how == ITEM:
            return _value_at(self.container, self.name)
        if self.how == LENGTH:
            return bare.length(self.container)
        if self.how == TYPE:
            return type(self.container)
        return contents_of(self.container)

    def look(self):
        """Returns the present value; `number` becomes that of an equal earlier value, or a new one."""
        now = self.now()
        for number, value in enumerate(self.values):
            if _is_value(value, now):
                self.number = number
                return now
        self.number = len(self.values)
        self.values.append(_held_contents(now) if self.how == CONTENTS else _held(now))
        return now

    def still_holds(self, number):
        """Whether the value of this number is there now."""
        if self.is_slot:
            return isinstance(self.now(), torch.Tensor)
        return _is_value(self.values[number], self.now())

    def named(self):
        return f"{self.words} (read at {self.line})" if self.line else self.words

    def says(self):
        """The difference between the first value and the present one, in words."""
        if self.how == CONTENTS and isinstance(self.container, type):
            return f"are others: {_another_method(self.values[0], self.values[self.number])} (#{self.number})"
        if self.how == CONTENTS:
            return f"has other contents (#{self.number})"
        if self.how == LENGTH:
            return f"had {self.values[0]} elements and has {self.values[self.number]}"
        was, now = self.values[0], self.values[self.number]
        if _is_short(was) and _is_short(now):
            return f"was {was!r} and is {now!r}"
        return f"is another object (#{self.number})"


def _another_method(was, now):
    """The first difference between two results of _methods_of() that were held weakly, in words."""
    of = lambda methods: [(methods[i](), *methods[i + 1 : i + 3]) for i in range(0, len(methods), 3)]
    before, after = of(was), of(now)
    if [kind for kind, name, _ in before if not name] != [kind for kind, name, _ in after if not name]:
        return "other base classes"
    known = {(kind, name): value for kind, name, value in before}
    changed = [one for one in after if one[:2] not in known or known[one[:2]] != one[2]]
    gone = set(known) - {one[:2] for one in after}
    kind, name = changed[0][:2] if changed else min(gone, key=str) if gone else after[0][:2]
    return f"{kind.__name__}.{name}"


def _held_contents(contents):
    """Like _held() for each element, so that no tensor lives longer because of it."""
    return tuple(_held(one) for one in contents) if type(contents) is tuple else contents


def _is_value(held, now):
    if isinstance(held, weakref.ref):  # held weakly, or itself a weak reference
        return held() is not None and (held is now or held() is now)
    if type(held) is tuple and type(now) is tuple:
        return len(held) == len(now) and all(map(_is_value, held, now))
    return same(held, now)


def _is_short(value):
    return value is ABSENT or isinstance(value, (PLAIN, tuple)) and len(repr(value)) < 80


def _held(value):
    """The value; held weakly if only its identity can change."""
    if isinstance(value, (PLAIN, tuple, frozenset)) or value is ABSENT:
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


class Cache:
    """Whether a function of functools.lru_cache still keeps its earlier results."""

    __slots__ = ("_function", "_last", "_changes")

    def __init__(self, function):
        self._function = weakref.ref(function)
        self._last, self._changes = (0, 0, 0), 0

    @property
    def state(self):
        """Changes when the cache gets a result or is cleared; clearing resets the count of hits to 0."""
        function = self._function()
        if function is not None:
            hits, misses, _, size = function.cache_info()
            if (misses, size) != self._last[1:] or hits < self._last[0]:
                self._changes += 1
            self._last = hits, misses, size
        return self._changes


class Answer:
    """The answer of a function without arguments; if it raises, the error in words."""

    __slots__ = ("_function",)

    def __init__(self, function):
        self._function = function

    @property
    def now(self):
        try:
            return self._function()
        except Exception as error:  # this build of PyTorch lacks a part: the step catches it
            return f"{type(error).__name__}: {error}"


class Reads:
    """All places that recordings of one step have read."""

    def __init__(self):
        self._places = {}  # (id of the container, how, name) -> Place
        self._resting = weakref.WeakKeyDictionary()  # a module or an optimizer -> its places, by part of it
        self._met = {"places": 0}  # the number met so far: the engine looks again when it grows
        self.tables = {}  # watch.py's table of each code object: id -> (code object, table)
        self._caches = weakref.WeakKeyDictionary()  # a function of functools.lru_cache -> its Cache
        self._answers = {}  # by function, or by what it asks about
        self._dropped = 0
        self.recorded = 0  # recorded calls so far
        self.changing = None  # a place with too many values to be watched

    def __len__(self):
        return len(self._places)

    def add(self, container, how, name, words, line):
        """The place of a read, and the number of its present value."""
        key = (id(container), how, name)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(container, how, name, words, line)
            self._met["places"] += 1
        elif not place.is_slot:
            place.look()
        place.met += 1
        return place, place.number

    def drop(self, place):
        """Drops a place to which the step itself writes. A place of an earlier recording stays: a plan may depend on
        its value."""
        if place.met > 1:
            return
        self._places.pop((id(place.container), place.how, place.name), None)

    def forget(self, container, name):
        """The value there, in the container of this id, is no longer compared."""
        self._places.pop((container, ITEM, name), None)

    def answer(self, function, of=None):
        """`of`: the key, if the function is made again for every call."""
        return self._answers.setdefault(of or function, Answer(function))

    def cache(self, function):
        return self._caches.setdefault(function, Cache(function))

    # ---- modules and optimizers that the step does not use at present

    def rest(self, owner, used):
        """Stops comparing and holding the owner's places until wake(), except for places in `used`, by id."""
        parts = {id(part): path for path, part in _parts_of(owner)}
        for key, place in list(self._places.items()):
            path = parts.get(id(place.container))
            if path is not None and key[0] not in used:
                del self._places[key]
                place.container = None
                self._resting.setdefault(owner, []).append((path, place))

    def wake(self, owner):
        """The step uses the owner again: a value that has changed since gets another number."""
        resting = self._resting.pop(owner, None)
        if resting is None:
            return
        self._met["places"] += 1
        parts = dict(_parts_of(owner))
        for path, place in resting:
            if path in parts:
                place.container = parts[path]
                self._places[(id(place.container), place.how, place.name)] = place

    def refresh(self):
        """Looks at all places. Returns whether a module or an optimizer has replaced another object."""
        if len(self._places) > MOST_PLACES:
            self._places.clear()
            self._dropped += 1
        rebound = False
        for place in self._places.values():
            if place.is_slot or place.how != ITEM:
                continue
            before = place.number
            now = self._look_at(place)
            rebound = rebound or place.number != before and isinstance(now, _OWNERS)
        return rebound

    def _look_at(self, place):
        known = len(place.values)
        now = place.look()
        if len(place.values) > known:
            place.news = place.news + 1 if place.news_at == self.recorded - 1 else 1
            place.news_at = self.recorded
        return now

    def look(self, slots, witnesses, settings):
        """Adds what the engine compares, and the places whose value is not the first one."""
        if self._dropped:
            settings["watched values"] = f"are watched anew (#{self._dropped})"
        witnesses.append((ITEM, self._met, "places", self._met["places"]))
        tensors = {(id(container), name) for _, _, container, name in slots}
        for (_, how, name), place in list(self._places.items()):
            place.is_slot = how == ITEM and (id(place.container), name) in tensors
            if place.is_slot:
                witnesses.append((KIND, place.container, name, type(place.now())))
                if not place.was_tensor:
                    settings[place.named()] = f"was {place.values[0]!r} and is a tensor"
                continue
            now, held = self._look_at(place), place.values[place.number]
            # A value that equals an earlier one need not be the same object, and the engine compares identities first.
            is_weak = how == CONTENTS or how == ITEM and isinstance(held, weakref.ref) and held is not now
            witnesses.append((WEAK if is_weak and how == ITEM else how, place.container, name, held if is_weak else now))
            if place.number:
                settings[place.named()] = place.says()
            if len(place.values) > MOST_VALUES or place.news >= MOST_NEWS:
                self.changing = place


def ids_of(owners):
    """The ids of all parts of these modules and optimizers."""
    return {id(part) for owner in owners for _, part in _parts_of(owner)}


def _parts_of(owner):
    """(path, container) for the parts of a module or an optimizer from which code reads."""
    if isinstance(owner, torch.nn.Module):
        for path, part in owner.named_modules():
            yield (path,), part
            yield (path, "__dict__"), part.__dict__
            for name in _OF_MODULE:
                yield (path, name), part.__dict__.get(name)
        return
    yield (), owner
    for name, value in (("__dict__", owner.__dict__), *owner.__dict__.items()):
        yield (name,), value
    for g, group in enumerate(owner.param_groups):
        yield ("group", g), group
        yield ("params", g), group["params"]
    for number, state in enumerate(owner.state.values()):
        yield ("state", number), state


_OF_MODULE = [name for name, value in vars(torch.nn.Module()).items() if isinstance(value, dict)]
