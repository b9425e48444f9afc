"""The objects that a watched call meets, and the Places (reads.py) of what it reads of them.

An object is outside if it was reached from outside: through a global, a captured variable, an argument that is not a
container of the batch, or another such object. All others were made in this call.
"""

import abc
import collections
import functools
import gc
import os
import random
import types

import numpy
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stepc import _C
from stepc.tree import IMMUTABLE
from stepc.watch import bare
from stepc.watch.known import BUFFERS, HOOKS, SIMPLE, VIEWS, Trust, effect_of, is_library
from stepc.watch.reads import ABSENT, CONTENTS, ITEM, MOST_ELEMENTS, TYPE, contents_of

_EVERY = torch.nn.modules.module
_HOOKS_OF_ALL = {
    "the hooks of all modules": (_EVERY._global_forward_hooks, _EVERY._global_forward_pre_hooks,
                                 _EVERY._global_backward_hooks, _EVERY._global_backward_pre_hooks),
    "the hooks of all optimizers": (_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
}
# A module's own containers: their entries are read one by one, or the engine compares them.
_OF_MODULE = {*vars(torch.nn.Module()), "_compiled_call_impl"}
_HOLDERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)


class _Registered:
    """Counts the classes that were registered with abstract ones."""

    __slots__ = ()
    token = property(lambda self: abc.get_cache_token())


_REGISTERED = _Registered()


class Objects:
    """The objects that a watched call has met. The opcodes (opcodes.py) and the subclasses say what happens to them;
    calls.py has `callable`."""

    def __init__(self, reads, on_ranks):
        self.reads = reads
        self.on_ranks = on_ranks  # there a GradScaler is read, and its changes are undone
        self.reason = None  # why the step may not be replayed without its Python
        self.places = []  # of this call, with the number of the value then
        self.found = {}  # modules and optimizers that the call used: id -> (object, words)
        self.attributes = set()  # (class, name) read of objects that are taken apart; name None: all
        self._scalers = []  # gradient scalers that the call used, and their words
        self._outside = {}  # id -> object
        self._arguments = {}  # of the step: id -> object
        self._objects = {}  # id -> an object among the arguments that is taken apart (tree.py)
        self._arrays = set()  # ids of arrays among the arguments
        self._batch = set()  # ids of tensors among the arguments
        self._made = set()  # ids of objects whose __init__ ran in this call
        self._words = {}
        self._seen = {}  # inspected by whole(): id -> object
        self._deep = {}  # inspected by deep(): id -> object
        self._numbers = {}  # read from tensors by inspected code: id -> (number, index of the read)
        self._codes = {}  # id of a code object -> (the object, its trust, its follower)
        self._known = set()  # (id, how, name) of places
        for words, all_hooks in _HOOKS_OF_ALL.items():
            for hooks in all_hooks:
                self.places.append(reads.add(hooks, CONTENTS, None, words, "the call"))
                for hook in hooks.values():
                    self.register(hook, f"one of {words}")

    def _is_analysed(self, frame):
        known = self._codes.get(id(frame.f_code)) if frame is not None else None
        return known is not None and known[1] is Trust.ANALYSED

    def because(self, frame, words):
        if self.reason is None:
            self.reason = f"{self._line(frame)} {words}"

    def _line(self, frame):
        """The place in the innermost inspected code."""
        at = frame
        while at is not None and not self._is_analysed(at):
            at = at.f_back
        at = at or frame
        return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}"

    def place(self, frame, container, how, name, words):
        key = (id(container), how, name)
        if key in self._known:
            return
        self._known.add(key)
        self.places.append(self.reads.add(container, how, name, words, self._line(frame)))

    def _type(self, frame, one, words):
        """An object's class decides its attributes and methods."""
        if not type(one).__flags__ & IMMUTABLE:
            self.place(frame, one, TYPE, None, f"the class of {words}")
            self._methods(frame, type(one))

    def _methods(self, frame, kind):
        """The methods of a class and its bases: a method added later may hide one that ran."""
        if not kind.__flags__ & IMMUTABLE:
            self.place(frame, kind, CONTENTS, None, f"the methods of {kind.__name__}")

    def asks_for_type(self, frame, arguments):
        one = arguments[0] if arguments else None
        if any(isinstance(kind, abc.ABCMeta) for kind in _classes_in(arguments[1:])):
            self.place(frame, _REGISTERED, ITEM, "token", "which classes are registered with abstract ones")
        for kind in _classes_in(arguments[1:]):
            if isinstance(kind, type):
                self._methods(frame, type(kind))
        if self.is_outside(one) and not isinstance(one, type):
            self._type(frame, one, self.words_of(one))

    def _name(self, value, words):
        if not isinstance(value, SIMPLE):
            self._words.setdefault(id(value), words)

    def register(self, value, words):
        """Registers an object that existed before the call."""
        if value is ABSENT or id(value) in self._outside or isinstance(value, SIMPLE) and not has_attributes(value):
            return
        self._outside[id(value)] = value
        self._words.setdefault(id(value), words)
        if isinstance(value, types.MethodType):
            self.register(value.__self__, "self" if words == "self" else f"{words}.__self__")
            self.register(value.__func__, words)
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            self.register(value.__self__, words)

    def was_there(self, value):
        return self.is_outside(value) or id(value) in self._arguments

    def is_outside(self, value):
        return id(value) in self._outside

    def words_of(self, value):
        return self._words.get(id(value)) or f"a {type(value).__name__}"

    def shallow(self, frame, value):
        """Code reads all contents of a container from outside."""
        if isinstance(value, SIMPLE):
            return
        if id(value) in self._objects:
            self.attributes.add((type(value), None))
        if id(value) in self._arguments:
            return
        if not self.is_outside(value):
            return
        words = self.words_of(value)
        self._type(frame, value, words)
        if isinstance(value, VIEWS):
            (value,) = gc.get_referents(value)
            self.register(value, words)
        if isinstance(value, (dict, types.MappingProxyType)):
            self._contents(frame, value, words)
            for key, item in bare.items(value):
                self.register(key, f"a key of {words}")
                self.register(item, f"{words}[{key!r}]")
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            self._contents(frame, value, words)
            for index, item in enumerate(bare.entries(value)):
                self.register(item, f"{words}[{index}]")
        elif isinstance(value, BUFFERS):
            self._contents(frame, value, words)
        elif hasattr(type(value), "__next__"):
            self.because(frame, f"advances {words}, an iterator from outside of the step")

    def deep(self, frame, value, decides=True):
        """Like shallow(), also for the containers in it: native code that compares, sums or copies enters them.

        decides  the use of a number that the step has read is invisible
        """
        pending, count = [value], 0
        while pending:
            one = pending.pop()
            if decides:
                self._decides(one)
            if isinstance(one, SIMPLE) or id(one) in self._arguments or id(one) in self._deep:
                continue
            self.shallow(frame, one)
            if self.is_outside(one):
                self._deep[id(one)] = one
            count += 1
            if count > MOST_ELEMENTS:
                self.because(frame, f"hands {self.words_of(value)} on, which is too large to be compared")
                return
            if isinstance(one, (dict, types.MappingProxyType)):
                pending += bare.values(one)
            elif isinstance(one, (list, tuple, set, frozenset, collections.deque)):
                pending += bare.entries(one)

    def _contents(self, frame, value, words):
        if isinstance(value, (tuple, frozenset)):
            return
        if id(value) in self._arrays:
            self.because(frame, f"reads {words}, an array that the step is given")
            return
        if contents_of(value) is None:
            self.because(frame, f"reads {words}, which is too large to be compared")
            return
        self.place(frame, value, CONTENTS, None, words)

    def whole(self, frame, value, depth=0):
        """Code that is not inspected may read everything of an object."""
        self._decides(value)
        if id(value) in self._objects:
            self.attributes.add((type(value), None))
        if isinstance(value, SIMPLE) or id(value) in self._arguments:
            return
        if isinstance(value, (list, tuple)) and not self.is_outside(value):
            for item in bare.entries(value)[:MOST_ELEMENTS]:
                self.whole(frame, item, depth + 1)
            return
        if type(value) is dict and not self.is_outside(value):
            for item in value.values():
                self.whole(frame, item, depth + 1)
            return
        if not self.is_outside(value) or id(value) in self._seen:
            return
        if isinstance(value, torch.nn.Module):
            self.found[id(value)] = (value, self.words_of(value))
            for path, part in value.named_modules(prefix=self.words_of(value)):
                self.register(part, path)
            if _is_of_torch(value):
                self._module(frame, value)
            return
        if isinstance(value, torch.optim.Optimizer):
            self.found[id(value)] = (value, self.words_of(value))
            return
        self._seen[id(value)] = value
        if self.on_ranks and type(value) is torch.amp.GradScaler and not value._per_optimizer_states:
            self._scaler(frame, value)
            return
        if words := effect_of(type(value).__module__):
            self.because(frame, words)
            return
        if isinstance(value, types.FunctionType):
            if not is_library(value.__module__ or ""):
                self._function(frame, value, value.__name__)
            return
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)):
            self.callable(frame, value)
            return
        if isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
            self.because(frame, f"draws from {self.words_of(value)}")
            return
        if depth > 50 or len(self._seen) > MOST_ELEMENTS:
            self.because(frame, f"hands {self.words_of(value)} on, which is too large to be compared")
            return
        self.shallow(frame, value)
        words = self.words_of(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            inner = bare.values(value)
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            inner = bare.entries(value)
        elif isinstance(value, types.MethodType):
            inner = [value.__self__] if isinstance(value.__func__, types.BuiltinFunctionType) else []
        elif isinstance(value, functools.partial):
            inner = [value.func, value.args, value.keywords]
            for one in inner:
                self.register(one, words)
        else:
            inner = []
        self._type(frame, value, words)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, types.MethodType):
            self.register(attributes, words)
            self._contents(frame, attributes, words)
            for name, item in list(attributes.items()):
                self.register(item, f"{words}.{name}")
                inner.append(item)
        for kind in type(value).__mro__:
            for name, raw in vars(kind).items():
                if isinstance(raw, types.MemberDescriptorType) and not is_library(kind.__module__):
                    self.place(frame, value, ITEM, name, f"{words}.{name}")
                    item = getattr(value, name, None)
                    self.register(item, f"{words}.{name}")
                    inner.append(item)
        for item in inner:
            self.whole(frame, item, depth + 1)

    def _scaler(self, frame, scaler):
        """Between unscale_() and update() a GradScaler knows what it has found for each optimizer; before and after,
        nothing."""
        words = self.words_of(scaler)
        self._scalers.append((scaler, words))
        self._type(frame, scaler, words)
        for name in (one for one in vars(scaler) if one != "_per_optimizer_states"):
            self.place(frame, scaler.__dict__, ITEM, name, f"{words}.{name}")

    def _module(self, frame, module):
        """The attributes of a called module that torch's own code reads."""
        if not isinstance(module, torch.nn.Module) or id(module) in self._seen or id(module) in self._made:
            return
        self._seen[id(module)] = module
        words = self._words.get(id(module), type(module).__name__)
        self.register(module, words)
        self.found[id(module)] = (module, words)
        attributes = module.__dict__
        self._type(frame, module, words)
        for name in HOOKS:
            self.place(frame, attributes[name], CONTENTS, None, f"the hooks of {words}")
            for hook in attributes[name].values():
                self.register(hook, f"a hook of {words}")
        self.place(frame, attributes, ITEM, "forward", f"{words}.forward")
        if "forward" in attributes:
            self.register(attributes["forward"], f"{words}.forward")
        if isinstance(module, _HOLDERS):
            self.place(frame, module._modules, CONTENTS, None, f"the modules of {words}")
        if isinstance(module, _HOLDERS) or _is_of_torch(module):
            for name, value in list(attributes.items()):
                if name not in _OF_MODULE:
                    self.place(frame, attributes, ITEM, name, f"{words}.{name}")
                    self.register(value, f"{words}.{name}")
                    self.whole(frame, value)
            for name, buffer in module._buffers.items():
                self.place(frame, module._buffers, ITEM, name, f"{words}.{name}")
            for name, parameter in module._parameters.items():
                if parameter is None:
                    self.place(frame, module._parameters, ITEM, name, f"{words}.{name}")
            for name, child in module._modules.items():
                self._name(child, f"{words}.{name}")
                self._module(frame, child)

    def _function(self, frame, function, name):
        """The code that calls of the function run, and its defaults."""
        self.place(frame, function, ITEM, "__code__", f"the code of {name}()")
        for where, defaults in (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)):
            if defaults:
                self.place(frame, function, ITEM, where, f"a default of {name}()")
                for value in defaults.values() if isinstance(defaults, dict) else defaults:
                    self.register(value, f"a default of {name}()")
            if isinstance(defaults, dict):
                self.place(frame, defaults, CONTENTS, None, f"a default of {name}()")

    def changes(self, frame, value, words):
        """The opcode writes to `value`."""
        if id(value) in self._arguments:
            self.because(frame, f"changes {words}, an argument of the step")
        elif self.is_outside(value):
            self.because(frame, f"changes {words}")

    def _decides(self, value):
        """The opcode may branch on `value`, and does not only pass it on."""
        if id(value) in self._numbers:
            _C.report_comparison(self._numbers[id(value)][1])


def has_attributes(value):
    """Whether it is a number or a text of a class that Python code made."""
    return not isinstance(value, torch.Tensor) and hasattr(value, "__dict__")


def _classes_in(values):
    for value in values:
        if isinstance(value, tuple):
            yield from _classes_in(value)
        else:
            yield value


def _is_of_torch(module):
    """Whether it is a class of torch with code that reads any attribute of the module."""
    return any(kind.__module__.startswith("torch.") and kind is not torch.nn.Module for kind in type(module).__mro__)
