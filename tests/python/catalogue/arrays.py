"""Programs that look into tensors through NumPy: the arrays are the tensors' memory, which they may change."""

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import CHANGE, batches, descend, fit, mlp, sgd


def looked_at(accelerate, look, late=None):
    """look(array of the hidden layer, the hidden layer, i) in every step, instead of it late(...) in a few late ones."""
    model, head, seen, now = mlp(), nn.Linear(4, 4), [], [0]
    optimizer = sgd(model, head)

    @accelerate
    def step(x, y):
        hidden = model(x)
        apart = hidden.detach().tanh()
        what = late if late is not None and now[0] in (CHANGE, CHANGE + 3) else look
        seen.append(what(apart.numpy(), apart, now[0]))
        return descend(cross_entropy(head(hidden + apart), y), optimizer)

    for now[0], x, y in batches(16):
        yield step(x, y), model, head, optimizer, seen


@case
def array_that_is_read(accelerate):
    yield from looked_at(accelerate, lambda array, tensor, _: (float(array.mean()), array.shape, array.dtype.name))


@case
def array_that_is_kept(accelerate):
    yield from looked_at(accelerate, lambda array, tensor, _: array)


@case
def how_an_array_lies(accelerate):
    def look(array, tensor, _):
        flags = array.flags
        return flags.writeable, flags.c_contiguous, flags.owndata, array.strides, type(array.base).__name__

    yield from looked_at(accelerate, look)


@case
def arrays_that_share_memory(accelerate):
    yield from looked_at(accelerate, lambda array, tensor, _: numpy.shares_memory(array, tensor.numpy()))


@case
def array_of_the_transposed(accelerate):
    yield from looked_at(accelerate, lambda array, tensor, _: (tensor.t().numpy().copy(), array.T.tolist()))


def scale(array, tensor, i):
    array *= 1.5
    return float(array.sum())


@case(eager="is written to")
def array_that_is_scaled(accelerate):
    yield from looked_at(accelerate, scale)


@case
def array_that_is_scaled_late(accelerate):
    """No recording has seen it."""
    yield from looked_at(accelerate, lambda array, tensor, _: float(array.sum()), scale)


@case
def array_that_is_scaled_at_last(accelerate):
    """Nothing follows in the step."""
    model, seen, now = mlp(), [], [0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer).detach()
        array = loss.numpy()
        seen.append(float(array))
        if now[0] in (CHANGE, CHANGE + 3):
            array *= 2
        return loss

    for now[0], x, y in batches(16):
        yield step(x, y), model, optimizer, seen


@case
def changed_after_it_was_looked_at(accelerate):
    """By an operator, while nobody holds the array, and late by one while somebody does."""
    def look(array, tensor, _):
        total = float(array.sum())
        del array
        tensor.mul_(2.0)
        return total

    def late(array, tensor, _):
        tensor.mul_(2.0)
        return float(array.sum())

    yield from looked_at(accelerate, look, late)


@case
def batch_through_an_array(accelerate):
    """Late, the step's code writes to the batch."""
    model, now = mlp(), [0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        before = model(x)
        array = x.numpy()
        if now[0] in (CHANGE, CHANGE + 3):
            array[0] = 0.25
        scale = float(array.max())
        return descend(cross_entropy(before + model(x) * scale, y), optimizer)

    for now[0], x, y in batches(16):
        yield step(x, y), model, optimizer, x


@case
def weights_through_an_array(accelerate):
    """They are looked at before the update, and what is kept of them is a copy."""
    model, seen = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        seen.append(model[2].bias.detach().numpy().copy())
        return descend(cross_entropy(model(x), y), optimizer)

    yield from fit(step, model, optimizer, seen)


@case(eager="is written to|looks into")
def weights_through_an_array_across_the_update(accelerate):
    model, seen = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        weights = model[2].bias.detach().numpy()
        loss = descend(cross_entropy(model(x), y), optimizer)
        seen.append(float(weights.sum()))
        return loss

    yield from fit(step, model, optimizer, seen)


@case
def metrics_of_numpy(accelerate):
    model, seen = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        hits = logits.argmax(1).cpu().numpy() == y.cpu().numpy()
        seen.append((loss.detach().cpu().numpy(), float(numpy.mean(hits)), float(numpy.asarray(logits.detach()).std())))
        return loss

    yield from fit(step, model, optimizer, seen)


@case(eager="bfloat16|numpy")
def array_of_a_type_that_numpy_lacks(accelerate):
    def look(array, tensor, _):
        try:
            return tensor.bfloat16().numpy()
        except TypeError as error:
            return str(error)

    yield from looked_at(accelerate, look)
