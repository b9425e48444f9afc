"""The modes around a step's code. Each call of a torch function passes through a mode, which answers calls that the
dispatcher cannot see. Tracing surrounds a step whose calls are compared with a plan's, Seeing a step that is
recorded."""

import contextlib
import os
import sys
import weakref

import numpy
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily, handle_torch_function

from stepc import _C, host_draws, host_values
from stepc.event_marks import MarksOfClasses
from stepc.kernel_launches import Launches
from stepc.read_numbers import READ, make_plain

_CONVERSIONS = {torch.Tensor.__float__, torch.Tensor.__int__}
_NOT_THERE = "Cannot access data pointer of Storage that is invalid"  # c10: a plan has not computed this memory yet
# Tensor.backward() runs code that sees no function of torch for it.
_BACKWARD = torch.Tensor.backward


def uncompiled():
    """Surrounds a step's code: functions of torch.compile run uncompiled, so that their calls are seen."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


class _Arrays:
    """The arrays that Tensor.numpy() gave a step's code: the code may write to their memory, and no recording sees
    that."""

    def __init__(self):
        self.given = []  # weakly, with an array on the same memory, its contents then, and the place of the call

    def give(self, tensor, line):
        array, memory = _C.array_of(tensor), _C.array_of(tensor)
        self.given.append((weakref.ref(array), memory, memory.copy(), line))
        return array

    def take_written(self):
        """Takes the arrays that have changed, as (memory, contents before, place of the call), and forgets them and the
        arrays that nobody holds."""
        written, rest = [], []
        for one in self.given:
            array, memory, held, line = one
            if memory.tobytes() != held.tobytes():
                written.append((memory, held, line))
            elif array() is not None:
                rest.append(one)
                continue
            _C.hide_memory(memory.base)
        self.given = rest
        return written


def _written_to(line):
    return f"what Tensor.numpy() (at {line}) gives is written to, which no recording sees"


def _backward(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """Like Tensor.backward()."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _called(func):
    """The named function of torch itself; the program may have bound its name to a wrapper."""
    at = sys._getframe(2)
    if at.f_code is not handle_torch_function.__code__ or at.f_back.f_code is getattr(func, "__code__", None):
        return func
    code = getattr(func, "__code__", None)
    return func if code is not None and code.co_filename.startswith(_TORCH) else _C.function_of(at.f_back)


class _Unseen(TorchFunctionMode):
    """A mode that is hidden from torch's own code: some of it (TransformerEncoder's) takes other branches if a mode is
    set."""

    def __enter__(self):
        self._asked = torch.overrides.has_torch_function
        torch.overrides.has_torch_function = torch.autograd.has_torch_function = self._has_torch_function
        return super().__enter__()

    def __exit__(self, kind, error, trace):
        torch.overrides.has_torch_function = torch.autograd.has_torch_function = self._asked
        return super().__exit__(kind, error, trace)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = _called(func)
        if func is _BACKWARD and type(args[0]) in (torch.Tensor, torch.nn.Parameter):
            super().__enter__()  # for the code of functions and hooks, which belongs to the program
            try:
                return _backward(*args, **kwargs or {})
            finally:
                super().__exit__(None, None, None)
        return self.call(func, args, kwargs or {})

    def _has_torch_function(self, arguments):
        if _get_current_function_mode() is not self:
            return self._asked(arguments)
        with _pop_mode_temporarily():
            return self._asked(arguments)


class Tracing(_Unseen):
    """Surrounds a step whose calls are compared and not computed: code that asks for values without the dispatcher gets
    them."""

    def __init__(self, scout):
        super().__init__()
        self.scout = scout
        self.marks = MarksOfClasses(scout)
        self.launches = Launches(_leave)
        self.arrays = _Arrays()

    def __enter__(self):
        self.uncompiled = uncompiled()
        self.uncompiled.__enter__()
        self.marks.set()
        self.launches.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._look_at_arrays()
        self.arrays.given.clear()
        super().__exit__(*error)
        self.launches.__exit__(*error)
        self.marks.remove()
        self.uncompiled.__exit__(*error)

    def _look_at_arrays(self):
        """If the step's code wrote to an array, leaves the plan as it was before the write, and repeats the write."""
        if not (written := self.arrays.take_written()):
            return
        by_now = [memory.copy() for memory, _, _ in written]
        for memory, held, _ in written:
            memory[...] = held
        _leave(_written_to(written[0][2]))
        for (memory, _, _), now in zip(written, by_now):
            memory[...] = now

    def call(self, func, args, kwargs):
        if self.arrays.given:
            self._look_at_arrays()
        name = host_values.unseen(func, args)
        if name is not None:
            numbers = host_values.numbers_of(args[0], name) if host_values.is_plain(args, kwargs) else None
            if numbers is not None and name == "tolist()":
                return numbers
            if numbers is not None and _C.show_memory(args[0], numbers):
                return self.arrays.give(args[0], self.scout.source_line())
            _leave(f"Tensor.{name} gives values to the host that no recording sees")
        if (given := host_values.with_values(func, args, kwargs)) is not None:
            args, kwargs, _ = given
        if func is torch.Tensor.__deepcopy__ and (made := host_values.deep_copy(*args)) is not None:
            return made
        if (made := host_draws.drawn(self.scout, func, args, kwargs)) is not None:
            return made
        try:
            return _noted(func, func(*args, **kwargs))
        except RuntimeError as error:
            if _NOT_THERE not in str(error):
                raise
        _leave(f"{func.__name__}() reads values past the dispatcher")
        return func(*args, **kwargs)


_DATA_OF = torch.Tensor.data.__get__


def _noted(func, result):
    """A result of `func`; tells the engine about it even if no call that the engine sees has made it."""
    if func == _DATA_OF:
        _C.note_made(result)
    return result


def _leave(why):
    _C.leave_trace(why)
    _C.report_obstacle(why)  # the step may have left its trace before, and may be recorded


class Seeing(_Unseen):
    def __init__(self, scout):
        super().__init__()
        self.scout = scout
        self.follow = None  # the Watch of the step's own code
        self.numbers = []  # read by code that the watch does not inspect
        self.arrays = _Arrays()
        self.launches = Launches(_C.report_obstacle)

    def __enter__(self):
        self.launches.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._look_at_arrays()
        self.arrays.given.clear()
        make_plain(self.numbers)
        self.launches.__exit__(*error)
        return super().__exit__(*error)

    def _look_at_arrays(self):
        for _, _, line in self.arrays.take_written():
            _C.report_obstacle(_written_to(line))

    def call(self, func, args, kwargs):
        if self.arrays.given:
            self._look_at_arrays()
        name = host_values.unseen(func, args)
        if name is not None:
            line = self.scout.source_line()
            if self.scout.on_ranks and name in ("tolist()", "numpy()") and args[0].numel() > host_values.MOST_NUMBERS:
                _C.report_obstacle(f"Tensor.{name} (at {line}) gives {args[0].numel()} values to the host, and ranks read up to "
                                   f"{host_values.MOST_NUMBERS} of a tensor")
                nothing = numpy.zeros(tuple(args[0].shape))
                return nothing.tolist() if name == "tolist()" else nothing
            before = _C.host_reads_so_far()
            numbers = host_values.numbers_of(args[0], name) if host_values.is_plain(args, kwargs) else None
            if numbers is not None and self.scout.on_ranks:
                host_values.report_comparisons(before)
                return numbers
            if numbers is not None:
                if self.scout.python == "pure":
                    host_values.report_comparisons(before)
                else:
                    _C.report_effect(f"Tensor.{name} (at {line}) gives values to the host")
                return self.arrays.give(args[0], line) if name == "numpy()" else numbers
            _C.report_obstacle(f"Tensor.{name} (at {line}) gives values to the host that no recording sees")
        if (given := host_values.with_values(func, args, kwargs)) is not None:
            args, kwargs, name = given
            _C.report_effect(f"{name} (at {self.scout.source_line()}) decides by a tensor's values")
        if func is torch.Tensor.__deepcopy__ and (made := host_values.deep_copy(*args)) is not None:
            return made
        if (made := host_draws.drawn(self.scout, func, args, kwargs)) is not None:
            _C.report_effect(f"{func.__name__}() (at {self.scout.source_line()}) draws from a generator that the step makes")
            return made
        reads = _C.host_reads_so_far()
        if self.scout.on_ranks and (func in host_values.COMPARING or host_values.is_text(func, args)):
            made = host_values.truth_of(func, args, kwargs) if func in host_values.COMPARING else host_values.text_of(args[0])
            if made is not None:
                host_values.report_comparisons(reads)
                return made
        result = _noted(func, func(*args, **kwargs))
        if func in _CONVERSIONS and _C.host_reads_so_far() > reads:
            _C.report_comparison(_C.host_reads_so_far() - 1)  # Python's use of a plain number is invisible
        is_read = func is torch.Tensor.item and _C.host_reads_so_far() > reads  # recorded, not only watched
        if is_read and type(result) in READ and (self.follow is not None or self.scout.python == "pure"):
            number = self.follow and self.follow.read(sys._getframe(2), result, _C.host_reads_so_far() - 1)
            if number is not None:
                return number
            self.numbers.append(READ[type(result)](result, _C.host_reads_so_far() - 1))
            return self.numbers[-1]
        return result
