"""Whether a step earns a replay without its Python: while it is recorded, every opcode of the person's code (and of
libraries other than torch, NumPy and the standard ones) is looked at before it is executed.

What the opcode reads from outside of the call becomes a Place (reads.py). What it does outside of tensors, and what it
reads that cannot be compared later (the clock, files, iterators that advance), is the reason why the step is not
earned. A replay takes the same way through the code as the recording did while all that was read is as it was, so only
the way taken counts.

An object is outside if it was reached from outside: through a global, a captured variable, an argument that is no
container of the batch, or another such object. Everything else was made in this call.
"""

import collections
import collections.abc
import dataclasses
import dis
import functools
import os
import random
import sys
import types
import weakref

import numpy
import torch

from stepc import _C
from stepc.known import (
    BUILTIN_EFFECTS, CHANGES_FIRST, CONTAINERS, MUTATORS, PLAIN, PURE_BUILTINS, TENSORS, Trust, effect_of, is_library, is_pure_native,
    trust_in,
)
from stepc.reads import ABSENT, CONTENTS, ITEM, LENGTH, MOST_ELEMENTS, TYPE, contents_of

_MISSING = object()
_SIMPLE = (*PLAIN, torch.Tensor)
_MODULE_CALL = torch.nn.Module._wrapped_call_impl.__code__
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# A module's own containers: their entries are read one by one, or belong to the engine.
# Of every object.
_OBJECT_METHODS = {"__init__", "__new__", "__init_subclass__", "__eq__", "__ne__", "__hash__", "__getstate__", "__str__",
                   "__repr__", "__format__"}
_OF_MODULE = set(vars(torch.nn.Module()))
_HOLDERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)
_ITERATES = (list, tuple, dict, set, frozenset, collections.deque, types.MappingProxyType, str, bytes, range)


def _codes_in(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)


# What torch puts around every optimizer's step(), and a scheduler around its own optimizer's.
_OPTIMIZER_STEP = next(_codes_in(torch.optim.Optimizer.profile_hook_step.__code__))
_WRAPPERS = set(_codes_in(torch.optim.lr_scheduler.LRScheduler.__init__.__code__))


class Watch:
    """Follows one recorded call of a step.

    `reason` says afterwards why the call is not earned, and is None if it is.
    """

    def __init__(self, reads, optimizers, arguments=None, bound=(), scheduler_code=None):
        self.reads = reads
        self.arguments = arguments  # of the step; None: those of the first function that is followed
        self.bound = bound  # what the step's function is bound to
        self.optimizers = {id(optimizer) for optimizer in optimizers}
        self.scheduler_code = scheduler_code  # of the function that stands for a scheduler's step()
        self.reason = None
        self.places = []  # of this call, with the number of what stood there
        self.found = {}  # modules and optimizers that the call used: id -> (object, words)
        self._outside = {}  # id -> object
        self._arguments = {}
        self._words = {}
        self._seen = {}  # looked at whole: id -> object
        self._cells = {}  # made in this call
        self._made = set()  # ids of objects whose __init__ ran in this call
        self._codes = {}  # id of a code object -> (it, trust, how it is followed)
        self._known = set()  # (id, how, name) of places
        self._outside_result = None  # id of the frame whose call returns an object that was there before
        self._inside = None  # of an optimizer's or scheduler's step, which runs at every replay
        self._root = True
        self._previous = None

    # ---- tracing

    def start(self):
        if not _C.can_read_frames():
            self.reason = "only CPython 3.11 shows what a step reads"
            return
        for argument in self.arguments or ():
            self._argument(argument, "batch")
        for one in self.bound:
            self._register(one, "self")
        self._previous = sys.gettrace()
        sys.settrace(self._call)

    def stop(self):
        if not _C.can_read_frames():
            return
        sys.settrace(self._previous)
        for place, number in self.places:
            if not place.still_holds(number):
                self.reads.drop(place)
                if self.reason is None:
                    self.reason = f"{place.line} reads {place.words}, which the step changes"
        for table in (self._outside, self._arguments, self._seen, self._cells, self._codes):
            table.clear()
        self.arguments = self.bound = ()

    def _call(self, frame, event, arg):
        previous = self._previous(frame, event, arg) if self._previous is not None else None
        try:
            own = self._entered(frame)
        except Exception as error:
            self._fail(frame, error)
            own = None
        if own is None:
            return previous
        frame.f_trace_lines = previous is not None
        if previous is None:
            return own
        return _both(previous, own)

    def _entered(self, frame):
        code = frame.f_code
        _, trust, follow = self._known_code(frame)
        if self._inside is not None:
            if self._inside == "scheduler" and trust is Trust.ANALYSED:
                self._because(frame, "runs in a scheduler's step")
            return None
        if trust is Trust.ANALYSED:
            frame.f_trace_opcodes = True
            self._enter(frame, code)
            return follow
        if code is _OPTIMIZER_STEP:
            return self._enter_optimizer(frame)
        if code is self.scheduler_code:
            self._inside = "scheduler"
            return self._leave
        if code is _MODULE_CALL:
            self._enter_module(frame, _C.local_of(frame, 0))
        elif trust is not Trust.PASSES_ON and code not in _WRAPPERS and self._is_analysed(frame.f_back):
            self._enter_trusted(frame, code, trust)
        return None

    def _known_code(self, frame):
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            trust = trust_in(code, frame.f_globals.get("__name__") or "")
            follow = None
            if trust is Trust.ANALYSED:
                if id(code) not in self.reads.tables:
                    self.reads.tables[id(code)] = (code, _table_of(code))
                follow = self._follower(self.reads.tables[id(code)][1])
            known = self._codes[id(code)] = (code, trust, follow)
        return known

    def _is_analysed(self, frame):
        known = self._codes.get(id(frame.f_code)) if frame is not None else None
        return known is not None and known[1] is Trust.ANALYSED

    def _follower(self, table):
        """A trace function for frames of a code object."""

        def follow(frame, event, arg):
            if event == "opcode":
                entry = table.get(frame.f_lasti)
                if entry is not None:
                    try:
                        entry[0](self, frame, *entry[1:])
                    except Exception as error:
                        self._fail(frame, error)
            return follow

        return follow

    def _leave(self, frame, event, arg):
        if event == "return":
            self._inside = None
        return self._leave

    def _fail(self, frame, error):
        self._because(frame, f"cannot be followed ({type(error).__name__}: {error})")

    def _because(self, frame, words):
        if self.reason is None:
            self.reason = f"{self._line(frame)} {words}"

    def _line(self, frame):
        """Where the innermost code that is looked into stands."""
        at = frame
        while at is not None and not self._is_analysed(at):
            at = at.f_back
        at = at or frame
        return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}"

    # ---- frames

    def _enter(self, frame, code):
        root, self._root = self._root, False
        if code.co_flags & (0x80 | 0x200):  # coroutines
            self._because(frame, "awaits")
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        if root:
            for index in range(count):
                if self.arguments is None:
                    self._argument(_C.local_of(frame, index), code.co_varnames[index])
                self._name_argument(_C.local_of(frame, index), code.co_varnames[index])
        if count and code.co_name == "__init__":
            self._made.add(id(_C.local_of(frame, 0)))
        elif count and not self._is_analysed(frame.f_back):
            self._called_back(_C.local_of(frame, 0), code.co_varnames[0])
        function = _C.function_of(frame)
        if not root and id(function) not in self._outside:
            if not count or not self._is_method(frame, function, _C.local_of(frame, 0)):
                return
        self._register(function, code.co_name)
        self._place(frame, function, ITEM, "__code__", f"the code of {code.co_name}()")
        for name, defaults in (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)):
            if defaults:
                self._place(frame, function, ITEM, name, f"a default of {code.co_name}()")
                for value in defaults.values() if isinstance(defaults, dict) else defaults:
                    self._register(value, f"a default of {code.co_name}()")
            if isinstance(defaults, dict):
                self._place(frame, defaults, CONTENTS, None, f"a default of {code.co_name}()")

    def _is_method(self, frame, function, one):
        """Whether it was found on the type of its first argument; watched there."""
        for kind in one.__mro__ if isinstance(one, type) else type(one).__mro__:
            raw = vars(kind).get(function.__name__, _MISSING)
            if raw is not _MISSING:
                bare = getattr(raw, "__func__", None) or getattr(raw, "fget", None) or raw
                if bare is function or getattr(bare, "__wrapped__", None) is function:
                    self._place(frame, kind, ITEM, function.__name__, f"{kind.__name__}.{function.__name__}")
                    return True
                return False
        return False

    def _called_back(self, one, words):
        """An object whose method is called by code that is not looked into, and that may have been there before."""
        if id(one) in self._made or id(one) in self._arguments or isinstance(one, (type, *_SIMPLE, *_ITERATES)):
            return
        if not is_library(type(one).__module__):
            self._register(one, words)

    def _name_argument(self, value, words):
        if id(value) in self._arguments or self._is_outside(value):
            self._words[id(value)] = words

    def _argument(self, value, words):
        """An argument of the step: containers are the batch's and part of the signature, objects in them are not."""
        if isinstance(value, _SIMPLE) or id(value) in self._arguments:
            return
        items = ()
        if isinstance(value, collections.abc.Mapping):
            items = ((f"{words}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            items = ((f"{words}[{index}]", item) for index, item in enumerate(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            items = ((f"{words}.{field.name}", getattr(value, field.name, None)) for field in fields)
        else:
            self._register(value, words)
            return
        self._arguments[id(value)] = value
        self._words[id(value)] = words
        for path, item in items:
            self._argument(item, path)

    def _enter_optimizer(self, frame):
        optimizer = _C.local_of(frame, 0)
        if isinstance(optimizer, tuple):
            optimizer = optimizer[0] if optimizer else None
        if isinstance(optimizer, torch.optim.Optimizer):
            self.found[id(optimizer)] = (optimizer, self._words.get(id(optimizer), type(optimizer).__name__))
            if id(optimizer) not in self.optimizers:
                self._because(frame.f_back or frame, f"steps a {type(optimizer).__name__} that was not found before")
        self._inside = "optimizer"
        return self._leave

    def _enter_module(self, frame, module):
        if isinstance(module, tuple):
            module = module[0] if module else None
        self._module(frame, module)

    def _module(self, frame, module):
        """What torch's own code reads of a module that is called."""
        if not isinstance(module, torch.nn.Module) or id(module) in self._seen:
            return
        self._seen[id(module)] = module
        words = self._words.get(id(module), type(module).__name__)
        self._register(module, words)
        self.found[id(module)] = (module, words)
        attributes = module.__dict__
        self._place(frame, module, TYPE, None, words)
        for name in _HOOKS:
            self._place(frame, attributes[name], CONTENTS, None, f"the hooks of {words}")
            for hook in attributes[name].values():
                self._register(hook, f"a hook of {words}")
        self._place(frame, attributes, ITEM, "forward", f"{words}.forward")
        if "forward" in attributes:
            self._register(attributes["forward"], f"{words}.forward")
        if isinstance(module, _HOLDERS):
            self._place(frame, module._modules, CONTENTS, None, f"the modules of {words}")
        if isinstance(module, _HOLDERS) or any(
            kind.__module__.startswith("torch.") and kind is not torch.nn.Module for kind in type(module).__mro__
        ):
            for name, value in list(attributes.items()):
                if name not in _OF_MODULE:
                    self._place(frame, attributes, ITEM, name, f"{words}.{name}")
                    self._register(value, f"{words}.{name}")
                    self._whole(frame, value)
            for name, buffer in module._buffers.items():
                self._place(frame, module._buffers, ITEM, name, f"{words}.{name}")
            for name, parameter in module._parameters.items():
                if parameter is None:
                    self._place(frame, module._parameters, ITEM, name, f"{words}.{name}")
            for name, child in module._modules.items():
                self._name(child, f"{words}.{name}")
                self._module(frame, child)

    def _enter_trusted(self, frame, code, trust):
        module = frame.f_globals.get("__name__") or ""
        if trust is Trust.EFFECT:
            words = effect_of(module) or f"calls {module}.{code.co_name}(), which is not known"
            self._because(frame.f_back, words)
            return
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        cells = len(code.co_cellvars)
        for index in range(count):
            value = _C.local_of(frame, index)
            if cells and isinstance(value, types.CellType):
                value = value.cell_contents
            self._whole(frame.f_back, value)

    # ---- places and objects

    def _place(self, frame, container, how, name, words):
        key = (id(container), how, name)
        if key in self._known:
            return
        self._known.add(key)
        self.places.append(self.reads.add(container, how, name, words, self._line(frame)))

    def _name(self, value, words):
        if not isinstance(value, _SIMPLE):
            self._words.setdefault(id(value), words)

    def _register(self, value, words):
        """An object that was there before the call."""
        if isinstance(value, _SIMPLE) or value is ABSENT or id(value) in self._outside:
            return
        self._outside[id(value)] = value
        self._words.setdefault(id(value), words)
        if isinstance(value, types.MethodType):
            self._register(value.__self__, "self" if words == "self" else f"{words}.__self__")
            self._register(value.__func__, words)
        elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
            self._register(value.__self__, words)

    def _is_outside(self, value):
        return id(value) in self._outside

    def _words_of(self, value):
        return self._words.get(id(value)) or f"a {type(value).__name__}"

    def _shallow(self, frame, value):
        """All that a container from outside holds is read."""
        if isinstance(value, _SIMPLE):
            return
        if id(value) in self._arguments:
            return
        if not self._is_outside(value):
            return
        words = self._words_of(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            self._contents(frame, value, words)
            for key, item in list(value.items()):
                self._register(key, f"a key of {words}")
                self._register(item, f"{words}[{key!r}]")
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            self._contents(frame, value, words)
            for index, item in enumerate(list(value)):
                self._register(item, f"{words}[{index}]")
        elif isinstance(value, numpy.ndarray):
            self._contents(frame, value, words)
        elif hasattr(type(value), "__next__"):
            self._because(frame, f"advances {words}, an iterator from outside of the step")

    def _contents(self, frame, value, words):
        if isinstance(value, (tuple, frozenset)):
            return
        if contents_of(value) is None:
            self._because(frame, f"reads {words}, which is too large to be compared")
            return
        self._place(frame, value, CONTENTS, None, words)

    def _whole(self, frame, value, depth=0):
        """Everything about an object is read by code that is not looked into."""
        if isinstance(value, _SIMPLE) or id(value) in self._arguments:
            return
        if isinstance(value, (list, tuple)) and not self._is_outside(value):
            for item in value[:MOST_ELEMENTS]:
                self._whole(frame, item, depth + 1)
            return
        if type(value) is dict and not self._is_outside(value):
            for item in value.values():
                self._whole(frame, item, depth + 1)
            return
        if not self._is_outside(value) or id(value) in self._seen:
            return
        if isinstance(value, torch.nn.Module):
            self.found[id(value)] = (value, self._words_of(value))
            for path, part in value.named_modules(prefix=self._words_of(value)):
                self._register(part, path)
            if any(kind.__module__.startswith("torch.") and kind is not torch.nn.Module for kind in type(value).__mro__):
                self._module(frame, value)
            return
        if isinstance(value, torch.optim.Optimizer):
            self.found[id(value)] = (value, self._words_of(value))
            return
        self._seen[id(value)] = value
        if words := effect_of(type(value).__module__):
            self._because(frame, words)
            return
        if isinstance(value, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.Generator)):
            self._callable(frame, value)
            return
        if isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
            self._because(frame, f"draws from {self._words_of(value)}")
            return
        if depth > 50 or len(self._seen) > MOST_ELEMENTS:
            self._because(frame, f"hands {self._words_of(value)} on, which is too large to be compared")
            return
        self._shallow(frame, value)
        words = self._words_of(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            inner = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            inner = list(value)
        elif isinstance(value, types.MethodType):
            inner = [value.__self__] if isinstance(value.__func__, types.BuiltinFunctionType) else []
        elif isinstance(value, functools.partial):
            inner = [value.func, value.args, value.keywords]
            for one in inner:
                self._register(one, words)
        else:
            inner = []
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, types.MethodType):
            self._register(attributes, words)
            self._contents(frame, attributes, words)
            for name, item in list(attributes.items()):
                self._register(item, f"{words}.{name}")
                inner.append(item)
        for kind in type(value).__mro__:
            for name, raw in vars(kind).items():
                if isinstance(raw, types.MemberDescriptorType) and not is_library(kind.__module__):
                    self._place(frame, value, ITEM, name, f"{words}.{name}")
                    item = getattr(value, name, None)
                    self._register(item, f"{words}.{name}")
                    inner.append(item)
        for item in inner:
            self._whole(frame, item, depth + 1)

    def _changes(self, frame, value, words):
        """The opcode writes to `value`."""
        if id(value) in self._arguments:
            self._because(frame, f"changes {words}, an argument of the step")
        elif self._is_outside(value):
            self._because(frame, f"changes {words}")

    # ---- reading

    def _attribute(self, frame, one, name, words):
        if isinstance(one, types.ModuleType):
            value = one.__dict__.get(name, ABSENT)
            self._place(frame, one.__dict__, ITEM, name, words)
            self._register(value, words)
        elif isinstance(one, type):
            self._class_attribute(frame, one.__mro__, name)
        elif type(one) is super:
            kinds = one.__self_class__.__mro__
            raw = self._class_attribute(frame, kinds[kinds.index(one.__thisclass__) + 1 :], name)
        elif isinstance(one, torch.Tensor):
            if name in one.__dict__:
                self._place(frame, one.__dict__, ITEM, name, words)
                self._register(one.__dict__[name], words)
        elif not isinstance(one, PLAIN) or isinstance(one, (numpy.generic, slice)):
            self._instance_attribute(frame, one, name, words)

    def _class_attribute(self, frame, kinds, name):
        for kind in kinds:
            raw = vars(kind).get(name, _MISSING)
            if not is_library(kind.__module__):
                self._place(frame, kind, ITEM, name, f"{kind.__name__}.{name}")
            if raw is _MISSING:
                continue
            self._register(raw, f"{kind.__name__}.{name}")
            for bare in (getattr(raw, "__func__", None), getattr(raw, "fget", None)):
                if isinstance(bare, types.FunctionType):
                    self._register(bare, f"{kind.__name__}.{name}")
            return raw
        return _MISSING

    def _instance_attribute(self, frame, one, name, words):
        raw = self._class_attribute(frame, type(one).__mro__, name)
        kind = type(raw)
        if name == "__dict__":
            if self._is_outside(one):
                self._register(one.__dict__, words)
            return
        if not self._is_outside(one):
            return
        if raw is not _MISSING and (hasattr(kind, "__set__") or hasattr(kind, "__delete__")):
            if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                value = getattr(one, name, ABSENT)
                if isinstance(raw, types.MemberDescriptorType) or isinstance(value, PLAIN):
                    self._place(frame, one, ITEM, name, words)
                self._register(value, words)
            if isinstance(one, numpy.ndarray):
                self._shallow(frame, one)
            return
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict):
            value = dict.get(attributes, name, ABSENT)
            if value is not ABSENT:
                self._place(frame, attributes, ITEM, name, words)
                self._register(value, words)
                return
            self._place(frame, attributes, ITEM, name, words)
            if raw is _MISSING and isinstance(one, torch.nn.Module):
                for held in ("_parameters", "_buffers", "_modules"):
                    self._place(frame, attributes[held], ITEM, name, words)
                    self._register(attributes[held].get(name), words)
        if raw is not _MISSING and isinstance(raw, functools.cached_property):
            self._because(frame, f"changes {words}, which is kept once it was asked for")

    def _item(self, frame, container, key, words):
        if id(container) in self._arguments or not self._is_outside(container):
            return
        if isinstance(container, dict):
            if key not in container and isinstance(container, collections.defaultdict):
                self._because(frame, f"changes {words}")
                return
            self._place(frame, container, ITEM, key, words)
            self._register(dict.get(container, key, ABSENT), words)
        elif isinstance(container, (list, tuple)):
            if isinstance(key, int):
                index = key + len(container) if key < 0 else key
                if not 0 <= index < len(container):
                    self._place(frame, container, LENGTH, None, words)
                    return
                if key < 0:
                    self._length(frame, container)
                if isinstance(container, list):
                    self._place(frame, container, ITEM, index, words)
                self._register(container[index], words)
            else:
                self._shallow(frame, container)
        else:
            self._shallow(frame, container)
            getter = next((vars(k)["__getitem__"] for k in type(container).__mro__ if "__getitem__" in vars(k)), None)
            native = not isinstance(getter, types.FunctionType) and getter is not None
            if native and not isinstance(container, (*_ITERATES, *TENSORS, numpy.ndarray, type)):
                if not is_pure_native(type(container).__module__):
                    self._because(frame, f"reads {words}, which is not known")

    def _length(self, frame, container):
        if self._is_outside(container) and isinstance(container, CONTAINERS):
            self._place(frame, container, LENGTH, None, self._words_of(container))
        elif self._is_outside(container):
            self._shallow(frame, container)

    # ---- calls

    def _callable(self, frame, called, arguments=()):
        """A call of native code, or a callable that is handed on; Python functions are met as frames."""
        if isinstance(called, types.MethodType):
            if isinstance(called.__func__, types.FunctionType):
                return
            arguments, called = (called.__self__, *arguments), called.__func__
        if isinstance(called, types.FunctionType):
            return
        if isinstance(called, types.BuiltinFunctionType):
            owner = called.__self__
            if owner is None or isinstance(owner, types.ModuleType):
                self._native(frame, called.__module__ or "", called.__name__, arguments)
            elif isinstance(owner, type):
                self._native(frame, owner.__module__, f"{owner.__name__}.{called.__name__}", arguments)
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
            if self._is_outside(called):
                words = self._words_of(called)
                for one in (called.func, called.args, called.keywords):
                    self._register(one, words)
                    self._shallow(frame, one)
            self._callable(frame, called.func, (*called.args, *arguments))
        else:
            self._called_object(frame, called, arguments)

    def _called_object(self, frame, called, arguments):
        kind = type(called)
        own = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
        if own is None or isinstance(own, types.FunctionType):
            return
        if isinstance(called, weakref.ref):
            self._register(called(), f"what {self._words_of(called)} refers to")
            return
        if kind is functools._lru_cache_wrapper:  # hashes what it is given; what it has not kept is met as a frame
            self._outside_result = id(frame)
            return
        module = getattr(called, "__module__", None) or kind.__module__  # a Cython function's own
        if is_pure_native(module):
            if getattr(called, "__name__", "") in CHANGES_FIRST and arguments:
                self._changes(frame, arguments[0], self._words_of(arguments[0]))
            for argument in arguments:
                self._whole(frame, argument)
            return
        self._because(frame, effect_of(module) or f"calls {self._words_of(called)}, which is not known")

    def _native(self, frame, module, name, arguments):
        if module == "builtins":
            self._builtin(frame, name, arguments)
            return
        if not module or is_pure_native(module):
            if name in CHANGES_FIRST and arguments and not module.startswith("torch"):
                self._changes(frame, arguments[0], self._words_of(arguments[0]))
            for argument in arguments:
                self._whole(frame, argument)
            return
        self._because(frame, effect_of(module) or f"calls {module}.{name}(), which is not known")

    def _builtin(self, frame, name, arguments):
        if words := BUILTIN_EFFECTS.get(name):
            self._because(frame, words)
        elif name in ("getattr", "hasattr"):
            if isinstance(arguments[1], str):
                self._attribute(frame, arguments[0], arguments[1], f"{self._words_of(arguments[0])}.{arguments[1]}")
        elif name in ("setattr", "delattr"):
            self._store(frame, arguments[0], arguments[1], f"{self._words_of(arguments[0])}.{arguments[1]}")
        elif name == "next":
            self._changes_iterator(frame, arguments[0])
        elif name in ("len", "bool"):
            for argument in arguments:
                self._length(frame, argument)
        elif name in ("isinstance", "issubclass", "callable"):
            return
        elif name == "vars":
            for argument in arguments:
                self._whole(frame, argument)
                if self._is_outside(argument):
                    self._register(argument.__dict__, self._words_of(argument))
        elif name in PURE_BUILTINS or name.startswith("dict."):
            for argument in arguments:
                self._shallow(frame, argument)
                self._callable_argument(frame, argument)
        elif name in ("object.__new__", "type.__new__"):
            return
        elif name == "__import__":
            return
        else:
            self._because(frame, f"calls {name}(), which is not known")

    def _callable_argument(self, frame, argument):
        if isinstance(argument, (types.BuiltinFunctionType, types.MethodWrapperType, functools.partial)):
            self._callable(frame, argument)

    def _changes_iterator(self, frame, value):
        if self._is_outside(value) or id(value) in self._arguments:
            self._because(frame, f"advances {self._words_of(value)}, an iterator from outside of the step")

    def _method(self, frame, owner, name, arguments):
        """A native method; what it is given is read."""
        if isinstance(owner, TENSORS):
            if isinstance(owner, torch.Generator) and name in MUTATORS:
                self._because(frame, "sets a random generator")
            for argument in arguments:
                self._whole(frame, argument)
            return
        if isinstance(owner, PLAIN):
            for argument in arguments:
                self._shallow(frame, argument)
            return
        if name == "__call__":
            self._callable(frame, owner, arguments)
            return
        if name in ("__setattr__", "__delattr__") and arguments:
            self._store(frame, owner, arguments[0], f"{self._words_of(owner)}.{arguments[0]}")
            return
        if name in ("__getattribute__",) and arguments:
            self._attribute(frame, owner, arguments[0], f"{self._words_of(owner)}.{arguments[0]}")
            return
        outside = self._is_outside(owner)
        argument_of_step = id(owner) in self._arguments
        if isinstance(owner, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
            self._because(frame, "draws from a random generator of Python or NumPy")
            return
        if (outside or argument_of_step) and name in MUTATORS and name != "__init__":
            if hasattr(type(owner), "__next__"):
                self._changes_iterator(frame, owner)
            elif name == "setdefault" and arguments and isinstance(owner, dict) and arguments[0] in owner:
                self._item(frame, owner, arguments[0], f"{self._words_of(owner)}[{arguments[0]!r}]")
            elif hasattr(owner, "write"):
                self._because(frame, "writes to a file")
            else:
                self._changes(frame, owner, self._words_of(owner))
            return
        for argument in arguments:
            self._shallow(frame, argument)
            self._callable_argument(frame, argument)
        if not outside:
            return
        if isinstance(owner, dict) and name in ("get", "__getitem__", "__contains__") and arguments:
            self._item(frame, owner, arguments[0], f"{self._words_of(owner)}[{arguments[0]!r}]")
        elif isinstance(owner, (*CONTAINERS, tuple, frozenset, numpy.ndarray)):
            self._shallow(frame, owner)
        elif isinstance(owner, (type, types.FunctionType)) or is_pure_native(type(owner).__module__):
            self._whole(frame, owner)
        elif name in _OBJECT_METHODS:
            self._whole(frame, owner)
        else:
            self._because(frame, f"calls {type(owner).__module__}.{type(owner).__name__}.{name}(), which is not known")

    def _construct(self, frame, kind, arguments):
        module = kind.__module__
        if module in ("builtins", "itertools", "collections", "functools", "types"):
            if kind is type and len(arguments) == 1:
                return
            if kind is bool:
                for argument in arguments:
                    self._length(frame, argument)
                return
            for argument in arguments:
                self._shallow(frame, argument)
                self._callable_argument(frame, argument)
            return
        if is_pure_native(module):
            for argument in arguments:
                self._whole(frame, argument)
            return
        if words := effect_of(module):
            self._because(frame, words)
            return
        # The person's own class: its functions are met as frames; made by native code alone it keeps what it is given.
        made = next((base for base in kind.__mro__ if "__init__" in vars(base)), object)
        new = next((base for base in kind.__mro__ if "__new__" in vars(base)), object)
        for base in (made, new):
            if base.__module__ not in ("builtins",) and not is_pure_native(base.__module__) and not _has_python(base):
                self._because(frame, f"makes a {kind.__name__}, which is not known")

    # ---- writing

    def _store(self, frame, one, name, words):
        if isinstance(one, type):
            self._because(frame, f"changes {words}")
            return
        if isinstance(one, torch.Tensor):
            if name in ("grad", "requires_grad"):
                return
            if isinstance(one, torch.nn.Parameter) or name in ("data",):
                self._because(frame, f"changes {words}")
            return
        self._changes(frame, one, words)


def _has_python(kind):
    return any(isinstance(vars(kind).get(name), (types.FunctionType, staticmethod)) for name in ("__init__", "__new__"))


def _both(previous, own):
    """A trace function for another's and ours."""

    def trace(frame, event, arg):
        nonlocal previous
        if event == "opcode":
            own(frame, event, arg)
        else:
            if previous is not None:
                previous = previous(frame, event, arg)
            if event == "return":
                own(frame, event, arg)
        return trace

    return trace


# ---- opcodes: each is given the watch, the frame, and what its code says


def _load_global(watch, frame, name):
    words = f"global '{name}' of {os.path.basename(frame.f_code.co_filename)}"
    if name in frame.f_globals:
        watch._place(frame, frame.f_globals, ITEM, name, words)
        watch._register(frame.f_globals[name], name)
    else:
        watch._place(frame, frame.f_globals, ITEM, name, words)
        watch._register(frame.f_builtins.get(name, ABSENT), name)


def _load_name(watch, frame, name):
    if name in frame.f_globals or name in frame.f_builtins:
        _load_global(watch, frame, name)


def _load_deref(watch, frame, index, name, is_free):
    cell = _C.local_of(frame, index)
    if not is_free or not isinstance(cell, types.CellType) or id(cell) in watch._cells:
        return
    watch._place(frame, cell, ITEM, 0, f"'{name}' of {frame.f_code.co_name}()")
    try:
        watch._register(cell.cell_contents, name)
    except ValueError:
        return


def _load_closure(watch, frame, index, name, is_free):
    if not is_free:
        cell = _C.local_of(frame, index)
        watch._cells[id(cell)] = cell


def _store_deref(watch, frame, index, name, is_free):
    if is_free and id(_C.local_of(frame, index)) not in watch._cells:
        watch._because(frame, f"changes {name}, a variable of the function around it")


def _store_global(watch, frame, name):
    watch._because(frame, f"changes the global {name}")


def _load_attribute(watch, frame, name, words):
    (one,) = _C.top_of_stack(frame, 1)
    watch._attribute(frame, one, name, words or f"{watch._words_of(one)}.{name}")


def _store_attribute(watch, frame, name, words):
    one = _C.top_of_stack(frame, 1)[0]
    watch._store(frame, one, name, words or f"{watch._words_of(one)}.{name}")


def _load_item(watch, frame, words):
    key, container = _C.top_of_stack(frame, 2)
    if isinstance(container, _SIMPLE):
        watch._whole(frame, key)
        return
    watch._item(frame, container, key, f"{words or watch._words_of(container)}[{_key_words(key)}]")


def _key_words(key):
    return repr(key) if isinstance(key, (int, str, float, bool)) else type(key).__name__


def _store_item(watch, frame, words):
    key, container = _C.top_of_stack(frame, 2)
    if not isinstance(container, torch.Tensor):
        watch._changes(frame, container, f"{words or watch._words_of(container)}[{_key_words(key)}]")


def _binary(watch, frame, is_in_place):
    right, left = _C.top_of_stack(frame, 2)
    if is_in_place and isinstance(left, (*CONTAINERS, numpy.ndarray)):
        watch._changes(frame, left, watch._words_of(left))
    for one in (left, right):
        if isinstance(one, (*CONTAINERS, tuple, frozenset, numpy.ndarray)):
            watch._shallow(frame, one)


def _contains(watch, frame):
    container, key = _C.top_of_stack(frame, 2)
    if isinstance(container, dict):
        if watch._is_outside(container):
            watch._place(frame, container, ITEM, key, f"{watch._words_of(container)}[{_key_words(key)}]")
    else:
        watch._shallow(frame, container)


def _truth(watch, frame):
    (one,) = _C.top_of_stack(frame, 1)
    if not isinstance(one, _SIMPLE):
        watch._length(frame, one)


def _iterate(watch, frame, depth=0):
    one = _C.top_of_stack(frame, depth + 1)[depth]
    if isinstance(one, _SIMPLE):
        return
    if hasattr(type(one), "__next__"):
        watch._changes_iterator(frame, one)
    elif isinstance(one, _ITERATES) or isinstance(one, numpy.ndarray):
        watch._shallow(frame, one)
    elif watch._is_outside(one) and not any(isinstance(vars(k).get("__iter__"), types.FunctionType)
                                            or isinstance(vars(k).get("__getitem__"), types.FunctionType)
                                            for k in type(one).__mro__):
        watch._because(frame, f"takes from {watch._words_of(one)}, which is not known")


def _call_function(watch, frame, count):
    stack = _C.top_of_stack(frame, count + 2)
    arguments = stack[count - 1 :: -1] if count else ()
    method, called = stack[count + 1], stack[count]
    if method is not None:
        arguments, called = (called, *arguments), method
    watch._callable(frame, called, tuple(arguments))


def _after_call(watch, frame, entry):
    if watch._outside_result == id(frame):
        watch._outside_result = None
        watch._register(_C.top_of_stack(frame, 1)[0], "what a cached function returns")
    if entry is not None:
        entry[0](watch, frame, *entry[1:])


def _call_unpacked(watch, frame, has_keywords):
    stack = _C.top_of_stack(frame, 3)
    keywords = stack[0] if has_keywords else {}
    positional = stack[1] if has_keywords else stack[0]
    called = stack[2] if has_keywords else stack[1]
    watch._shallow(frame, positional)
    watch._shallow(frame, keywords)
    if not isinstance(positional, (tuple, list)):
        positional = ()
    values = tuple(keywords.values()) if isinstance(keywords, dict) else ()
    watch._callable(frame, called, (*positional, *values))


def _merge(watch, frame):
    watch._shallow(frame, _C.top_of_stack(frame, 1)[0])


def _match(watch, frame, depth):
    watch._whole(frame, _C.top_of_stack(frame, depth + 1)[depth])


def _format(watch, frame, with_spec):
    value = _C.top_of_stack(frame, 2)[1 if with_spec else 0]
    watch._whole(frame, value)


def _enter_context(watch, frame):
    (one,) = _C.top_of_stack(frame, 1)
    enter = next((vars(kind)["__enter__"] for kind in type(one).__mro__ if "__enter__" in vars(kind)), None)
    if not isinstance(enter, types.FunctionType) and not is_pure_native(type(one).__module__):
        watch._because(frame, f"enters {watch._words_of(one)}, which is not known")


def _await(watch, frame):
    watch._because(frame, "awaits")


def _import_name(watch, frame, name):
    module = sys.modules.get(name)
    watch._place(frame, sys.modules, ITEM, name, f"module {name}")
    if module is None:
        return
    watch._register(module, name)
    watch._register(sys.modules.get(name.split(".")[0]), name.split(".")[0])


_CHAIN = {"LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"}


def _written(instructions, index):
    """The expression on the top of the stack before instruction `index` as it is written: `self.config.lr`, or None."""
    names = []
    index -= 1
    while index >= 0 and instructions[index].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        names.append(instructions[index].argval)
        index -= 1
    if index < 0 or instructions[index].opname not in _CHAIN:
        return None
    return ".".join([instructions[index].argval, *reversed(names)])


def _written_before_update(instructions, index):
    """The same of `self.calls += 1`, where the object is copied before the attribute is read."""
    name = instructions[index].argval
    for before in range(index - 1, 0, -1):
        one = instructions[before]
        if one.opname == "LOAD_ATTR" and one.argval == name and instructions[before - 1].opname == "COPY":
            return _written(instructions, before - 1)
    return None


_IN_PLACE = 13  # the first in-place operator of BINARY_OP

# How deep in the stack the subject lies.
_MATCHES = {"MATCH_CLASS": 2, "MATCH_KEYS": 1, "MATCH_SEQUENCE": 0, "MATCH_MAPPING": 0, "GET_LEN": 0}
_SIMPLE_OPCODES = {
    "POP_JUMP_FORWARD_IF_TRUE": _truth, "POP_JUMP_FORWARD_IF_FALSE": _truth, "POP_JUMP_BACKWARD_IF_TRUE": _truth,
    "POP_JUMP_BACKWARD_IF_FALSE": _truth, "JUMP_IF_TRUE_OR_POP": _truth, "JUMP_IF_FALSE_OR_POP": _truth,
    "UNARY_NOT": _truth, "CONTAINS_OP": _contains, "GET_ITER": _iterate, "GET_YIELD_FROM_ITER": _iterate,
    "UNPACK_SEQUENCE": _iterate, "UNPACK_EX": _iterate, "LIST_EXTEND": _merge, "SET_UPDATE": _merge,
    "DICT_UPDATE": _merge, "DICT_MERGE": _merge, "BEFORE_WITH": _enter_context, "GET_AWAITABLE": _await,
    "GET_AITER": _await, "BEFORE_ASYNC_WITH": _await,
}


def _table_of(code):
    """Offset of each opcode that reads or writes -> (function, what the code says about it)."""
    table = {}
    instructions = [one for one in dis.get_instructions(code)]
    local_names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    free = set(code.co_freevars)
    prefix, is_result = None, False
    for index, one in enumerate(instructions):
        op, entry = one.opname, None
        if op == "EXTENDED_ARG":
            prefix = one.offset if prefix is None else prefix
            continue
        written = _written(instructions, index)
        if op in _SIMPLE_OPCODES:
            entry = (_SIMPLE_OPCODES[op],)
        elif op == "LOAD_GLOBAL":
            entry = (_load_global, one.argval)
        elif op == "LOAD_NAME":
            entry = (_load_name, one.argval)
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            entry = (_load_deref, one.arg, one.argval, one.argval in free)
        elif op == "LOAD_CLOSURE":
            entry = (_load_closure, one.arg, one.argval, one.argval in free)
        elif op in ("STORE_DEREF", "DELETE_DEREF"):
            entry = (_store_deref, one.arg, one.argval, one.argval in free)
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            entry = (_store_global, one.argval)
        elif op in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            entry = (_load_attribute, one.argval, written and f"{written}.{one.argval}")
        elif op in ("STORE_ATTR", "DELETE_ATTR"):
            written = written or _written_before_update(instructions, index)
            entry = (_store_attribute, one.argval, written and f"{written}.{one.argval}")
        elif op == "BINARY_SUBSCR":
            entry = (_load_item, None)
        elif op in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            entry = (_store_item, None)
        elif op == "BINARY_OP":
            entry = (_binary, one.arg >= _IN_PLACE)
        elif op == "COMPARE_OP":
            entry = (_binary, False)
        elif op == "PRECALL":
            entry = (_call_function, one.arg)
        elif op == "CALL_FUNCTION_EX":
            entry = (_call_unpacked, bool(one.arg & 1))
        elif op == "FORMAT_VALUE":
            entry = (_format, bool(one.arg & 4))
        elif op in _MATCHES:
            entry = (_match, _MATCHES[op])
        elif op == "IMPORT_NAME":
            entry = (_import_name, one.argval)
        if is_result:
            entry = (_after_call, entry)
        if entry is not None:
            table[one.offset] = entry
            if prefix is not None:
                table[prefix] = entry
        prefix, is_result = None, op in ("CALL", "CALL_FUNCTION_EX")
    return table
