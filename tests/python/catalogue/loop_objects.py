"""Loops that stay as they are, of models that are given, return or change objects of the program's own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import CHANGE, FEATURES, batches, data, descend, fit, mlp, sgd


class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.body, self.scale = mlp(), nn.Parameter(torch.ones(()))
        self.register_buffer("queue", torch.zeros(4, FEATURES))
        self.log, self.run = [], forward

    def forward(self, *given):
        return self.run(self, *given)


def accelerated(accelerate, forward):
    model = Net(forward)
    return accelerate(model, sgd(model))


# ---- results that were there before


@case
def a_parameter_that_is_returned(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: (m.body(x), m.scale))
    for _, x, y in batches():
        logits, scale = model(x)
        loss = cross_entropy(logits * scale, y)
        loss.backward()
        seen = scale is model.scale, scale.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            scale.clamp_(0.5, 1.01)
        yield loss, model.body, scale.detach(), seen


@case
def a_buffer_that_is_returned(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: (m.body(x + m.queue.mean(0)), m.queue))
    for i, x, y in batches():
        logits, queue = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        queue[i % 4] = x[0]
        yield loss, model.body, model.queue


@case
def an_argument_that_is_returned(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: {"logits": m.body(x), "x": x})
    for _, x, y in batches():
        result = model(x)
        loss = descend(cross_entropy(result["logits"], y), optimizer)
        result["x"].add_(1)
        yield loss, model.body, x, result["x"] is x


@case
def a_result_that_is_returned_twice(accelerate):
    def forward(model, x):
        logits = model.body(x)
        return logits, (logits,)

    model, optimizer = accelerated(accelerate, forward)
    for _, x, y in batches():
        logits, (same,) = model(x)
        yield descend(cross_entropy(logits, y) + same.square().mean(), optimizer), model.body, logits is same


@case
def a_view_of_an_argument_that_is_returned(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: (m.body(x), x[:, 0]))
    for _, x, y in batches():
        logits, first = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        first.zero_()
        yield loss, model.body, x


@case
def a_list_of_the_model_that_is_returned(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: (m.body(x), m.log))
    for i, x, y in batches():
        logits, log = model(x)
        log.append(i)
        yield descend(cross_entropy(logits, y), optimizer), model.body, list(model.log)


# ---- arguments that the model changes


@case
def a_batch_whose_labels_are_popped(accelerate):
    def forward(model, batch):
        y = batch.pop("labels")
        return cross_entropy(model.body(batch["x"]), y)

    model, optimizer = accelerated(accelerate, forward)
    for _, x, y in batches():
        batch = {"x": x, "labels": y}
        yield descend(model(batch), optimizer), model.body, sorted(batch)


@case
def a_list_that_is_filled(accelerate):
    def forward(model, x, features):
        features.append(model.body(x))
        return features[0].square().mean()

    model, optimizer = accelerated(accelerate, forward)
    for _, x, y in batches():
        features = []
        loss = model(x, features) + cross_entropy(features[0], y)
        yield descend(loss, optimizer), model.body, len(features)


@case
def a_batch_that_is_filled_and_returned(accelerate):
    def forward(model, batch):
        batch["logits"] = model.body(batch["x"])
        return batch

    model, optimizer = accelerated(accelerate, forward)
    for _, x, y in batches():
        batch = {"x": x}
        result = model(batch)
        yield descend(cross_entropy(batch["logits"], y), optimizer), model.body, result is batch


# ---- attributes of tensors


@case
def an_attribute_of_an_argument(accelerate):
    model, optimizer = accelerated(accelerate, lambda m, x: m.body(x) * getattr(x, "gain", 1.0))
    for i, x, y in batches():
        if i >= CHANGE:
            x.gain = 3.0
        yield descend(cross_entropy(model(x), y), optimizer), model.body


@case
def an_attribute_that_a_parameter_gets(accelerate):
    def forward(model, x):
        return model.body(x) * (2.0 if getattr(model.scale, "doubles", False) else 1.0)

    model, optimizer = accelerated(accelerate, forward)
    for i, x, y in batches():
        if i == CHANGE:
            model.scale.doubles = True
        yield descend(cross_entropy(model(x), y), optimizer), model.body


@case
def an_attribute_of_a_result(accelerate):
    def forward(model, x):
        logits = model.body(x)
        logits.kind = "logits"
        return logits

    model, optimizer = accelerated(accelerate, forward)
    for _, x, y in batches():
        logits = model(x)
        yield descend(cross_entropy(logits, y), optimizer), model.body, logits.kind


@case
def an_attribute_that_a_step_asks_parameters_for(accelerate):
    model = mlp()
    optimizer = sgd(model)

    def train_step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            if getattr(parameter, "skip", False):
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
        return loss

    yield from fit(accelerate(train_step), model, change=lambda: setattr(model[0].weight, "skip", True))


# ---- the graph of results


def both(model, x):
    hidden = model.body[:2](x)
    return model.body[2](hidden), hidden


@case(eager="is kept or hooked")
def a_hidden_result_whose_gradient_is_kept(accelerate):
    model, optimizer = accelerated(accelerate, both)
    for _, x, y in batches():
        logits, hidden = model(x)
        hidden.retain_grad()
        loss = descend(cross_entropy(logits, y), optimizer)
        yield loss, model.body, hidden.grad


@case(eager="retain_graph")
def a_hidden_result_whose_gradient_is_asked_for(accelerate):
    model, optimizer = accelerated(accelerate, both)
    for _, x, y in batches():
        logits, hidden = model(x)
        loss = cross_entropy(logits, y)
        (gradient,) = torch.autograd.grad(loss, hidden, retain_graph=True)
        yield descend(loss, optimizer), model.body, gradient


@case(eager="backward passes of their own")
def results_with_backward_passes_of_their_own(accelerate):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = mlp(), mlp()

        def forward(self, x):
            return self.actor(x), self.critic(x)

    model = Two()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        actor, critic = model(x)
        loss = cross_entropy(actor, y)
        loss.backward()
        yield descend(critic.square().mean(), optimizer), loss, model


# ---- errors, and values that change


@case
def a_hook_that_raises_in_a_backward_pass(accelerate):
    state = {"raises": False}

    def check(gradient):
        if state["raises"]:
            raise ValueError("too large")

    def forward(model, x):
        hidden = model.body[:2](x)
        hidden.register_hook(check)
        return model.body[2](hidden)

    model, optimizer = accelerated(accelerate, forward)
    for i, x, y in batches():
        state["raises"] = i % 3 == 2
        loss, error = cross_entropy(model(x), y), ""
        try:
            loss.backward()
        except ValueError as raised:
            error = str(raised)
        gradients = [p.grad.clone() for p in model.body.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        yield loss, model.body, error, gradients


@case
def adapters_that_are_switched(accelerate):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.active = mlp(), "a"
            self.adapters = nn.ModuleDict({name: nn.Linear(FEATURES, FEATURES) for name in "abc"})

        def forward(self, x):
            return self.body(x + self.adapters[self.active](x))

    model = Adapted()
    model, optimizer = accelerate(model, sgd(model))
    for i in range(20):
        x, y = data(seed=i)
        model.active = {3: "b", 4: "c"}.get(i, model.active)
        yield descend(cross_entropy(model(x), y), optimizer), model
