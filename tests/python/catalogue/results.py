"""Programs that look at what a step returns: the program's own tensors, windows on their memory, graphs."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import adam, batches, descend, mlp, sgd


def classifier(accelerate, result_of):
    """A model, its optimizer, and a step that returns what `result_of` makes of the model, the loss and the logits."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return result_of(model, descend(cross_entropy(logits, y), optimizer), logits)

    return model, optimizer, step


@case
def parameter_itself(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: (descend(cross_entropy(model(x), y), optimizer), model[0].weight))
    for _, x, y in batches():
        loss, weight = step(x, y)
        yield loss, model, optimizer, weight is model[0].weight, weight.requires_grad


@case
def window_on_a_parameter(accelerate):
    """What is returned at the first step shows what the last has left."""
    model, rows = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        return {"loss": loss, "row": model[0].weight[1].detach()}

    for _, x, y in batches():
        rows.append(step(x, y)["row"])
        yield [row.clone() for row in rows], model, optimizer


@case
def running_statistics(accelerate):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: (descend(cross_entropy(model(x), y), optimizer), model[1].running_mean))
    for _, x, y in batches():
        loss, mean = step(x, y)
        yield (loss, mean.clone()), model, optimizer, mean is model[1].running_mean


@case
def batch_and_windows_on_it(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: (descend(cross_entropy(model(x), y), optimizer), x, x[2:4].T, y))
    for _, x, y in batches():
        loss, same, window, classes = step(x, y)
        window[0] = 1.0
        yield loss, model, optimizer, same is x, classes is y, x


@case
def results_in_one_memory(accelerate):
    """A write to one of them is seen in the others."""

    def result_of(_, loss, logits):
        logits = logits.detach()
        return {"loss": loss, "last": logits[:, -1], "all": logits, "turned": logits.T, "flat": logits.view(-1)}

    model, optimizer, step = classifier(accelerate, result_of)
    for _, x, y in batches():
        out = step(x, y)
        out["all"][1:3] = 5.0
        out["turned"][-1, 0] = 7.0
        yield out, model, optimizer, out["flat"].data_ptr() == out["all"].data_ptr(), out["last"].stride()


@case
def results_that_overlap(accelerate):
    """None of them covers the others."""
    model, optimizer, step = classifier(
        accelerate, lambda _, loss, logits: (loss, logits.detach()[:, :3], logits.detach()[:, 1:]))
    for _, x, y in batches():
        loss, first, last = step(x, y)
        first[:, 2] = 5.0
        last[:, 2] = 7.0
        yield (loss, first, last), model, optimizer


@case
def one_result_twice(accelerate):
    def result_of(model, loss, logits):
        return {"loss": loss, "logits": logits, "hidden": (logits, model[0].weight, model[0].weight)}

    model, optimizer, step = classifier(accelerate, result_of)
    for _, x, y in batches():
        out = step(x, y)
        same = out["hidden"][0] is out["logits"], out["hidden"][1] is model[0].weight, out["hidden"][2] is model[0].weight
        yield out["logits"], model, optimizer, same


@case
def gradient_itself(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss, model[0].weight.grad

    for _, x, y in batches():
        loss, gradient = step(x, y)
        yield (loss, gradient.clone()), model, optimizer, gradient is model[0].weight.grad


@case(eager="returns a tensor with its graph")
def loss_for_a_backward_pass_outside(accelerate):
    model = mlp()
    optimizer = adam(model)
    step = accelerate(lambda x, y: cross_entropy(model(x), y))
    for _, x, y in batches():
        loss = step(x, y)
        descend(loss, optimizer)
        yield loss, model, optimizer


@case(eager="returns a tensor with its graph")
def features_that_another_loss_uses(accelerate):
    """One backward pass has run in the step; another part of the graph is still to be used."""
    body, head, other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
    optimizer = sgd(body, head, other)

    @accelerate
    def step(x, y):
        loss = cross_entropy(head(body(x).detach()), y)
        loss.backward()
        return loss, body(x).tanh()

    for _, x, y in batches():
        loss, features = step(x, y)
        descend(cross_entropy(other(features), y), optimizer)
        yield loss, body, head, other, optimizer


@case
def accuracy_beside_the_loss(accelerate):
    """What is computed from a graph that has been used gives no backward pass any more, as in eager."""
    model, optimizer, step = classifier(
        accelerate, lambda _, loss, logits: (loss, (logits - logits.mean()).abs().mean(), logits))
    for _, x, y in batches():
        loss, spread, logits = step(x, y)
        try:
            loss.backward()
            raised = False
        except RuntimeError:
            raised = True
        yield (loss, spread, logits), model, optimizer, raised


@case
def the_batch_it_was_given(accelerate):
    """With what the step has put into it: the very dict, alone and in a tuple."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(batch, wraps):
        batch["loss"] = descend(cross_entropy(model(batch["x"]), batch["y"]), optimizer)
        return (batch, batch["loss"] * 2) if wraps else batch

    for i, x, y in batches():
        batch, wraps = {"x": x, "y": y}, i % 2 == 0
        result = step(batch, wraps)
        same = result[0] if wraps else result
        yield batch["loss"], result, model, optimizer, same is batch, sorted(batch)


@case
def lists_of_the_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(parts):
        loss = sum(cross_entropy(model(x), y) for x, y in zip(parts["xs"], parts["ys"]))
        return {"loss": descend(loss, optimizer), "xs": parts["xs"], "others": [parts["ys"], list(parts["ys"])]}

    for _, x, y in batches():
        parts = {"xs": [x[:4], x[4:]], "ys": [y[:4], y[4:]]}
        result = step(parts)
        given, made = result["others"]
        yield result["loss"], model, optimizer, result["xs"] is parts["xs"], given is parts["ys"], made is parts["ys"]
