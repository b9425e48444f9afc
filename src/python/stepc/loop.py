"""The door for a loop that stays as it is: the model's forward and backward passes and the optimizer's update each run
from a plan, everything between them as written."""

import functools
import types
from typing import Any

import torch

from stepc import _C, tree
from stepc.accelerated import Accelerated
from stepc.recording import Recording
from stepc.scout import Scout


class _Boundary(torch.autograd.Function):
    """Stands for the whole model in the loop's autograd graph."""

    @staticmethod
    def forward(ctx, run, anchor, *inputs):
        ctx.run = run
        ctx.set_materialize_grads(False)
        outputs, differentiable = run.forward()
        ctx.mark_non_differentiable(*(o for o, needed in zip(outputs, differentiable) if not needed))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        return (None, None, *ctx.run.backward(list(gradients)))


class _Run:
    """One forward pass and the backward pass that follows it."""

    def __init__(self, segments, call, args, kwargs, inputs):
        self.segments = segments
        self.call = call
        self.args = args
        self.kwargs = kwargs
        self.inputs = inputs  # those that require a gradient, and what stands for them inside
        self.outputs = None  # of an eager forward pass, with its graph

    def forward(self):
        outputs, number = self.call.forward(self._eager_forward)
        self.structure, differentiable = self.segments.structures[number]
        return outputs, differentiable

    def _eager_forward(self):
        with torch.enable_grad():
            if _C.is_recording():
                with Recording(self.segments.scout):
                    result = self.segments.original(*self.args, **self.kwargs)
            else:
                result = self.segments.original(*self.args, **self.kwargs)
        outputs = []
        structure = tree.flatten(result, outputs)
        self.outputs = outputs
        differentiable = tuple(output.requires_grad for output in outputs)
        return [output.detach() for output in outputs], self.segments.number_of((structure, differentiable))

    def backward(self, gradients):
        return self.call.backward(gradients, self._eager_backward)

    def _eager_backward(self, gradients):
        pairs = [(o, g) for o, g in zip(self.outputs, gradients) if g is not None and o.requires_grad]
        self.outputs = None
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        found = [inner.grad for inner in self.inputs]
        for inner in self.inputs:
            inner.grad = None
        return found


class ModelSegments:
    """Behind an accelerated model: decides for each call whether its passes run from a plan."""

    def __init__(self, model, original, config):
        self.original = original
        self.scout = Scout(original, {"model": model}, {})
        self.engine = _C.Segments(self.scout, config)
        self.structures = []
        self.numbers = {}
        self.anchor = torch.zeros((), requires_grad=True)

    def number_of(self, structure):
        number = self.numbers.get(structure)
        if number is None:
            number = self.numbers[structure] = len(self.structures)
            self.structures.append(structure)
        return number

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled() or _C.is_recording():
            return self.original(*args, **kwargs)
        tensors, names = [], []
        structure = tree.flatten((args, kwargs), tensors, names)
        inputs = [tensor for tensor in tensors if tensor.requires_grad]
        if inputs:
            inner = {id(tensor): tensor.detach().requires_grad_() for tensor in inputs}
            tensors = [inner.get(id(tensor), tensor) for tensor in tensors]
            args, kwargs = tree.unflatten(structure, iter(tensors), iter(()))
        call = self.engine.begin(tensors, names, tree.describe(structure))
        if call is None:
            if inputs:  # the graph goes through them
                args, kwargs = tree.unflatten(structure, iter(_originals(tensors, inputs, inner)), iter(()))
            return self.original(*args, **kwargs)
        run = _Run(self, call, args, kwargs, [inner[id(tensor)] for tensor in inputs] if inputs else [])
        outputs = _Boundary.apply(run, self.anchor, *inputs)
        return tree.unflatten(run.structure, iter(outputs), iter(()))


def _originals(tensors, inputs, inner):
    back = {id(inner[id(tensor)]): tensor for tensor in inputs}
    return [back.get(id(tensor), tensor) for tensor in tensors]


class _OptimizerScout(Scout):
    """Of an optimizer whose step() is ours: the event is what step() was before."""

    def __init__(self, optimizer, original):
        self.original = original
        super().__init__(original, {}, {"optimizer": optimizer})

    def call(self, one):
        self.original()


def accelerate_model(model, config):
    """Returns the model itself; calls of it run from plans from now on. `model.stats` and `model.report()` say how."""
    segments = ModelSegments(model, model.forward, config)

    @functools.wraps(model.forward)
    def forward(*args, **kwargs):
        return segments(*args, **kwargs)

    kind = type(model)
    members = {
        "stats": property(lambda self: segments.engine.stats(), doc="What was measured so far: a dict."),
        "report": lambda self: segments.engine.report(),
        "graph_text": lambda self: segments.engine.graph_text(),
        "schedule_text": lambda self: segments.engine.schedule_text(),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    model.__class__ = type(kind.__name__, (kind,), members)
    model.forward = forward
    return model


def accelerate_optimizer(optimizer, config):
    """Returns the optimizer itself; its step() runs from a plan from now on."""
    original = optimizer.step
    update = Accelerated(lambda: original(), _OptimizerScout(optimizer, original), config)

    @functools.wraps(original)
    def step(self, closure: Any = None):
        if closure is not None or _C.is_recording():
            return original(closure) if closure is not None else original()
        return update()

    optimizer.step = types.MethodType(step, optimizer)
    optimizer.update = update
    return optimizer
