"""Updates of torch.optim whose host numbers are known: the numbers that the optimizer's own Python passes to its calls
follow from its options and its step count, so this Python need not run before a replay.

The functions below compute, like torch's code, all numbers that it may pass. The engine finds out which number each
argument is by running the optimizer's step with other options (engine/program/known_update.h).
"""

import builtins
import collections
import functools
import itertools
import math
import operator
import sys
import types

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stepc.watch.known import is_library, is_library_code
from stepc.watch.reads import ABSENT, ITEM, LENGTH, TYPE


def _adam(count, lr, betas, eps, weight_decay):
    beta1, beta2 = betas
    return (lr, beta1, beta2, eps, weight_decay, 1 - lr * weight_decay, 1 - beta1, 1 - beta2,
            -(lr / (1 - beta1**count)), (1 - beta2**count) ** 0.5)


def _sgd(count, lr, momentum, dampening, weight_decay):
    return lr, -lr, momentum, 1 - dampening, weight_decay


def _rmsprop(count, lr, alpha, eps, momentum, weight_decay):
    return lr, -lr, alpha, 1 - alpha, eps, momentum, weight_decay


def _adagrad(count, lr, lr_decay, eps, weight_decay):
    return lr, eps, weight_decay, -(lr / (1 + (count - 1) * lr_decay))


_KNOWN = {torch.optim.Adam: _adam, torch.optim.AdamW: _adam, torch.optim.SGD: _sgd, torch.optim.RMSprop: _rmsprop,
          torch.optim.Adagrad: _adagrad}
_PARAMETERS = (torch.Tensor, torch.nn.Parameter)
# Where an update's code finds functions and attributes by name, beside its own modules.
_NAMESPACES = (vars(torch), torch.Tensor, vars(torch.compiler), vars(torch.jit), vars(torch._dynamo),
               vars(torch.autograd.profiler))

_BUILTINS = vars(builtins).keys()
# Of an optimizer: what others may give it, and what decides how its attributes are found.
_GIVEN = {"step", "_opt_called", "grad_scale", "found_inf", "_need_device_dtype_check_for_fused", "__getattribute__",
          "__getattr__"}

_forms = itertools.count(1)


class Update:
    """What is known of one optimizer's step(). Only of torch.optim's own class, with no hook and nothing replaced."""

    def __init__(self, optimizer, rests_on):
        kind = type(optimizer)
        self._optimizer, self._groups = optimizer, optimizer.param_groups
        self._compute = _KNOWN[kind]
        self._names = _arguments_of(self._compute)
        self._values_of = operator.itemgetter(*self._names)
        self._choices_of = operator.itemgetter(*_choices_of(kind))
        self._form = 0
        self._choices = self._kinds = self._values = self._count = None
        self._answer = None
        self.rests_on = rests_on
        self.is_known = True  # else its own code runs

    def numbers(self, count):
        """(form, number, ...): what the step may pass to its calls when it comes to that count. Of another form of its
        options it may make other calls. None: its options are not plain numbers."""
        choices, values = [], []
        try:
            for group in self._groups:
                choices += self._choices_of(group)
                values += self._values_of(group)
        except KeyError:
            return None
        if not self.is_known:
            return None
        if self._answer is not None and count == self._count and _are(values, self._values):
            if _are(choices, self._choices):
                return self._answer
        kinds = [kind_of(value) for value in values]
        if None in kinds:
            return None
        if kinds != self._kinds or not _are(choices, self._choices):
            self._form = next(_forms)
        self._choices, self._kinds, self._values, self._count = choices, kinds, values, count
        self._answer = self._computed(count, values)
        return self._answer

    def _computed(self, count, values):
        answer = [self._form]
        try:
            for first in range(0, len(values), len(self._names)):
                answer += self._compute(count, *values[first : first + len(self._names)])
        except (ZeroDivisionError, OverflowError):
            return None
        return None if complex in map(type, answer) else tuple(answer)

    def probe(self, count):
        """Runs the step with other options of the same form, each changed by a factor of its own, and returns its
        numbers. The optimizer keeps its own: one beside it steps that has the same parameters and state."""
        factors = (1 / (1 + 0.013 * k) for k in itertools.count(1))
        change = lambda value: tuple(map(change, value)) if type(value) is tuple else value * next(factors)
        kind = type(self._optimizer)
        other = kind.__new__(kind)
        other.__dict__.update(self._optimizer.__dict__)
        other.param_groups, values = [], []
        for group in self._groups:
            changed = [change(group[name]) if group[name] else group[name] for name in self._names]
            other.param_groups.append({**group, **dict(zip(self._names, changed))})
            values += changed
        kind.step(other)
        return self._computed(count, values)


def kind_of(value):
    """Two numbers of one kind lead the code the same way. None: it is no plain number."""
    if type(value) is tuple:
        kinds = tuple(map(kind_of, value))
        return None if None in kinds else kinds
    if type(value) is float and math.isfinite(value):
        return float, value != 0
    return (int, False) if type(value) is int and value == 0 else None


def _are(ones, others):
    return others is not None and len(ones) == len(others) and all(map(operator.is_, ones, others))


@functools.cache
def _arguments_of(compute):
    return compute.__code__.co_varnames[1 : compute.__code__.co_argcount]


@functools.cache
def _choices_of(kind):
    """The options that are no numbers."""
    options = kind([torch.nn.Parameter(torch.zeros(1))]).defaults
    return [name for name in options if name not in _arguments_of(_KNOWN[kind])]


# ---- whether it is torch's own code, and what must stay for it to be


def update_of(optimizer, before, witnesses, step=None):
    """The optimizer's Update, None where its own code has to run; and as witnesses what may not change for that. Its
    Update of `before`, if nothing has. `step`: what is run as its step() where that is ours."""
    kind = type(optimizer)
    if kind not in _KNOWN:
        return None
    found = list(_places_of(optimizer))
    witnesses += found
    rests_on = [one for _, container, _, value in found for one in (container, value)]
    rests_on += [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if before is not None and _are(before.rests_on, rests_on):
        return before
    theirs = [one for one in found if step is None or one[1] is not optimizer.__dict__ or one[2] != "step"]
    is_own = all(value == 0 if how == LENGTH else _is_librarys(value) for how, _, _, value in theirs)
    is_own = is_own and type(optimizer.param_groups) is list and type(optimizer.state) is collections.defaultdict
    step = optimizer.__dict__.get("step") if step is None else step
    if step is not None and getattr(step, "__func__", None) is not kind.step:  # a scheduler's, that sets what is set already
        is_own = is_own and "_wrapped_by_lr_sched" in getattr(step, "__dict__", ()) and _is_librarys(step)
        is_own = is_own and optimizer.__dict__.get("_opt_called") is True
    options = {*_arguments_of(_KNOWN[kind]), *_choices_of(kind)}
    for group in optimizer.param_groups:
        is_own = is_own and type(group) is dict and type(group["params"]) is list and options <= group.keys()
        is_own = is_own and all(type(parameter) in _PARAMETERS for parameter in group["params"])
    return Update(optimizer, rests_on) if is_own else None


def _places_of(optimizer):
    kind = type(optimizer)
    yield TYPE, optimizer, None, kind
    for hooks in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks, optimizer._optimizer_step_pre_hooks,
                  optimizer._optimizer_step_post_hooks):
        yield LENGTH, hooks, None, len(hooks)
    for group in optimizer.param_groups:
        yield ITEM, group, "params", group["params"]
    yield ITEM, optimizer.defaults, "differentiable", optimizer.defaults.get("differentiable", ABSENT)
    names, classes = _names_of(kind), kind.__mro__[:-1]
    own = names.intersection(_GIVEN.union(optimizer.__dict__, *map(vars, classes)))
    for holder, looked_up in (
        *((one, own) for one in (optimizer.__dict__, *classes)),
        *((one, names.intersection(one.keys() | _BUILTINS)) for one in _modules_of(kind)),
        *((one, names.intersection(_dict_of(one))) for one in _NAMESPACES),
    ):
        there = _dict_of(holder)
        for name in sorted(looked_up):
            yield ITEM, holder, name, there.get(name, ABSENT)


def _dict_of(holder):
    return vars(holder) if isinstance(holder, type) else holder


def _modules_of(kind):
    return [vars(sys.modules[name]) for name in dict.fromkeys(one.__module__ for one in kind.__mro__[:-1])]


@functools.cache
def _names_of(kind):
    """All names that the code of an optimizer's step looks up."""
    names = set(_GIVEN)
    for holder in (*map(vars, kind.__mro__[:-1]), *_modules_of(kind)):
        for value in holder.values():
            for code in _codes_of(value):
                names.update(code.co_names)
    return names


def _codes_of(value):
    while value is not None:
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            yield from _codes_in(value.__code__)
        value = getattr(value, "__wrapped__", None)


def _codes_in(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def _is_librarys(value):
    """Not a function, or one of torch's or the standard library's all the way down."""
    if not callable(value):
        return True
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if code is None:
        return is_library((value if isinstance(value, type) else type(value)).__module__)
    return is_library_code(code) and _is_librarys(getattr(value, "__wrapped__", None))
