"""The recording of one call of a step: module paths, marks of optimizers' updates, and the Python that the dispatcher
cannot see."""

import contextlib
import random

import numpy
import torch

from stepc import _C, tree
from stepc.event_marks import SCHEDULER_STEP, Marks
from stepc.function_modes import Seeing, uncompiled
from stepc.module_calls import around_modules
from stepc.watch import bare, walk
from stepc.watch.watch import Watch

_MAX_SCALARS = 100_000


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
        self.marks = Marks(self.scout)
        self.watch = Seeing(self.scout)
        self.scout.forget_generators()
        self.uncompiled = uncompiled()
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
            self.follow = Watch(self.scout.reads, optimizers, self.arguments, bound, SCHEDULER_STEP, apart,
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


def _numpy_state():
    name, keys, *rest = numpy.random.get_state()
    return (name, keys.tobytes(), *rest)
