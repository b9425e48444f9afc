"""What native code does that a watched call's opcodes call: Python functions are met as frames (watch.py)."""

import collections
import contextlib
import contextvars
import functools
import operator
import random
import types
import weakref

import numpy
import torch

from stepc.watch.accesses import Accesses
from stepc.watch.known import (
    ASKS_MACHINE, BUFFERS, BUILTIN_EFFECTS, CHANGES_FIRST, CONTAINERS, MUTATORS, PLAIN, PURE_BUILTINS, TENSORS, VIEWS,
    effect_of, is_operator, is_pure_native,
)
from stepc.watch.reads import ABSENT, ITEM, same

# Of every object.
_OBJECT_METHODS = {"__init__", "__new__", "__init_subclass__", "__eq__", "__ne__", "__hash__", "__getstate__", "__str__",
                   "__repr__", "__format__"}
_KEEP = (dict, list, tuple, collections.deque, types.SimpleNamespace)  # of what they are made they change nothing
_PUTS = {"append", "appendleft", "insert", "extend", "update", "setdefault"}  # into a container, as it is
_COMPARES = {"sort", "index", "count", "remove"}  # what the container holds
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


class Calls(Accesses):
    def __init__(self, reads, on_ranks):
        super().__init__(reads, on_ranks)
        self.outside_result = None  # id of the frame whose call returns an object that was there before
        self._contexts = {}  # variables of the context that it set -> (what they held before, where)

    def callable(self, frame, called, arguments=()):
        """A call of native code, or a callable that is handed on; Python functions are met as frames."""
        if isinstance(called, types.MethodType):
            if isinstance(called.__func__, types.FunctionType):
                return
            arguments, called = (called.__self__, *arguments), called.__func__
        if isinstance(called, types.FunctionType):
            return
        if isinstance(called, types.BuiltinFunctionType):
            owner = called.__self__
            if is_operator(called):
                return  # the recorder sees the call, and knows what it does or that nobody does
            if owner is None or isinstance(owner, types.ModuleType):
                self._native(frame, called.__module__ or "", called.__name__, arguments, called)
            elif isinstance(owner, type):
                # From torch 2.15 on apply() of autograd functions is native; what it calls of theirs is met as frames.
                given_by = torch.autograd.Function if issubclass(owner, torch.autograd.Function) else owner
                self._native(frame, given_by.__module__, f"{owner.__name__}.{called.__name__}", arguments)
            else:
                self._method(frame, owner, called.__name__, arguments)
        elif isinstance(called, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            if arguments:
                self._method(frame, arguments[0], called.__name__, arguments[1:])
        elif isinstance(called, types.MethodWrapperType):
            self._method(frame, called.__self__, called.__name__, arguments)
        elif isinstance(called, types.ClassMethodDescriptorType):
            return
        elif isinstance(called, type):
            self._construct(frame, called, arguments)
        elif isinstance(called, functools.partial):
            if self.is_outside(called):
                words = self.words_of(called)
                for one in (called.func, called.args, called.keywords):
                    self.register(one, words)
                    self.shallow(frame, one)
            self.callable(frame, called.func, (*called.args, *arguments))
        else:
            self._called_object(frame, called, arguments)

    def _called_object(self, frame, called, arguments):
        kind = type(called)
        own = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
        if self.is_outside(called):
            self._type(frame, called, self.words_of(called))
        if own is None or isinstance(own, types.FunctionType):
            return
        if isinstance(called, weakref.ref):
            held = called()
            # What is watched lives as long as we do, and must not for us alone.
            if id(held) not in self._words and not isinstance(held, (torch.Tensor, torch.nn.Module)):
                self.because(frame, f"asks {self.words_of(called)} for what may be gone")
            else:
                self.register(held, f"what {self.words_of(called)} refers to")
            return
        if kind is functools._lru_cache_wrapper:  # hashes what it is given; what it has not kept is met as a frame
            self.outside_result = id(frame)
            words = f"what {self.words_of(called)}() has kept"
            self.place(frame, self.reads.cache(called), ITEM, "state", words)
            return
        module = getattr(called, "__module__", None) or kind.__module__  # a Cython function's own
        if is_pure_native(module):
            if getattr(called, "__name__", "") in CHANGES_FIRST and arguments:
                self.changes(frame, arguments[0], self.words_of(arguments[0]))
            for argument in arguments:
                self.whole(frame, argument)
            return
        self.because(frame, effect_of(module) or f"calls {self.words_of(called)}, which is not known")

    def _native(self, frame, module, name, arguments, called=None):
        if module == "builtins":
            self._builtin(frame, name, arguments)
            return
        if not module or is_pure_native(module):
            if name in CHANGES_FIRST and arguments and not module.startswith("torch"):
                self.changes(frame, arguments[0], self.words_of(arguments[0]))
            if not arguments and called is not None:
                self._asked(frame, called, name)
            for argument in arguments:
                self.whole(frame, argument)
            return
        self.because(frame, effect_of(module) or f"calls {module}.{name}(), which is not known")

    def _asked(self, frame, function, name):
        """A function of torch without arguments may tell a setting of its own, which is compared by asking again."""
        is_setting = name.startswith(("is_", "get_")) or name.endswith("_enabled")
        module = getattr(function, "__module__", None) or ""
        if not is_setting or name in ASKS_MACHINE or module.startswith(("torch.cuda", "torch.distributed")):
            return
        answer = self.reads.answer(function)
        if isinstance(answer.now, PLAIN):
            self.place(frame, answer, ITEM, "now", f"{name}()")

    def _builtin(self, frame, name, arguments):
        if words := BUILTIN_EFFECTS.get(name):
            self.because(frame, words)
        elif name in ("getattr", "hasattr"):
            if isinstance(arguments[1], str):
                self.attribute(frame, arguments[0], arguments[1], f"{self.words_of(arguments[0])}.{arguments[1]}")
        elif name in ("setattr", "delattr"):
            self.store(frame, arguments[0], arguments[1], f"{self.words_of(arguments[0])}.{arguments[1]}")
        elif name == "next":
            self.changes_iterator(frame, arguments[0])
        elif name in ("len", "bool"):
            for argument in arguments:
                self.length(frame, argument)
        elif name in ("isinstance", "issubclass", "callable"):
            self.asks_for_type(frame, arguments)
        elif name == "vars":
            self.whole(frame, arguments[0])
            if self.is_outside(arguments[0]):
                self.register(arguments[0].__dict__, self.words_of(arguments[0]))
        elif name in PURE_BUILTINS or name.startswith("dict."):
            self._read_by_native(frame, arguments)
        elif name in ("object.__new__", "type.__new__"):
            return
        elif name == "tuple.__new__":  # of a named one
            self._read_by_native(frame, arguments[1:], decides=False)
        elif name == "__import__":
            return
        else:
            self.because(frame, f"calls {name}(), which is not known")

    def _read_by_native(self, frame, arguments, decides=True):
        """What the interpreter's own functions are given; a callable among it is called with the rest."""
        for argument in arguments:
            self.deep(frame, argument, decides)
            if isinstance(argument, (types.BuiltinFunctionType, types.MethodWrapperType, functools.partial)):
                self.callable(frame, argument)
            while isinstance(argument, functools.partial):
                argument = argument.func
            if isinstance(argument, _GETTERS):
                for other in arguments:
                    self.whole(frame, other)
                    if hasattr(type(other), "__next__"):
                        self.because(frame, "reads attributes of what an iterator gives")

    def changes_iterator(self, frame, value):
        if self.is_outside(value) or id(value) in self._arguments:
            self.because(frame, f"advances {self.words_of(value)}, an iterator from outside of the step")

    def _method(self, frame, owner, name, arguments):
        """A native method; what it is given is read."""
        if isinstance(owner, TENSORS):
            if isinstance(owner, torch.Generator) and name in MUTATORS:
                self.because(frame, "sets a random generator")
            if isinstance(owner, torch.Generator) and name == "initial_seed":
                self.because(frame, "reads the seed of a random generator")
            for argument in arguments:
                self.whole(frame, argument)
            return
        if isinstance(owner, PLAIN):
            self._decides(owner)
            for argument in arguments:
                (self.whole if name in ("format", "format_map") else self.deep)(frame, argument)
            return
        if name == "__call__":
            self.callable(frame, owner, arguments)
            return
        if name in ("__setattr__", "__delattr__") and arguments:
            self.store(frame, owner, arguments[0], f"{self.words_of(owner)}.{arguments[0]}")
            return
        if name in ("__getattribute__",) and arguments:
            self.attribute(frame, owner, arguments[0], f"{self.words_of(owner)}.{arguments[0]}")
            return
        if isinstance(owner, contextvars.ContextVar):
            self._context_variable(frame, owner, name, arguments)
            return
        outside = self.is_outside(owner)
        argument_of_step = id(owner) in self._arguments
        if isinstance(owner, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
            self.because(frame, "draws from a random generator of Python or NumPy")
            return
        if (outside or argument_of_step) and name in MUTATORS and name != "__init__":
            if hasattr(type(owner), "__next__"):
                self.changes_iterator(frame, owner)
            elif name == "setdefault" and arguments and isinstance(owner, dict) and arguments[0] in owner:
                self.item(frame, owner, arguments[0], f"{self.words_of(owner)}[{arguments[0]!r}]")
            elif hasattr(owner, "write"):
                self.because(frame, "writes to a file")
            else:
                self.changes(frame, owner, self.words_of(owner))
            return
        self._read_by_native(frame, arguments, decides=name not in _PUTS)
        if not outside and name in _COMPARES:
            self.deep(frame, owner)
        if isinstance(owner, type) and name == "__subclasses__":
            self.because(frame, f"asks for the subclasses of {owner.__name__}")
        if not outside:
            return
        if isinstance(owner, dict) and name in ("get", "__getitem__", "__contains__") and arguments:
            self.item(frame, owner, arguments[0], f"{self.words_of(owner)}[{arguments[0]!r}]")
        elif isinstance(owner, (*CONTAINERS, *BUFFERS, *VIEWS, tuple, frozenset)):
            self.deep(frame, owner)
        elif isinstance(owner, (type, types.FunctionType)) or is_pure_native(type(owner).__module__):
            self.whole(frame, owner)
        elif name in _OBJECT_METHODS:
            self.whole(frame, owner)
        else:
            self.because(frame, f"calls {type(owner).__module__}.{type(owner).__name__}.{name}(), which is not known")

    def _context_variable(self, frame, variable, name, arguments):
        """What the step sets it to is its own; when the step ends it has to hold what it held before."""
        now = variable.get(ABSENT)
        if name in ("set", "reset"):
            self._contexts.setdefault(variable, (now, self._line(frame)))
        elif name == "get" and same(now, self._contexts.get(variable, (now,))[0]):
            words = f"the context variable '{variable.name}'"
            answer = self.reads.answer(functools.partial(variable.get, ABSENT), of=variable)
            self.place(frame, answer, ITEM, "now", words)
            with contextlib.suppress(LookupError):
                self.register(variable.get(*arguments), words)

    def _construct(self, frame, kind, arguments):
        module = kind.__module__
        if module in ("builtins", "itertools", "collections", "functools", "types"):
            if kind is type and len(arguments) == 1:
                self.asks_for_type(frame, arguments)
                return
            if kind is bool:
                for argument in arguments:
                    self.truth(frame, argument)
                return
            keeps = issubclass(kind, _KEEP) or (kind in (int, float) and arguments and type(arguments[0]) is kind)
            self._read_by_native(frame, arguments, decides=not keeps)
            return
        if is_pure_native(module):
            for argument in arguments:
                self.whole(frame, argument)
            return
        if words := effect_of(module):
            self.because(frame, words)
            return
        # The person's own class: its functions are met as frames; made by native code alone it keeps what it is given.
        made = next((base for base in kind.__mro__ if "__init__" in vars(base)), object)
        new = next((base for base in kind.__mro__ if "__new__" in vars(base)), object)
        for base in (made, new):
            if base.__module__ not in ("builtins",) and not is_pure_native(base.__module__) and not _has_python(base):
                self.because(frame, f"makes a {kind.__name__}, which is not known")


def _has_python(kind):
    return any(isinstance(vars(kind).get(name), (types.FunctionType, staticmethod)) for name in ("__init__", "__new__"))
