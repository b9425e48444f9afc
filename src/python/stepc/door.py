"""accelerate(): the Python door."""

import functools
import threading

import torch

from collections.abc import Callable, Iterable
from typing import Any

from stepc import _C, loop
from stepc.accelerated import Accelerated
from stepc.config import Config
from stepc.scout import Scout

Modules = torch.nn.Module | Iterable[torch.nn.Module] | dict[str, torch.nn.Module]
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | dict[str, torch.optim.Optimizer]


def _named(objects, word):
    if objects is None or isinstance(objects, dict):
        return objects
    if isinstance(objects, (torch.nn.Module, torch.optim.Optimizer)):
        objects = [objects]
    return {f"{word}{index}": one for index, one in enumerate(objects)}


def accelerate(
    train_step: Callable[..., Any] | torch.nn.Module,
    *objects: torch.optim.Optimizer,
    modules: Modules | None = None,
    optimizers: Optimizers | None = None,
    config: Config | None = None,
) -> Any:
    """Runs a training step, or the parts of a loop, from a plan.

    step = accelerate(train_step): takes a training step as it is and returns one that is called the same way.
    train_step(*args, **kwargs) may take and return any nest of tensors, numbers, lists, tuples, dicts and dataclasses.
    Modules and optimizers may be given, else they are found in the function's closure, `self` and globals.

    model, optimizer = accelerate(model, optimizer): for a loop that stays as it is. Both are the objects that were
    given; calling the model, its backward pass and optimizer.step() run from plans, everything between them as written.
    The whole step is the faster form.
    """
    config = config or Config()
    if isinstance(train_step, torch.nn.Module):
        return _accelerate_loop(train_step, objects, config)
    if isinstance(train_step, Accelerated):
        raise _C.UserError("this step is accelerated already")
    if objects or not callable(train_step):
        raise _C.UserError(
            "accelerate() takes a training step, a function, or a model and its optimizers; this is a "
            f"{type(train_step).__name__}"
        )
    scout = Scout(train_step, _named(modules, "module"), _named(optimizers, "optimizer"))
    if config.precision is not None:
        train_step = _in_autocast(train_step, scout.modules.values())
    return Accelerated(train_step, scout, config)


def _accelerate_loop(model, optimizers, config):
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise _C.UserError(f"accelerate(model, ...) takes optimizers, not a {type(optimizer).__name__}")
        if loop.is_accelerated(optimizer):
            raise _C.UserError(f"this {type(optimizer).__name__} is accelerated already")
    if not loop.is_accelerated(model):
        loop.accelerate_model(model, config)
    elif not optimizers:
        raise _C.UserError("this model is accelerated already")
    for optimizer in optimizers:
        loop.accelerate_optimizer(optimizer, config, model)
    return (model, *optimizers) if optimizers else model


def _in_autocast(train_step, modules):
    """The step with autocast around the forward passes of its modules; outside of it they are as they were."""
    modules = {id(module) for module in modules}

    @functools.wraps(train_step, updated=())
    def step(*args, **kwargs):
        thread, opened = threading.get_ident(), []

        def enter(module, _):
            if id(module) in modules and threading.get_ident() == thread:
                opened.append(torch.autocast("cpu", torch.bfloat16))
                opened[-1].__enter__()

        def leave(module, *_):
            if id(module) in modules and threading.get_ident() == thread:
                opened.pop().__exit__(None, None, None)

        every = torch.nn.modules.module
        handles = [
            every.register_module_forward_pre_hook(enter),
            every.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            return train_step(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()

    return step
