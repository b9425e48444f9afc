"""Numbers that a step's code has read from tensors, and that report when the code decides by them."""

import collections
import sys

from stepc import _C
from stepc.watch import bare


def _read_number(kind):
    """A number that says so when it is compared: the branch it decides is no branch that a recording sees."""

    class Read(kind):
        def __new__(cls, value=0, read=None):
            if read is None:  # what the standard library makes of two of its kind
                return kind(value)
            number = super().__new__(cls, value)
            number.read = read
            return number

        def __reduce__(self):
            return kind, (kind(self),)

        __hash__ = kind.__hash__

    def compare(name):
        def method(self, *others):
            _C.report_comparison(self.read)
            return getattr(kind, name)(self, *others)

        return method

    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__"):
        setattr(Read, name, compare(name))
    Read.__name__ = Read.__qualname__ = kind.__name__
    return Read


READ = {kind: _read_number(kind) for kind in (float, int)}


def make_plain(numbers):
    """Puts plain numbers where the program keeps those that it has read: some code takes no others (yaml)."""
    kinds = {read: kind for kind, read in READ.items()}
    kept = []
    while numbers:
        number = numbers.pop()
        if sys.getrefcount(number) > 2:
            kept.append(number)
    if not kept:
        return
    for holder in bare.referrers_of(kept):
        if holder is kept:
            continue
        if not isinstance(holder, (dict, list, collections.deque)):
            holder = getattr(holder, "__dict__", None)
        if isinstance(holder, dict):
            held = bare.items(holder)
        else:
            held = enumerate(bare.entries(holder)) if holder is not None else ()
        for place, value in held:
            if type(value) in kinds:
                bare.method(holder, "__setitem__")(place, kinds[type(value)](value))
