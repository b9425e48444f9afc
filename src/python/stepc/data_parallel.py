"""Data parallelism of an unchanged loop: what torch's DistributedDataParallel means, around plans of each rank's own.

Each rank calls the model on rows of its own. At the end of a backward pass through the model the gradients are averaged
over ranks, once, in place. Under zero 1 each rank updates some of the parameters, holds only their optimizer state, and
gets the other parameters from the ranks that have updated them.
"""

import contextlib
import functools
import logging
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from stepc import _C, ranks, tree

_LOG = logging.getLogger("stepc")


def of_loop(config):
    """The ranks of a loop, and whether they share the optimizer's work out; None: it is this process's alone."""
    chosen = ranks.check(config)
    if chosen is None:
        return None
    for name in ("shard", "batch_dims"):
        if getattr(config, name) is not None:
            raise _wants_whole_step(f"{name} is")
    if "strategy" in chosen:
        raise _wants_whole_step('parallel = "auto" is')
    if config.micro_batches != 1:
        raise _wants_whole_step(f"micro_batches = {config.micro_batches} is")
    for axis in ("pp", "cp", "tp"):
        if chosen.get(axis, 1) != 1:
            raise _wants_whole_step(f"{axis} = {chosen[axis]} is")
    if chosen.get("reduce", "float32") != "float32":
        raise _wants_whole_step(f'reduce = "{chosen["reduce"]}" is')
    zero = chosen.get("zero", 3) if chosen.get("dp_shard", 1) != 1 else 0
    if zero > 1:
        raise _wants_whole_step(f"dp_shard with zero = {zero} is")
    if zero and chosen.get("dp_replicate", 1) != 1:
        raise _wants_whole_step("dp_shard within dp_replicate is")
    if (config.elastic or {}).get("check_every", 0):
        raise _wants_whole_step("elastic.check_every is")
    if config.batch != "local":
        raise _wants_whole_step('batch = "global" is')
    group = ranks.parallel_of(config)["ranks"]
    _C.check_mesh(group, [(axis, size) for axis, size in chosen.items() if axis in ("dp_replicate", "dp_shard")])
    return (group, bool(zero)) if group.size() > 1 else None


def _wants_whole_step(what):
    return _C.UserError(f"{what} of a whole step, and this is a loop that stays as it is, which has dp_replicate, or dp_shard with "
                        "zero = 1: put forward, backward() and optimizer.step() into a function, step = "
                        "stepc.accelerate(train_step, config=config)")


class Gradients:
    """Of a model: the ranks begin with one model, and have one gradient after each backward pass."""

    def __init__(self, group, model):
        self.group = group
        self.syncs = True
        self._model = weakref.ref(model)
        self._task = None
        state = [*model.parameters(), *model.buffers()]
        if group.differ(state):
            group.share(state, [0] * len(state))
            if group.rank() == 0:
                _LOG.warning("the ranks' parameters differ: rank 0's count")

    def before_forward(self):
        """Statistics of the rows so far are rank 0's, as under DDP."""
        if self.syncs:
            buffers = [part._buffers[name] for part in self._model().modules() for name in part._buffers
                       if name not in part._non_persistent_buffers_set and part._buffers[name] is not None]
            self.group.share(buffers, [0] * len(buffers))

    def after_forward(self, result):
        if self.syncs:
            for one in tree.held_tensors([result]):
                if one.requires_grad and one.grad_fn is not None:
                    one.register_hook(self._at_end_of_backward)

    def _at_end_of_backward(self, _):
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self):
        self._task = None
        with_gradient = [(name, one) for name, one in self._model().named_parameters() if one.grad is not None]
        self.group.average([one.grad for _, one in with_gradient], "\n".join(name for name, _ in with_gradient))


class Updates:
    """Of an optimizer under zero 1: which parameters are this rank's to update."""

    def __init__(self, group, optimizer):
        self.group = group
        self._optimizer = weakref.ref(optimizer)

    def _owners(self):
        """The largest first, each to the rank that has least so far."""
        parameters = [one for group in self._optimizer().param_groups for one in group["params"]]
        owners, loads = {}, [0] * self.group.size()
        for one in sorted(parameters, key=lambda one: -one.numel()):
            owner = loads.index(min(loads))
            loads[owner] += one.numel()
            owners[one] = owner
        return parameters, [owners[one] for one in parameters]

    @contextlib.contextmanager
    def shared(self):
        """Around an update: the others' parameters have no gradient in it, and come from them after it."""
        parameters, owners = self._owners()
        kept = [(one, one.grad) for one, owner in zip(parameters, owners) if owner != self.group.rank()]
        for one, _ in kept:
            one.grad = None
        try:
            yield
        finally:
            for one, gradient in kept:
                one.grad = gradient
        self.group.share(parameters, owners)


class _Wrapped(DistributedDataParallel):
    """What DistributedDataParallel(model) is for a model whose gradients are averaged already: the model."""

    def __init__(self, module, *_, **__):
        torch.nn.Module.__init__(self)
        self.module = module
        self.require_backward_grad_sync = True

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        gradients = gradients_of(self.module)
        before, gradients.syncs = gradients.syncs, False
        try:
            yield
        finally:
            gradients.syncs = before

    def train(self, mode=True):
        return torch.nn.Module.train(self, mode)


_gradients = weakref.WeakKeyDictionary()


def gradients_of(model):
    return _gradients.get(model)


def spread(group, model):
    """The model's gradients are averaged from now on, and no wrapper does it again."""
    _gradients[model] = made = Gradients(group, model)
    _pass_wrapper_through()
    return made


@functools.cache
def _pass_wrapper_through():
    plain = DistributedDataParallel.__new__

    def new(cls, *args, **kwargs):
        module = args[0] if args else kwargs.get("module")
        if cls is DistributedDataParallel and isinstance(module, torch.nn.Module) and gradients_of(module) is not None:
            cls = _Wrapped
        return plain(cls) if plain is object.__new__ else plain(cls, *args, **kwargs)

    DistributedDataParallel.__new__ = new
