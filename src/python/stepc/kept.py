"""Tensors that a forward pass makes and that something keeps: a module, a list of a hook, a cache."""

import gc
import types

import torch

from stepc import _C
from stepc.watch import bare


class Made:
    """Around a forward pass: what Python makes in it is young to the garbage collector, which rests for so long.

    What only the graph's backward pass needs is held by nothing of Python's, or by young objects alone; what an older
    one refers to, directly or through young ones, is kept. `place` then says where, in words; else it is None. Only
    what the pass has made counts, as its recording says, or without one what has a graph: the rest is another thread's,
    of a loader that is ahead and fills a queue or a cache, or memory that was there, and to keep that is an effect that
    the watch sees.
    """

    def __init__(self, model):
        self.place = None
        self._model = model

    def __enter__(self):
        gc.collect(1)
        self._is_enabled = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.place = self._find()
        finally:
            if self._is_enabled:
                gc.enable()

    def _find(self):
        is_made = _C.has_made if _C.is_recording() else _has_graph
        young = gc.get_objects(generation=0)
        known = set(map(id, young))
        level = [one for one in young if issubclass(type(one), torch.Tensor) and is_made(one)]
        seen = {id(young), id(level), *map(id, level)}
        while level:
            holders = bare.referrers_of(level)
            above = []
            seen |= {id(holders), id(above)}
            for holder in holders:
                if id(holder) in seen or isinstance(holder, types.FrameType):
                    continue
                if id(holder) not in known:
                    return _place(holder, level, self._model)
                seen.add(id(holder))
                above.append(holder)
            level = above
        return None


def _has_graph(tensor):
    return tensor.grad_fn is not None


def _place(holder, held, model):
    held = {id(one) for one in held}
    name = None
    if isinstance(holder, dict):
        name = next((key for key, value in bare.items(holder) if id(value) in held), None)
    for path, module in model.named_modules():
        if holder is module.__dict__ or any(holder is one for one in module.__dict__.values()):
            return f"'{path}.{name}'" if path else f"'{name}'"
    return f"'{name}'" if isinstance(name, str) else f"a {type(holder).__name__}"
