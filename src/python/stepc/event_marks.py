"""Marks the steps of optimizers and schedulers while a step is recorded, so that their calls differ from others."""

import functools
import threading
import types

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from stepc import _C
from stepc.watch.reads import ABSENT


class Marks:
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


class MarksOfClasses(Marks):
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
SCHEDULER_STEP = next(
    code for code in Marks._mark_scheduler.__code__.co_consts if isinstance(code, types.CodeType)
)
