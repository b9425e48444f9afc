"""Whether a replay may skip a step's Python: while the step is recorded, every opcode of the person's code (and of
libraries other than torch, NumPy and the standard library) is inspected before it is executed.

What the opcode reads from outside the call becomes a Place (reads.py). An effect outside tensors, or a read that cannot
be compared later (the clock, files, iterators that advance), is a reason why a replay may not skip the Python. While
everything that was read is unchanged, a replay takes the same path through the code as the recording, so only this path
counts.

An object is outside if it was reached from outside: through a global, a captured variable, an argument that is no
container of the batch, or another such object. Everything else was made in this call.
"""

import abc
import collections
import collections.abc
import contextlib
import contextvars
import copy
import dataclasses
import functools
import gc
import operator
import os
import random
import sys
import types
import weakref

import numpy
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stepc import _C, tree
from stepc.watch import bare
from stepc.watch.bytecode import why_unwatched
from stepc.watch.known import (
    ASKS_MACHINE, BUFFERS, BUILTIN_EFFECTS, CHANGES_FIRST, CONTAINERS, HOOKS, ITERATES, MUTATORS, PLAIN,
    PURE_BUILTINS, SIMPLE, TELLS_ORIGIN, TENSORS, VIEWS, Trust, effect_of, is_library, is_operator,
    is_pure_native, trust_in,
)
from stepc.watch.opcodes import table_of
from stepc.watch.reads import ABSENT, Answer, CONTENTS, ITEM, LENGTH, MOST_ELEMENTS, TYPE, contents_of, same

_MISSING = object()
_MODULE_CALLS = {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}
_IMMUTABLE = 1 << 8  # in a type's flags
_HEAP_TYPE = 1 << 9  # the same: an object of it may be given another class
_EVERY = torch.nn.modules.module
_HOOKS_OF_ALL = {
    "the hooks of all modules": (_EVERY._global_forward_hooks, _EVERY._global_forward_pre_hooks,
                                 _EVERY._global_backward_hooks, _EVERY._global_backward_pre_hooks),
    "the hooks of all optimizers": (_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
}
# Of every object.
_OBJECT_METHODS = {"__init__", "__new__", "__init_subclass__", "__eq__", "__ne__", "__hash__", "__getstate__", "__str__",
                   "__repr__", "__format__"}
# A module's own containers: their entries are read one by one, or belong to the engine.
_OF_MODULE = {*vars(torch.nn.Module()), "_compiled_call_impl"}
_HOLDERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)


def _codes_in(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)


# What torch puts around every optimizer's step(), and a scheduler around its own optimizer's.
_OPTIMIZER_STEP = next(_codes_in(torch.optim.Optimizer.profile_hook_step.__code__))
_WRAPPERS = set(_codes_in(torch.optim.lr_scheduler.LRScheduler.__init__.__code__))

_DISPATCH = next(code for code in _codes_in(functools.singledispatch.__code__) if code.co_name == "dispatch")
_RECONSTRUCT = copy._reconstruct.__code__
# What reads a variable of the environment -> which argument names it; before that one stands os.environ.
_ENVIRONMENT_READS = {os.getenv.__code__: 0, type(os.environ).__getitem__.__code__: 1,
                      collections.abc.Mapping.get.__code__: 1, collections.abc.Mapping.__contains__.__code__: 1}
_INITIAL_SEED = torch.initial_seed.__code__
_KEEP = (dict, list, tuple, collections.deque, types.SimpleNamespace)  # of what they are made they change nothing
_PUTS = {"append", "appendleft", "insert", "extend", "update", "setdefault"}  # into a container, as it is
_COMPARES = {"sort", "index", "count", "remove"}  # what the container holds
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


class _Registered:
    """Counts the classes that were registered with abstract ones."""

    __slots__ = ()
    token = property(lambda self: abc.get_cache_token())


_REGISTERED = _Registered()


class Watch:
    """Follows one recorded call of a step.

    `reason` says afterwards why the call is not earned, and is None if it is. start() and stop() may come again for a part
    of the same call that comes later, as the backward pass of a loop: what was made in it is so still.
    """

    def __init__(self, reads, optimizers, arguments=None, bound=(), scheduler_code=None, apart=(), on_ranks=False):
        self.reads = reads
        self.on_ranks = on_ranks  # where the step's code runs by what it reads, and what it changes is put back
        self._scalers = []  # gradient scalers that it used, and their words
        self._contexts = {}  # variables of the context that it set -> (what they held before, where)
        self.arguments = arguments  # of the step; None: those of the first function that is followed
        self.bound = bound  # what the step's function is bound to
        self.optimizers = {id(optimizer) for optimizer in optimizers}
        self.scheduler_code = scheduler_code  # of the function that stands for a scheduler's step()
        self.reason = None
        self.places = []  # of this call, with the number of what stood there
        self.found = {}  # modules and optimizers that the call used: id -> (object, words)
        self._outside = {}  # id -> object
        self._arguments = {}
        self._apart = apart  # ids of objects among them that are taken apart (tree.py)
        self._objects = {}  # id -> such an object
        self.attributes = set()  # (class, name) that is read of them, name None: all
        self._arrays = set()  # ids of arrays among them
        self._batch = set()  # ids of tensors among them
        self._words = {}
        self._seen = {}  # looked at whole: id -> object
        self._deep = {}  # looked at by deep(): id -> object
        self._numbers = {}  # read from tensors by the code that is looked at: id -> (number, which read)
        self.cells = set()  # ids of those made in this call; what lies in them is not to live longer for us
        self._made = set()  # ids of objects whose __init__ ran in this call
        self._codes = {}  # id of a code object -> (it, trust, how it is followed)
        self._known = set()  # (id, how, name) of places
        self.outside_result = None  # id of the frame whose call returns an object that was there before
        self._depth = None  # of the stack, where an opcode is looked at
        self._inside = None  # of an optimizer's or scheduler's step, which runs at every replay
        self._root = True
        self._previous = None
        for words, all_hooks in _HOOKS_OF_ALL.items():
            for hooks in all_hooks:
                self.places.append(reads.add(hooks, CONTENTS, None, words, "the call"))
                for hook in hooks.values():
                    self.register(hook, f"one of {words}")

    # ---- tracing

    def start(self):
        if why := why_unwatched():
            self.reason = why
            return
        for argument in self.arguments or ():
            self._argument(argument, "batch")
        for one in self.bound:
            self.register(one, "self")
        self._previous = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 prepares for opcodes if a frame asked before it is told
        sys.settrace(self._call)

    def stop(self):
        if why_unwatched():
            return
        sys.settrace(self._previous)
        ended, self.places = self.places, []
        for place, number in ended:
            if not place.still_holds(number):
                self.reads.drop(place)
                # What a mode answers that the step itself has entered is told by its code.
                if self.reason is None and not isinstance(place.container, Answer):
                    self.reason = f"{place.line} reads {place.words}, which the step changes"
        for scaler, words in self._scalers:
            if not scaler._per_optimizer_states:
                continue
            if self.reason is None:
                self.reason = f"the step ends between {words}'s step() and its update(): call {words}.update() in the step"
            scaler._per_optimizer_states.clear()  # as it was: what it has seen here was never computed
        self._scalers.clear()
        for variable, (before, line) in self._contexts.items():
            if self.reason is None and not same(variable.get(ABSENT), before):
                self.reason = f"{line} sets the context variable '{variable.name}', which the step leaves set"
        self._contexts.clear()
        self.arguments = self.bound = ()
        for table in (self._seen, self._deep, self._codes):  # those followers hold us
            table.clear()

    def let_go(self):
        """After the last stop()."""
        for table in (self._numbers, self._outside, self._arguments, self._objects):
            table.clear()

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
        if code.co_name == "__init__" and code.co_argcount:
            self._made.add(id(_given(frame, 0)))
        _, trust, follow = self._known_code(frame)
        if self._inside is not None:
            if self._inside == "scheduler" and trust is Trust.ANALYSED:
                self.because(frame, "runs in a scheduler's step")
            return None
        if trust is Trust.ANALYSED:
            frame.f_trace = follow  # CPython 3.13 asks for opcodes only where there is one
            frame.f_trace_opcodes = True
            self._enter(frame, code)
            return follow
        if code is _OPTIMIZER_STEP:
            return self._enter_optimizer(frame)
        if code is self.scheduler_code:
            self._inside = "scheduler"
            return self._leave
        if code in _MODULE_CALLS:
            self._enter_module(frame, _given(frame, 0))
        elif code is _DISPATCH:
            registry = _C.function_of(frame).__closure__[code.co_freevars.index("registry")].cell_contents
            self.register(registry, "the functions of a generic one")
            self.shallow(frame.f_back, registry)
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
                    self.reads.tables[id(code)] = (code, table_of(code))
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
                    self._depth = entry[0]
                    try:
                        entry[1](self, frame, *entry[2:])
                    except Exception as error:
                        self._fail(frame, error)
            return follow

        return follow

    def top(self, frame, count):
        """Of the stack of a frame whose opcode is looked at: the topmost first."""
        return _C.top_of_stack(frame, count, self._depth)

    def _leave(self, frame, event, arg):
        if event == "return":
            self._inside = None
        return self._leave

    def _fail(self, frame, error):
        text = str(error).partition("\n")[0]
        self.because(frame, f"cannot be followed ({type(error).__name__}: {text})")

    def because(self, frame, words):
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
            self.because(frame, "awaits")
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        if root:
            named = code.co_argcount + code.co_kwonlyargcount
            for index in range(count):
                value, words = _given(frame, index), code.co_varnames[index]
                if self.arguments is None and index < named:
                    self._argument(value, words)
                elif self.arguments is None:  # *args and **kwargs are made for the call
                    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                        self._argument(item, f"{words}[{key!r}]")
                self._name_argument(value, words)
        if count and not self._is_analysed(frame.f_back):
            self._called_back(frame.f_back, _given(frame, 0), code.co_varnames[0])
        function = _C.function_of(frame)
        if not root and id(function) not in self._outside:
            if not count or not self._is_method(frame, function, _given(frame, 0)):
                return
        self.register(function, code.co_name)
        self._function(frame, function, code.co_name)

    def _function(self, frame, function, name):
        """What calls of it run, and with what where they give nothing."""
        self.place(frame, function, ITEM, "__code__", f"the code of {name}()")
        for where, defaults in (("__defaults__", function.__defaults__), ("__kwdefaults__", function.__kwdefaults__)):
            if defaults:
                self.place(frame, function, ITEM, where, f"a default of {name}()")
                for value in defaults.values() if isinstance(defaults, dict) else defaults:
                    self.register(value, f"a default of {name}()")
            if isinstance(defaults, dict):
                self.place(frame, defaults, CONTENTS, None, f"a default of {name}()")

    def _is_method(self, frame, function, one):
        """Whether it was found on the type of its first argument; watched there."""
        for kind in (*one.__mro__, *type(one).__mro__) if isinstance(one, type) else type(one).__mro__:
            raw = vars(kind).get(function.__name__, _MISSING)
            if raw is not _MISSING:
                bare = getattr(raw, "__func__", None) or getattr(raw, "fget", None) or raw
                if bare is function or getattr(bare, "__wrapped__", None) is function:
                    self._methods(frame, one if isinstance(one, type) else type(one))
                    return True
                return False
        return False

    def _called_back(self, caller, one, words):
        """An object whose method is called by code that is not looked into, and that may have been there before."""
        if id(one) in self._made or id(one) in self._arguments or isinstance(one, (type, *SIMPLE, *ITERATES)):
            return
        if caller.f_code is _RECONSTRUCT and caller.f_locals.get("y") is one:  # the copy that copy makes, without __init__
            self._made.add(id(one))
            return
        if not is_library(type(one).__module__):
            self.register(one, words)

    def _name_argument(self, value, words):
        if id(value) in self._arguments or self.is_outside(value):
            self._words[id(value)] = words

    def _argument(self, value, words):
        """An argument of the step: containers are the batch's and part of the signature, objects in them are not."""
        if isinstance(value, torch.Tensor):
            self._batch.add(id(value))
        if isinstance(value, SIMPLE) or id(value) in self._arguments:
            return
        items = ()
        if isinstance(value, collections.abc.Mapping):
            items = ((f"{words}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            items = ((f"{words}[{index}]", item) for index, item in enumerate(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            items = ((f"{words}.{field.name}", getattr(value, field.name, None)) for field in fields)
        elif id(value) in self._apart:
            self._objects[id(value)] = value
            items = [(f"{words}.{name}", item) for name, item in tree.attributes_of(value).items()]
        else:
            if isinstance(value, numpy.ndarray):
                self._arrays.add(id(value))
            self.register(value, words)
            return
        self._arguments[id(value)] = value
        self._words[id(value)] = words
        for path, item in items:
            self._argument(item, path)

    def _enter_optimizer(self, frame):
        optimizer = _given(frame, 0)
        if isinstance(optimizer, tuple):
            optimizer = optimizer[0] if optimizer else None
        if isinstance(optimizer, torch.optim.Optimizer):
            self.found[id(optimizer)] = (optimizer, self._words.get(id(optimizer), type(optimizer).__name__))
            if id(optimizer) not in self.optimizers:
                self.because(frame.f_back or frame, f"steps a {type(optimizer).__name__} that was not found before")
        self._inside = "optimizer"
        return self._leave

    def _enter_module(self, frame, module):
        if isinstance(module, tuple):
            module = module[0] if module else None
        self._module(frame, module)

    def _module(self, frame, module):
        """What torch's own code reads of a module that is called."""
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

    def _enter_trusted(self, frame, code, trust):
        if code is _INITIAL_SEED:
            self.because(frame.f_back, "reads the seed of a random generator")
            return
        named = _ENVIRONMENT_READS.get(code)
        if named is not None and (named == 0 or _given(frame, 0) is os.environ) and isinstance(_given(frame, named), str):
            self._variable(frame.f_back, _given(frame, named))
            for index in range(named + 1, code.co_argcount):
                self.whole(frame.f_back, _given(frame, index))
            return
        module = frame.f_globals.get("__name__") or ""
        if trust is Trust.EFFECT:
            self.because(frame.f_back, effect_of(module) or f"calls {module}.{code.co_name}(), which is not known")
            return
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        if not count:
            self._asked(frame.f_back, _C.function_of(frame), code.co_name)
        for index in range(count):
            self.whole(frame.f_back, _given(frame, index))

    def _variable(self, frame, name):
        """One of the environment's is compared where os.environ keeps it."""
        self.place(frame, os.environ._data, ITEM, os.environ.encodekey(name), f"os.environ[{name!r}]")

    def _asked(self, frame, function, name):
        """A function of torch without arguments may tell a setting of its own, which is compared by asking again."""
        is_setting = name.startswith(("is_", "get_")) or name.endswith("_enabled")
        module = getattr(function, "__module__", None) or ""
        if not is_setting or name in ASKS_MACHINE or module.startswith(("torch.cuda", "torch.distributed")):
            return
        answer = self.reads.answer(function)
        if isinstance(answer.now, PLAIN):
            self.place(frame, answer, ITEM, "now", f"{name}()")

    # ---- places and objects

    def place(self, frame, container, how, name, words):
        key = (id(container), how, name)
        if key in self._known:
            return
        self._known.add(key)
        self.places.append(self.reads.add(container, how, name, words, self._line(frame)))

    def _type(self, frame, one, words):
        """Which class an object is of decides what its attributes and methods are."""
        if type(one).__flags__ & _HEAP_TYPE:
            self.place(frame, one, TYPE, None, f"the class of {words}")
            self._methods(frame, type(one))

    def _methods(self, frame, kind):
        """Which methods a class has, its own or of its bases: one that comes later may stand before one that ran."""
        if not kind.__flags__ & _IMMUTABLE:
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
        """An object that was there before the call."""
        if value is ABSENT or id(value) in self._outside or isinstance(value, SIMPLE) and not _has_attributes(value):
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
        """All that a container from outside holds is read."""
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
        """As shallow(), of the containers in it, too: native code that compares, sums or copies goes into them.

        decides  what it makes of a number that the step has read is not seen
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
        """Everything about an object is read by code that is not looked into."""
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
        """Between unscale_() and update() it knows what it has seen of each optimizer, and before and after it nothing."""
        words = self.words_of(scaler)
        self._scalers.append((scaler, words))
        self._type(frame, scaler, words)
        for name in (one for one in vars(scaler) if one != "_per_optimizer_states"):
            self.place(frame, scaler.__dict__, ITEM, name, f"{words}.{name}")

    def changes(self, frame, value, words):
        """The opcode writes to `value`."""
        if id(value) in self._arguments:
            self.because(frame, f"changes {words}, an argument of the step")
        elif self.is_outside(value):
            self.because(frame, f"changes {words}")

    # ---- reading

    def attribute(self, frame, one, name, words):
        if isinstance(one, types.ModuleType) and self._computes(type(one), name):
            self.place(frame, one, ITEM, name, words)
        elif isinstance(one, types.ModuleType):
            value = one.__dict__.get(name, ABSENT)
            self.place(frame, one.__dict__, ITEM, name, words)
            self.register(value, words)
            if value is ABSENT:
                self.place(frame, one.__dict__, ITEM, "__getattr__", f"{self.words_of(one)}.__getattr__")
        elif isinstance(one, type):
            for kind in (type(one), one):
                self._methods(frame, kind)
            self._class_attribute(frame, type(one).__mro__, name)
            self._class_attribute(frame, one.__mro__, name)
        elif type(one) is super:
            kinds = one.__self_class__.__mro__
            raw = self._class_attribute(frame, kinds[kinds.index(one.__thisclass__) + 1 :], name)
        elif isinstance(one, torch.Tensor):
            if name in TELLS_ORIGIN:
                self.because(frame, f"reads {words}, which tells where a tensor's memory comes from")
            if not _is_of_class(one, name):
                self._attribute_of_tensor(frame, one, name, words)
        elif not isinstance(one, PLAIN) or isinstance(one, (numpy.generic, slice)) or _has_attributes(one):
            self._instance_attribute(frame, one, name, words)

    def _attribute_of_tensor(self, frame, one, name, words):
        """One that Python code gives it, or does not."""
        if id(one) in self._batch:
            if name in one.__dict__:  # whether it has one, its structure tells
                self.because(frame, f"reads {words}, an attribute of a tensor that the step is given")
        elif name in one.__dict__ or isinstance(one, torch.nn.Parameter):
            self.place(frame, one.__dict__, ITEM, name, words)
            self.register(one.__dict__.get(name), words)

    def _computes(self, kind, name):
        """Whether modules of this kind have a property of that name, as torch.backends' do."""
        return kind is not types.ModuleType and any(hasattr(type(vars(k).get(name)), "__set__") for k in kind.__mro__)

    def _class_attribute(self, frame, kinds, name):
        for kind in kinds:
            raw = vars(kind).get(name, _MISSING)
            is_setting = isinstance(raw, PLAIN) and not kind.__flags__ & _IMMUTABLE
            if is_setting or not is_library(kind.__module__):
                self.place(frame, kind, ITEM, name, f"{kind.__name__}.{name}")
            if raw is _MISSING:
                continue
            self.register(raw, f"{kind.__name__}.{name}")
            for bare in (getattr(raw, "__func__", None), getattr(raw, "fget", None)):
                if isinstance(bare, types.FunctionType):
                    self.register(bare, f"{kind.__name__}.{name}")
            if isinstance(getattr(type(raw), "__get__", None), types.FunctionType) and is_library(type(raw).__module__):
                self.whole(frame, raw)  # as functools.partialmethod, whose code is not looked into
            return raw
        return _MISSING

    def _instance_attribute(self, frame, one, name, words):
        raw = self._class_attribute(frame, type(one).__mro__, name)
        kind = type(raw)
        if kind is functools.cached_property and name not in vars(one):
            if id(one) in self._arguments or id(one) in self._objects or self.is_outside(one):
                self.because(frame, f"changes {words}, which is kept once it was asked for")
            return
        if id(one) in self._objects:
            self._attribute_of_batch(one, name, raw)
            return
        if name == "__dict__":
            if self.is_outside(one):
                self.register(one.__dict__, words)
            return
        if not self.is_outside(one):
            return
        self._type(frame, one, self.words_of(one))
        if raw is not _MISSING and (hasattr(kind, "__set__") or hasattr(kind, "__delete__")):
            if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                value = getattr(one, name, ABSENT)
                if isinstance(raw, types.MemberDescriptorType) or isinstance(value, PLAIN):
                    self.place(frame, one, ITEM, name, words)
                self.register(value, words)
            elif isinstance(raw, property):
                if not isinstance(raw.fget, types.FunctionType):  # that is met as a frame
                    self.callable(frame, raw.fget, (one,))
            elif not any(isinstance(vars(base).get("__get__"), types.FunctionType) for base in kind.__mro__):
                value = getattr(one, name, ABSENT)
                self.register(value, words)
                if isinstance(value, PLAIN) and not isinstance(one, tuple):
                    self.place(frame, one, ITEM, name, words)
                elif not isinstance(one, tuple):
                    self.because(frame, f"reads {words}, which is not known")
            if isinstance(one, BUFFERS):
                self.shallow(frame, one)
            return
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict):
            value = dict.get(attributes, name, ABSENT)
            if value is not ABSENT:
                self.place(frame, attributes, ITEM, name, words)
                self.register(value, words)
                return
            self.place(frame, attributes, ITEM, name, words)
            if raw is _MISSING and isinstance(one, torch.nn.Module):
                for held in ("_parameters", "_buffers", "_modules"):
                    self.place(frame, attributes[held], ITEM, name, words)
                    self.register(attributes[held].get(name), words)
        if raw is _MISSING:
            made_by = self._class_attribute(frame, type(one).__mro__, "__getattr__")
            if made_by is not _MISSING and not isinstance(made_by, types.FunctionType):  # that is met as a frame
                self.callable(frame, made_by, (one, name))

    def _attribute_of_batch(self, one, name, raw):
        """Its tensors are the step's inputs; another value that is read is part of the signature."""
        if name == "__dict__":
            self.attributes.add((type(one), None))
            return
        kind = type(raw)
        is_computed = hasattr(kind, "__set__") and kind is not types.MemberDescriptorType
        if not is_computed and not isinstance(getattr(one, name, None), torch.Tensor):
            self.attributes.add((type(one), name))

    def item(self, frame, container, key, words):
        if id(container) in self._arguments or not self.is_outside(container):
            return
        self._type(frame, container, self.words_of(container))
        if isinstance(container, dict):
            if isinstance(container, collections.defaultdict) and not dict.__contains__(container, key):
                self.because(frame, f"changes {words}")
                return
            self.place(frame, container, ITEM, key, words)
            self.register(dict.get(container, key, ABSENT), words)
        elif isinstance(container, (list, tuple)):
            if isinstance(key, int):
                length = bare.length(container)
                index = key + length if key < 0 else key
                if not 0 <= index < length:
                    self.place(frame, container, LENGTH, None, words)
                    return
                if key < 0:
                    self.length(frame, container)
                if isinstance(container, list):
                    self.place(frame, container, ITEM, index, words)
                self.register(bare.method(container, "__getitem__")(index), words)
            else:
                self.shallow(frame, container)
        else:
            self.shallow(frame, container)
            getter = next((vars(k)["__getitem__"] for k in type(container).__mro__ if "__getitem__" in vars(k)), None)
            native = not isinstance(getter, types.FunctionType) and getter is not None
            if native and not isinstance(container, (*ITERATES, *TENSORS, *BUFFERS, type)):
                if not is_pure_native(type(container).__module__):
                    self.because(frame, f"reads {words}, which is not known")

    # ---- numbers that the step has read from tensors

    def read(self, frame, number, which):
        """The number to hand to the code of `frame`, which has read it; None where that code is not looked at."""
        if self._inside is not None or frame.f_trace is None or not self._is_analysed(frame):
            return None
        number = _C.own_int(number) if isinstance(number, int) else number
        self._numbers[id(number)] = number, which
        return number

    def _decides(self, value):
        """The opcode does with `value` what may decide something: it is more than handed on."""
        if id(value) in self._numbers:
            _C.report_comparison(self._numbers[id(value)][1])

    def truth(self, frame, value):
        self._decides(value)
        if not isinstance(value, SIMPLE):
            self.length(frame, value)

    def length(self, frame, container):
        if self.is_outside(container) and isinstance(container, CONTAINERS):
            self._type(frame, container, self.words_of(container))
            self.place(frame, container, LENGTH, None, self.words_of(container))
        elif self.is_outside(container):
            self.shallow(frame, container)

    # ---- calls

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

    # ---- writing

    def store(self, frame, one, name, words):
        if isinstance(one, type):
            self.because(frame, f"changes {words}")
            return
        if isinstance(one, torch.Tensor):
            if name in ("grad", "requires_grad"):
                return
            if isinstance(one, torch.nn.Parameter) or name in ("data",) or not _is_of_class(one, name):
                self.because(frame, f"changes {words}")
            return
        self.changes(frame, one, words)


def _given(frame, index):
    """An argument of a function that has just begun; one that an inner function uses is in a cell by then."""
    value = _C.local_of(frame, index)
    if isinstance(value, types.CellType) and frame.f_code.co_varnames[index] in frame.f_code.co_cellvars:
        return value.cell_contents
    return value


def _is_of_class(one, name):
    return name not in one.__dict__ and any(name in vars(kind) for kind in type(one).__mro__)


def _has_attributes(value):
    """A number or a text of a class of the person's."""
    return not isinstance(value, torch.Tensor) and hasattr(value, "__dict__")


def _classes_in(values):
    for value in values:
        if isinstance(value, tuple):
            yield from _classes_in(value)
        else:
            yield value


def _is_of_torch(module):
    """A class of torch's has code that reads what it likes of the module."""
    return any(kind.__module__.startswith("torch.") and kind is not torch.nn.Module for kind in type(module).__mro__)


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
