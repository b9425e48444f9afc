"""Whether a replay may skip a step's Python: while the step is recorded, every opcode of the person's code (and of
libraries other than torch, NumPy and the standard library) is inspected before it is executed.

What the opcode reads from outside the call becomes a Place (reads.py). An effect outside tensors, or a read that cannot
be compared later (the clock, files, iterators that advance), is a reason why a replay may not skip the Python. As long
as everything that was read is unchanged, a replay takes the same path through the code as the recording, so only this
path counts.

objects.py holds the objects that a call meets; accesses.py and calls.py say what opcodes (opcodes.py) do with them;
this file follows the frames.
"""

import collections.abc
import copy
import dataclasses
import functools
import os
import sys
import types

import numpy
import torch

from stepc import _C, tree
from stepc.watch.bytecode import begin_tracing, end_tracing, why_unwatched
from stepc.watch.calls import Calls
from stepc.watch.known import ITERATES, SIMPLE, Trust, effect_of, is_library, trust_in
from stepc.watch.opcodes import table_of
from stepc.watch.reads import ABSENT, ITEM, Answer, same

_MISSING = object()
_MODULE_CALLS = {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}


def _codes_in(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)


# The code that torch wraps around every optimizer's step(), and a scheduler around its own optimizer's.
_OPTIMIZER_STEP = next(_codes_in(torch.optim.Optimizer.profile_hook_step.__code__))
_WRAPPERS = set(_codes_in(torch.optim.lr_scheduler.LRScheduler.__init__.__code__))

_DISPATCH = next(code for code in _codes_in(functools.singledispatch.__code__) if code.co_name == "dispatch")
_RECONSTRUCT = copy._reconstruct.__code__
# Functions that read a variable of the environment -> the argument that names it; os.environ precedes that argument.
_ENVIRONMENT_READS = {os.getenv.__code__: 0, type(os.environ).__getitem__.__code__: 1,
                      collections.abc.Mapping.get.__code__: 1, collections.abc.Mapping.__contains__.__code__: 1}
_INITIAL_SEED = torch.initial_seed.__code__


class Watch(Calls):
    """Follows one recorded call of a step.

    Afterwards `reason` says why the step may not be replayed without its Python; None if it may. start() and stop() may
    be called again for a later part of the same call, such as the backward pass of a loop: objects made in the call
    stay known as such.
    """

    def __init__(self, reads, optimizers, arguments=None, bound=(), scheduler_code=None, apart=(), on_ranks=False):
        super().__init__(reads, on_ranks)
        self.arguments = arguments  # of the step; None: those of the first followed function
        self.bound = bound  # the objects to which the step's function is bound
        self.optimizers = {id(optimizer) for optimizer in optimizers}
        self.scheduler_code = scheduler_code  # of the function that replaces a scheduler's step()
        self.cells = set()  # ids of cells made in this call; their contents must not live longer because of the watch
        self._apart = apart  # ids of the step's arguments that are taken apart (tree.py)
        self._depth = None  # of the stack, at the present opcode
        self._inside = None  # an optimizer's or scheduler's step, which runs at every replay
        self._root = True
        self._traces = False
        self._previous = None

    # ---- tracing

    def start(self):
        if why := why_unwatched() or begin_tracing():
            self.reason = why
            return
        self._traces = True
        for argument in self.arguments or ():
            self._argument(argument, "batch")
        for one in self.bound:
            self.register(one, "self")
        self._previous = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 prepares for opcodes only if a frame asked before tracing
        sys.settrace(self._call)

    def stop(self):
        if not self._traces:
            return
        sys.settrace(self._previous)
        end_tracing()
        ended, self.places = self.places, []
        for place, number in ended:
            if not place.still_holds(number):
                self.reads.drop(place)
                # A mode that the step itself has entered answers by its own code.
                if self.reason is None and not isinstance(place.container, Answer):
                    self.reason = f"{place.line} reads {place.words}, which the step changes"
        for scaler, words in self._scalers:
            if not scaler._per_optimizer_states:
                continue
            if self.reason is None:
                self.reason = f"the step ends between {words}'s step() and its update(): call {words}.update() in the step"
            scaler._per_optimizer_states.clear()  # its state before: the results seen here were never computed
        self._scalers.clear()
        for variable, (before, line) in self._contexts.items():
            if self.reason is None and not same(variable.get(ABSENT), before):
                self.reason = f"{line} sets the context variable '{variable.name}', which the step leaves set"
        self._contexts.clear()
        self.arguments = self.bound = ()
        for table in (self._seen, self._deep, self._codes):  # the followers in it hold the watch
            table.clear()

    def let_go(self):
        """Called after the last stop()."""
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
            frame.f_trace = follow  # CPython 3.13 reports opcodes only if there is one
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
        """The stack of a frame at the present opcode, the topmost value first."""
        return _C.top_of_stack(frame, count, self._depth)

    def _leave(self, frame, event, arg):
        if event == "return":
            self._inside = None
        return self._leave

    def _fail(self, frame, error):
        text = str(error).partition("\n")[0]
        self.because(frame, f"cannot be followed ({type(error).__name__}: {text})")

    def read(self, frame, number, which):
        """The number to give to the code of `frame`, which has read it; None if that code is not inspected."""
        if self._inside is not None or frame.f_trace is None or not self._is_analysed(frame):
            return None
        number = _C.own_int(number) if isinstance(number, int) else number
        self._numbers[id(number)] = number, which
        return number

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

    def _is_method(self, frame, function, one):
        """Whether the function was found on the type of its first argument; the type is then watched."""
        for kind in (*one.__mro__, *type(one).__mro__) if isinstance(one, type) else type(one).__mro__:
            raw = vars(kind).get(function.__name__, _MISSING)
            if raw is not _MISSING:
                inner = getattr(raw, "__func__", None) or getattr(raw, "fget", None) or raw
                if inner is function or getattr(inner, "__wrapped__", None) is function:
                    self._methods(frame, one if isinstance(one, type) else type(one))
                    return True
                return False
        return False

    def _called_back(self, caller, one, words):
        """Code that is not inspected calls a method of this object, which may have existed before."""
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
        """An argument of the step: its containers belong to the batch and to the signature, objects in them do not."""
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
        """A variable of the environment is compared in os.environ."""
        self.place(frame, os.environ._data, ITEM, os.environ.encodekey(name), f"os.environ[{name!r}]")


def _given(frame, index):
    """An argument of a function that has just begun; a variable that an inner function uses is in a cell already."""
    value = _C.local_of(frame, index)
    if isinstance(value, types.CellType) and frame.f_code.co_varnames[index] in frame.f_code.co_cellvars:
        return value.cell_contents
    return value


def _both(previous, own):
    """A trace function that calls another one and the watch's."""

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
