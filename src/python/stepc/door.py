"""accelerate(): the Python door."""

import dataclasses
import functools
import types

import torch

from collections.abc import Callable, Iterable
from typing import Any

from stepc import _C, data_parallel, loop, ranks, virtual_cuda
from stepc.accelerated import Accelerated
from stepc.config import Config
from stepc.module_calls import around_modules
from stepc.scout import Scout

Modules = torch.nn.Module | Iterable[torch.nn.Module] | dict[str, torch.nn.Module]
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | dict[str, torch.optim.Optimizer]

_LATER = object()  # the step of accelerate(config=...): what that decorates


def _named(objects, word):
    if objects is None or isinstance(objects, dict):
        return objects
    if isinstance(objects, (torch.nn.Module, torch.optim.Optimizer)):
        objects = [objects]
    return {f"{word}{index}": one for index, one in enumerate(objects)}


def accelerate(
    train_step: Callable[..., Any] | torch.nn.Module = _LATER,
    *objects: torch.optim.Optimizer,
    modules: Modules | None = None,
    optimizers: Optimizers | None = None,
    config: Config | None = None,
) -> Any:
    """Runs a training step, or the parts of a loop, from a plan.

    step = accelerate(train_step): takes a training step without a change and returns one with the same call.
    train_step(*args, **kwargs) may take and return any nest of tensors, numbers, lists, tuples, dicts and dataclasses.
    You can pass modules and optimizers; otherwise they are found in the function's closure, `self` and globals. It also
    decorates functions and methods, as @accelerate or @accelerate(config=...); for a method, every object has a step of
    its own.

    model, optimizer = accelerate(model, optimizer): for an unchanged loop. Returns the given objects. Calling the
    model, its backward pass and optimizer.step() then run from plans, and everything between them runs as written. The
    whole step is the faster form.
    """
    if config is not None and not isinstance(config, Config):
        raise _C.UserError(f'config is {config!r}; it is a stepc.Config, such as stepc.Config(mode="exact")')
    if train_step is _LATER:
        return functools.partial(accelerate, modules=modules, optimizers=optimizers, config=config)
    virtual_cuda.refuse("accelerate()")
    config = config or Config()
    if isinstance(train_step, torch.nn.Module):
        if config.shapes is not None:
            raise _C.UserError("shapes are of a whole step: a loop makes its loss outside of the model, of outputs that would "
                               "be padded; accelerate the training step as a function")
        return _accelerate_loop(train_step, objects, config)
    if isinstance(train_step, (Accelerated, _Method)):
        raise _C.UserError("this step is accelerated already")
    if objects or not callable(train_step):
        raise _C.UserError(
            "accelerate() takes a training step, a function, or a model and its optimizers; this is a "
            f"{type(train_step).__name__}"
        )
    if _is_of_a_class(train_step):
        return _Method(train_step, modules, optimizers, config)
    return _accelerate_step(train_step, modules, optimizers, config)


def _accelerate_step(train_step, modules, optimizers, config):
    scout = Scout(train_step, _named(modules, "module"), _named(optimizers, "optimizer"), config.python == "pure")
    ranks.refuse_sharded(scout.modules.values())
    if config.precision is not None:
        train_step = _in_autocast(train_step, scout.modules.values())
    return Accelerated(train_step, scout, config)


def _is_of_a_class(function):
    """Whether a plain function was defined in the body of a class."""
    return isinstance(function, types.FunctionType) and "." in function.__qualname__.rpartition("<locals>.")[2]


class _Method:
    """An accelerated function of a class: each object's own step is made where it is first asked for."""

    def __init__(self, function, *options):
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        step = _accelerate_step(types.MethodType(self._function, instance), *self._options)
        if not hasattr(instance, "__dict__"):
            raise _C.UserError(f"a {owner.__name__} has slots alone, so its methods cannot be accelerated where they are "
                               "defined: accelerate the bound method")
        instance.__dict__[self._name] = step  # found before this the next time
        return step

    @functools.cached_property
    def _step(self):
        return _accelerate_step(self._function, *self._options)

    def __call__(self, *args, **kwargs):
        return self._step(*args, **kwargs)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._step, name)


def _accelerate_loop(model, optimizers, config):
    ranks.refuse_sharded([model])
    spread = data_parallel.of_loop(config)
    config = dataclasses.replace(config, parallel=None, elastic=None)  # of what follows each rank has plans of its own
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise _C.UserError(f"accelerate(model, ...) takes optimizers, not a {type(optimizer).__name__}")
        if loop.is_accelerated(optimizer):
            raise _C.UserError(f"this {type(optimizer).__name__} is accelerated already")
    if not loop.is_accelerated(model):
        if spread and loop.is_compiled(model):
            raise _C.UserError("this model is compiled or scripted, and stepc averages no gradients of it: put "
                               "DistributedDataParallel around it, or give it as it was before")
        loop.accelerate_model(model, config, spread and data_parallel.spread(spread[0], model))
    elif not optimizers:
        raise _C.UserError("this model is accelerated already")
    for optimizer in optimizers:
        updates = data_parallel.Updates(spread[0], optimizer) if spread and spread[1] else None
        loop.accelerate_optimizer(optimizer, config, model, updates)
    return (model, *optimizers) if optimizers else model


def _in_autocast(train_step, modules):
    """The step with autocast around the forward passes of its modules; outside of it they are as they were."""
    modules = {id(module) for module in modules}

    @functools.wraps(train_step, updated=())
    def step(*args, **kwargs):
        def enter(module):
            return torch.autocast("cpu", torch.bfloat16) if id(module) in modules else None

        with around_modules(enter):
            return train_step(*args, **kwargs)

    return step
