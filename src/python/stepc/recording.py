"""What a recording needs from Python: module paths, the marks of optimizers' updates, and a watch for what the
dispatcher cannot see."""

import collections
import contextlib
import copy
import functools
import gc
import os
import random
import sys
import threading
import types
import weakref

import numpy
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily, handle_torch_function

from stepc import _C, host_draws, tree
from stepc.watch import bare, walk
from stepc.module_calls import around_modules
from stepc.watch.reads import ABSENT
from stepc.watch.watch import Watch

# Tensor methods that hand values to the host behind the dispatcher's back.
_UNSEEN = {
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.__array__: "numpy()",
    torch.Tensor.data_ptr: "data_ptr()",
    torch.Tensor.__dlpack__: "__dlpack__()",
    torch.Tensor._version.__get__: "_version",
}
_MAX_SCALARS = 100_000


_CONVERSIONS = {torch.Tensor.__float__, torch.Tensor.__int__}
# Functions that read integers of tensors on the host where no recording sees it, to decide what they call: by name, and
# the argument with which those begin.
_DECIDING = {
    torch.tensor_split: ("tensor_split()", 1),
    torch.Tensor.tensor_split: ("tensor_split()", 1),
    torch.nn.functional.ctc_loss: ("ctc_loss()", 2),
    torch.ctc_loss: ("ctc_loss()", 2),
    torch._VF.lstm: ("lstm()", 1),
    torch._VF.gru: ("gru()", 1),
    torch._VF.rnn_tanh: ("rnn_tanh()", 1),
    torch._VF.rnn_relu: ("rnn_relu()", 1),
    torch._VF._pad_packed_sequence: ("pad_packed_sequence()", 1),
}
_MAKING = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}  # of lists of tensors, perhaps
_MOST_NUMBERS = 64  # that are read one by one, as numbers, instead of as memory
_NOT_THERE = "Cannot access data pointer of Storage that is invalid"  # c10 of memory that a plan has not computed yet
# Tensor.backward() is no function of torch's to the code that it runs.
_BACKWARD = torch.Tensor.backward


# Functions that tell of whole tensors whether they are alike, and what gives the same as a tensor.
_COMPARING = {
    torch.equal: torch.eq,
    torch.Tensor.equal: torch.eq,
    torch.allclose: torch.isclose,
    torch.Tensor.allclose: torch.isclose,
}


def _truth_of(func, args, kwargs):
    """What `func` says of two tensors, as one number that is read; None where it says nothing, but raises."""
    one, other = (*args, *kwargs.values())[:2]
    if not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return None
    if _COMPARING[func] is torch.eq and one.shape != other.shape:
        return False
    return bool(_COMPARING[func](*args, **kwargs).all().item())


def _report_comparisons(before):
    """Whoever has what was made of numbers that were read since `before` may do anything by it."""
    for read in range(before, _C.host_reads_so_far()):
        _C.report_comparison(read)


def _is_text(func, args):
    """Whether it gives what repr() does; format() of a single number is that of the number."""
    return func is torch.Tensor.__repr__ or (func is torch.Tensor.__format__ and args[0].dim() > 0 and args[1] == "")


def _text_of(tensor):
    """What repr() gives, of numbers that recordings see read; None for a tensor of which it would read too many."""
    if tensor.layout is not torch.strided or tensor.numel() > _MOST_NUMBERS or tensor.is_complex():
        return None
    numbers = _numbers_of(tensor, "tolist()")
    made = []

    def show():
        values = torch.tensor(numbers, dtype=tensor.dtype)
        contents = torch._tensor_str._tensor_str(values, len(type(tensor).__name__) + 1)
        made.append(tensor.__repr__(tensor_contents=contents))

    aside = threading.Thread(target=show)  # whose calls are no part of the recording
    aside.start()
    aside.join()
    return made[0]


def _with_values(func, args, kwargs):
    """The arguments with values in the tensors that `func` reads past the dispatcher, so that recordings see them read,
    and its name; None where it reads none."""
    if func in _MAKING:
        shown = [_shown_in(one) for one in args]
        return None if all(a is b for a, b in zip(args, shown)) else (shown, kwargs, f"{func.__name__}()")
    if func not in _DECIDING:
        return None
    name, first = _DECIDING[func]
    shown = (*args[:first], *map(_shown, args[first:]))
    named = {key: one if key in _DATA else _shown(one) for key, one in kwargs.items()}
    if all(a is b for a, b in zip(args, shown)) and all(one is named[key] for key, one in kwargs.items()):
        return None
    return shown, named, name


_DATA = ("input", "self", "log_probs", "targets")


def _shown(one):
    reads = isinstance(one, torch.Tensor) and not one.is_floating_point() and not one.is_complex()
    return torch.ops.stepc.shown(one) if reads else one


def _shown_in(nest):
    """A list, or lists in it, with values in its tensors; the same one if there are none."""
    if not isinstance(nest, (list, tuple)):
        return nest
    shown = [torch.ops.stepc.shown(one.detach()) if isinstance(one, torch.Tensor) else _shown_in(one) for one in nest]
    return nest if all(a is b for a, b in zip(nest, shown)) else shown


def _is_plain(args, kwargs):
    return len(args) == 1 and all(value is None or value is False for value in kwargs.values())  # dtype, force


def _numbers_of(tensor, name):
    """What `tensor.tolist()` or `tensor.numpy()` gives, read so that recordings see it; None where that cannot be."""
    if name not in ("tolist()", "numpy()") or tensor.is_complex():
        return None
    requires_grad = tensor.requires_grad and torch.is_grad_enabled()
    if name == "numpy()" and (requires_grad or tensor.is_neg() or tensor.dtype not in _NUMPY_TYPES):
        return None  # it raises
    if tensor.numel() > _MOST_NUMBERS:
        return torch.ops.stepc.shown(tensor.detach()).tolist() if name == "tolist()" else None
    values = [one.item() for one in tensor.detach().reshape(-1).unbind()]
    if name == "tolist()":
        for size in reversed(tensor.shape[1:]):
            values = [values[i : i + size] for i in range(0, len(values), size)] if size else values
        return values if tensor.dim() else values[0]
    return numpy.array(values, dtype=_NUMPY_TYPES[tensor.dtype])


_NUMPY_TYPES = {
    torch.float64: numpy.float64, torch.float32: numpy.float32, torch.float16: numpy.float16, torch.bool: numpy.bool_,
    torch.int64: numpy.int64, torch.int32: numpy.int32, torch.int16: numpy.int16, torch.int8: numpy.int8,
    torch.uint8: numpy.uint8,
}


def _uncompiled():
    """Around a step's code: what torch.compile has compiled runs as it was written, so that its calls are seen."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


class _Arrays:
    """The arrays that a step's code got of Tensor.numpy(): memory that it may write to where no recording sees it."""

    def __init__(self):
        self.given = []  # weakly, with an array on the same memory, what that held, and where the program got it

    def give(self, tensor, line):
        array, memory = _C.array_of(tensor), _C.array_of(tensor)
        self.given.append((weakref.ref(array), memory, memory.copy(), line))
        return array

    def take_written(self):
        """(memory, what it held, where the program got it) of those that differ by now, which are looked at no more,
        nor are those that nobody holds."""
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


def _deep_copy(tensor, memo):
    """Tensor.__deepcopy__ of a plain tensor, by calls that recordings hold: its own copies storages; None for others."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.grad_fn is not None or tensor.is_conj() or tensor.is_neg() or id(tensor) in memo:
        return None
    storage = tensor.untyped_storage()
    key = "storage", storage._cdata  # several tensors on one are so again
    if tensor.numel() * tensor.element_size() != storage.nbytes() or (key in memo and memo[key].dtype != tensor.dtype):
        return None
    with torch.no_grad():
        if key not in memo:
            memo[key] = tensor.detach().clone()
        made = memo[key].detach().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    made.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = made
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    return made


def _backward(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    """As Tensor.backward()."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _called(func):
    """The function of torch's that stands for itself by a name, which the program may have bound to a wrapper of it."""
    at = sys._getframe(2)
    if at.f_code is not handle_torch_function.__code__ or at.f_back.f_code is getattr(func, "__code__", None):
        return func
    code = getattr(func, "__code__", None)
    return func if code is not None and code.co_filename.startswith(_TORCH) else _C.function_of(at.f_back)


class _Unseen(TorchFunctionMode):
    """A mode that torch's own code does not see, which takes other ways (TransformerEncoder's) where one is set."""

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
            super().__enter__()  # for the code of functions and hooks, which is the program's
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


class _Marks:
    """Marks the steps of optimizers and schedulers, for the calls in them to be told from others."""

    def __init__(self, scout):
        self.scout = scout
        self.thread = threading.get_ident()  # another one may step them, too, which is none of this step's
        self.handles = []
        self.patched = []
        self.wrappers = []  # optimizers of the program's own whose step() runs: those that it calls are parts of it

    def set(self):
        for key, one in self.scout.events():
            if isinstance(one, torch.optim.Optimizer):
                self._mark_optimizer(key, one)
            else:
                self._mark_scheduler(key, one)

    def remove(self):
        for handle in self.handles:
            handle.remove()
        for holder, original in self.patched:
            if original is None:
                delattr(holder, "step")
            else:
                setattr(holder, "step", original)

    def _mark_optimizer(self, key, optimizer):
        open_events = []
        code = _own_code(optimizer)
        if code:
            _C.report_effect(f"{key}: {code} is the program's own code, which may keep what it likes")

        def begin(opt, args, kwargs):
            if threading.get_ident() != self.thread or self.wrappers:
                return
            if any(argument is not None for argument in args[1:]) or kwargs.get("closure") is not None:
                _C.report_effect(f"{key}: step(closure) calls the step's own code")
            # GradScaler hands these to a fused optimizer for the length of its step.
            given = {name: opt.__dict__.get(name) for name in ("grad_scale", "found_inf")}
            shapes = {n: (tuple(v.shape), v.dtype) for n, v in given.items() if isinstance(v, torch.Tensor)}
            if shapes:
                self.scout.found_attributes(key, shapes)
            open_events.append(_C.Event(key))
            if code:
                self.wrappers.append(optimizer)

        def end(*_):
            if not open_events or threading.get_ident() != self.thread:
                return
            if self.wrappers and self.wrappers[-1] is optimizer:
                self.wrappers.pop()
            open_events.pop().close()

        self.handles.append(optimizer.register_step_pre_hook(begin))
        self.handles.append(optimizer.register_step_post_hook(end))

    def _mark_scheduler(self, key, scheduler):
        step = scheduler.step

        def marked(*args, **kwargs):
            return self._marked_step(key, step, args, kwargs)

        marked._stepc_stands_for = vars(scheduler).get("step", ABSENT)  # and is gone after the recording
        self._patch(scheduler, marked)

    def _patch(self, holder, marked):
        self.patched.append((holder, vars(holder).get("step")))
        holder.step = marked

    def _marked_step(self, key, step, args, kwargs):
        if threading.get_ident() != self.thread or self.wrappers:
            return step(*args, **kwargs)
        if args or kwargs:
            _C.report_effect(f"{key}: step() is given a value that a replay cannot know")
        event = _C.Event(key)
        try:
            return step(*args, **kwargs)
        finally:
            event.close()


class _MarksOfClasses(_Marks):
    """The same for every call of a traced step: what a scheduler holds may be saved in any of them."""

    def set(self):
        self.keys = {}  # of schedulers, by id
        self.stepped = set()
        super().set()

    def _mark_scheduler(self, key, scheduler):
        self.keys[id(scheduler)] = key
        kind = type(scheduler)
        if any(holder is kind for holder, _ in self.patched):
            return
        step = kind.step

        def marked(scheduler, *args, **kwargs):
            if id(scheduler) not in self.keys or id(scheduler) in self.stepped:  # by a class of its own, or its base
                return step(scheduler, *args, **kwargs)
            self.stepped.add(id(scheduler))
            try:
                bound = functools.partial(step, scheduler)
                return self._marked_step(self.keys[id(scheduler)], bound, args, kwargs)
            finally:
                self.stepped.discard(id(scheduler))

        self._patch(kind, marked)


class Tracing(_Unseen):
    """Around a step whose calls are compared and not computed: who asks for values past the dispatcher gets them."""

    def __init__(self, scout):
        super().__init__()
        self.scout = scout
        self.marks = _MarksOfClasses(scout)
        self.arrays = _Arrays()

    def __enter__(self):
        self.uncompiled = _uncompiled()
        self.uncompiled.__enter__()
        self.marks.set()
        return super().__enter__()

    def __exit__(self, *error):
        self._look_at_arrays()
        self.arrays.given.clear()
        super().__exit__(*error)
        self.marks.remove()
        self.uncompiled.__exit__(*error)

    def _look_at_arrays(self):
        """Leaves the plan as it was before the step's code wrote to one of them, and does that again."""
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
        name = _UNSEEN.get(func)
        if name is not None:
            numbers = _numbers_of(args[0], name) if _is_plain(args, kwargs) else None
            if numbers is not None and name == "tolist()":
                return numbers
            if numbers is not None and _C.show_memory(args[0], numbers):
                return self.arrays.give(args[0], self.scout.source_line())
            _leave(f"Tensor.{name} gives values to the host that no recording sees")
        if (given := _with_values(func, args, kwargs)) is not None:
            args, kwargs, _ = given
        if func is torch.Tensor.__deepcopy__ and (made := _deep_copy(*args)) is not None:
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
    """A result of `func`, of which the engine knows even where no call that it sees has made it."""
    if func == _DATA_OF:
        _C.note_made(result)
    return result


def _leave(why):
    _C.leave_trace(why)
    _C.report_obstacle(why)  # the step may have left its trace before, and be recorded


class _Watch(_Unseen):
    def __init__(self, scout):
        super().__init__()
        self.scout = scout
        self.follow = None  # the Watch of the step's own code
        self.numbers = []  # that code which it does not look at has read
        self.arrays = _Arrays()

    def __exit__(self, *error):
        self._look_at_arrays()
        self.arrays.given.clear()
        _make_plain(self.numbers)
        return super().__exit__(*error)

    def _look_at_arrays(self):
        for _, _, line in self.arrays.take_written():
            _C.report_obstacle(_written_to(line))

    def call(self, func, args, kwargs):
        if self.arrays.given:
            self._look_at_arrays()
        name = _UNSEEN.get(func)
        if name is not None:
            line = self.scout.source_line()
            if self.scout.on_ranks and name in ("tolist()", "numpy()") and args[0].numel() > _MOST_NUMBERS:
                _C.report_obstacle(f"Tensor.{name} (at {line}) gives {args[0].numel()} values to the host, and ranks read up to "
                                   f"{_MOST_NUMBERS} of a tensor")
                nothing = numpy.zeros(tuple(args[0].shape))
                return nothing.tolist() if name == "tolist()" else nothing
            before = _C.host_reads_so_far()
            numbers = _numbers_of(args[0], name) if _is_plain(args, kwargs) else None
            if numbers is not None and self.scout.on_ranks:
                _report_comparisons(before)
                return numbers
            if numbers is not None:
                if self.scout.python == "pure":
                    _report_comparisons(before)
                else:
                    _C.report_effect(f"Tensor.{name} (at {line}) gives values to the host")
                return self.arrays.give(args[0], line) if name == "numpy()" else numbers
            _C.report_obstacle(f"Tensor.{name} (at {line}) gives values to the host that no recording sees")
        if (given := _with_values(func, args, kwargs)) is not None:
            args, kwargs, name = given
            _C.report_effect(f"{name} (at {self.scout.source_line()}) decides by a tensor's values")
        if func is torch.Tensor.__deepcopy__ and (made := _deep_copy(*args)) is not None:
            return made
        if (made := host_draws.drawn(self.scout, func, args, kwargs)) is not None:
            _C.report_effect(f"{func.__name__}() (at {self.scout.source_line()}) draws from a generator that the step makes")
            return made
        reads = _C.host_reads_so_far()
        if self.scout.on_ranks and (func in _COMPARING or _is_text(func, args)):
            made = _truth_of(func, args, kwargs) if func in _COMPARING else _text_of(args[0])
            if made is not None:
                _report_comparisons(reads)
                return made
        result = _noted(func, func(*args, **kwargs))
        if func in _CONVERSIONS and _C.host_reads_so_far() > reads:
            _C.report_comparison(_C.host_reads_so_far() - 1)  # what Python makes of a plain number is not seen
        is_read = func is torch.Tensor.item and _C.host_reads_so_far() > reads  # it is recorded, not only watched
        if is_read and type(result) in _READ and (self.follow is not None or self.scout.python == "pure"):
            number = self.follow and self.follow.read(sys._getframe(2), result, _C.host_reads_so_far() - 1)
            if number is not None:
                return number
            self.numbers.append(_READ[type(result)](result, _C.host_reads_so_far() - 1))
            return self.numbers[-1]
        return result


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


_READ = {kind: _read_number(kind) for kind in (float, int)}


def _make_plain(numbers):
    """Puts plain numbers where the program keeps those that it has read: some code takes no others (yaml)."""
    kinds = {read: kind for kind, read in _READ.items()}
    kept = []
    while numbers:
        number = numbers.pop()
        if sys.getrefcount(number) > 2:
            kept.append(number)
    if not kept:
        return
    for holder in gc.get_referrers(*kept):
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


class Recording:
    """Around one recorded call of the step; where it `goes_on`, around each of its parts, one after the other."""

    def __init__(self, scout, arguments=None, goes_on=False):
        self.scout = scout
        self.arguments = arguments
        self.goes_on = goes_on
        self.scopes = _C.Scopes()
        self.follow = None

    def __enter__(self):
        self.modules = around_modules(self._scope_of)
        self.marks = _Marks(self.scout)
        self.watch = _Watch(self.scout)
        self.scout.forget_generators()
        self.uncompiled = _uncompiled()
        self.uncompiled.__enter__()
        self.modules.__enter__()
        self.marks.set()
        self.before = {} if self.scout.looks_lightly else self._host_state()
        self.watch.__enter__()
        self.is_first = self.follow is None
        if self.is_first and self.scout.python == "watched" and not self.scout.looks_lightly:
            bound = walk.functions_of(self.scout.step)[1]
            optimizers = self.scout.optimizers.values()
            apart = self.scout.attributes.apart
            self.follow = Watch(self.scout.reads, optimizers, self.arguments, bound, _SCHEDULER_STEP, apart,
                                self.scout.on_ranks)
        if self.follow is not None:
            self.follow.start()
        self.watch.follow = self.follow
        return self

    def __exit__(self, kind, error, trace):
        if self.follow is not None:
            self.follow.stop()
            self.scout.followed(self.follow, is_same_call=not self.is_first)
            if not self.goes_on:
                self.follow.let_go()
        self.watch.__exit__(kind, error, trace)
        self.modules.__exit__(None, None, None)
        self.marks.remove()
        self.uncompiled.__exit__(kind, error, trace)
        if kind is None and self.before:
            self._compare(self._host_state())
        return False

    def known_container(self, value):
        """A list or dict in `value`, by class, that was there before the call; None: there is none."""
        if self.follow is None:
            return None
        return next((f"a {type(one).__name__}" for one in tree.containers_in(value) if self.follow.was_there(one)), None)

    # ---- module paths

    @contextlib.contextmanager
    def _scope_of(self, module):
        self.scopes.open(self.scout.name_of(module) or type(module).__name__)
        try:
            yield
        finally:
            self.scopes.close()

    # ---- effects that are no tensors

    def _host_state(self):
        """Python's and NumPy's generators and every Python scalar that the step can reach, by path."""
        state = {"Python's random generator": random.getstate(), "NumPy's random generator": _numpy_state()}
        skip = (torch.optim.Optimizer,) + tuple(type(one) for one in self.scout.schedulers.values())
        count = 0
        for container, name, value, path in walk.reachable(self.scout.step, skip=skip):
            if container is None or path.startswith("__") or "_stepc_" in path:
                continue
            if isinstance(value, (int, float, bool, str)) or value is None:
                state[(id(container), name)] = (path, value)
                count += 1
            elif isinstance(value, (list, dict, set)):
                state[(id(value), None)] = (path, bare.length(value))
            elif isinstance(value, random.Random):
                state[(id(value), None)] = (path, value.getstate())
            elif isinstance(value, numpy.random.Generator):
                state[(id(value), None)] = (path, repr(value.bit_generator.state))
            if count > _MAX_SCALARS:
                break
        return state

    def _compare(self, after):
        for key, was in self.before.items():
            now = after.get(key, was)
            if now == was or (now != now and was != was):
                continue
            if isinstance(key, str):
                words = f"the step draws from {key}, which a replay does not"
            else:
                path, value = now
                if value != value and was[1] != was[1]:
                    continue
                words = f"the step changes Python state, which a replay would not: '{path}'"
            if self.scout.python != "pure":
                _C.report_effect(words)
                return
            self.scout.leaves_out(key if isinstance(key, tuple) else (None, key), words)


def _own_code(optimizer):
    """What of an optimizer's step() is not PyTorch's; empty: nothing."""
    if not type(optimizer).__module__.startswith("torch."):
        return f"{type(optimizer).__qualname__}.step()"
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    hooks += [*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values()]
    for hook in hooks:
        if not (getattr(hook, "__module__", "") or "").startswith(("torch.", "stepc.")):
            return "a hook of its step()"
    return ""


# The code that stands for a scheduler's step() while a step is recorded.
_SCHEDULER_STEP = next(
    code for code in _Marks._mark_scheduler.__code__.co_consts if isinstance(code, types.CodeType)
)


def _numpy_state():
    name, keys, *rest = numpy.random.get_state()
    return (name, keys.tobytes(), *rest)
