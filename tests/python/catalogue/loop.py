"""Loops that stay as they are, with `model, optimizer = accelerate(model, optimizer)` before them."""

import copy
import functools
import io
import pickle
import types

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, adam, batches, data, descend, mlp, sgd


class Net(nn.Module):
    """A model whose forward leaves things on the module."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.aux_loss = self.hidden = None

    def forward(self, x):
        hidden = self.first(x).tanh()
        self.hidden = hidden.detach()
        self.aux_loss = hidden.square().mean()
        return self.second(hidden)


@case
def plain_loop(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def loop_that_clips_and_accumulates(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, adam(model))
    for i, x, y in batches(16):
        loss = cross_entropy(model(x), y) / 2
        loss.backward()
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        yield loss, model, optimizer


@case
def outputs_in_one_memory(accelerate):
    """What the loop writes into one of a model's outputs is seen in the others."""

    class Outputs(Net):
        def forward(self, x):
            out = self.second(self.first(x).tanh())
            return {"last": out[:, -1], "all": out, "flat": out.view(-1), "same": (out,)}

    model = Outputs()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        out = model(x)
        loss = descend(cross_entropy(out["all"], y) + out["last"].sum(), optimizer)
        out["all"].data[1:3] = 5.0
        out["last"].data[0] = 7.0
        yield loss, out, model, optimizer, out["same"][0] is out["all"]


@case
def gradients_by_autograd_grad(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y)
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()
        yield loss, model, optimizer


@case
def unused_parameters_allowed(accelerate):
    model = Net()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        for p, g in zip(model.parameters(), gradients):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()
        yield loss, model, optimizer, [g is None for g in gradients]


@case(eager="create_graph")
def penalty_on_a_gradient(accelerate):
    """A critic's, as in WGAN-GP."""
    model = mlp()
    model, optimizer = accelerate(model, sgd(model, lr=0.02))
    for _, x, y in batches():
        x = x.requires_grad_()
        logits = model(x)
        (slope,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        loss = cross_entropy(logits, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()
        yield descend(loss, optimizer), model, optimizer


@case
def gradient_of_the_inputs_alone(accelerate):
    """An adversarial example: parameters get no gradient from it."""
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(x), y), x)
        unharmed = [p.grad is None for p in model.parameters()]
        loss = cross_entropy(model((x + 0.1 * slope.sign()).detach()), y)
        yield descend(loss, optimizer), model, optimizer, unharmed, slope


@case
def backward_for_some_inputs(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        x = x.requires_grad_()
        loss = cross_entropy(model(x), y)
        loss.backward(inputs=[x, model[2].weight])
        optimizer.step()
        given = [p.grad is not None for p in model.parameters()]
        optimizer.zero_grad()
        yield loss, model, optimizer, given, x.grad


@case(eager="retain_graph")
def two_losses_over_one_pass(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        logits = model(x)
        one, two = cross_entropy(logits, y), logits.square().mean()
        one.backward(retain_graph=True)
        (0.1 * two).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield (one, two), model, optimizer


@case(eager="retain_graph")
def graph_kept_and_run_twice(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        first = model[0].weight.grad.clone()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss, model, optimizer, first


@case
def auxiliary_loss_on_the_module(accelerate):
    model = Net()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y) + 0.1 * model.aux_loss
        yield descend(loss, optimizer), model, optimizer


@case
def detached_state_on_the_module(accelerate):
    model = Net()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        yield loss, model, optimizer, model.hidden


@case
def buffer_given_anew_in_a_loop(accelerate):
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.layer(x - self.mean)

    model = Centered()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def stateful_recurrent_model(accelerate):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head, self.hidden = nn.GRUCell(8, 8), nn.Linear(8, 4), None

        def forward(self, x):
            self.hidden = self.cell(x, None if self.hidden is None else self.hidden.detach())
            return self.head(self.hidden)

    model = Recurrent()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        yield loss, model, optimizer, model.hidden.detach()


@case
def detached_feature_of_a_hook(accelerate):
    model, features = mlp(), {}
    model[1].register_forward_hook(lambda module, inputs, output: features.update(tanh=output.detach()))
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer, features


@case
def feature_of_a_hook_in_the_loss(accelerate):
    model, features = mlp(), {}
    model[1].register_forward_hook(lambda module, inputs, output: features.update(tanh=output))
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y) + 0.1 * features["tanh"].abs().mean()
        yield descend(loss, optimizer), model, optimizer


@case(eager="the loss uses o")
def several_heads_of_which_one_is_trained(accelerate):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 2)

        def forward(self, x):
            hidden = self.body(x).tanh()
            return {"one": self.one(hidden), "two": self.two(hidden)}

    model = Heads()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches(24):
        heads = model(x)
        loss = cross_entropy(heads["one"], y) if i < 8 or i >= 16 else cross_entropy(heads["two"], y % 2)
        yield descend(loss, optimizer), model, optimizer


@case
def parameters_used_outside_the_model(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        loss = cross_entropy(model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())
        yield descend(loss, optimizer), model, optimizer


@case
def penalty_with_accumulation(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches(16):
        loss = cross_entropy(model(x), y) / 2 + 0.01 * model[0].weight.abs().sum()
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        yield loss, model, optimizer


@case
def copy_for_an_average(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    average = copy.deepcopy(model)
    held_out, _ = data(seed=99)
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters()):
                mean.lerp_(p, 0.1)
            evaluated = average(held_out)
        yield (loss, evaluated), model, average, optimizer


@case
def averaged_model_of_torch(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    average, (held_out, _) = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), data(seed=99)
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        average.update_parameters(model)
        with torch.no_grad():
            evaluated = average(held_out)
        yield (loss, evaluated), model, average, optimizer


@case
def copy_that_is_trained(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    other = copy.deepcopy(model)
    other_optimizer = sgd(other, lr=0.2)
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        other_loss = descend(cross_entropy(other(x), y), other_optimizer)
        yield (loss, other_loss), model, other, optimizer, other_optimizer


@case
def copy_as_a_frozen_teacher(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        if i == 0 or i == CHANGE:
            teacher = copy.deepcopy(model).eval().requires_grad_(False)
        logits = model(x)
        loss = cross_entropy(logits, y) + mse_loss(logits, teacher(x))
        yield descend(loss, optimizer), model, teacher, optimizer


@case
def inner_loop_of_meta_learning(accelerate):
    """Reptile: a copy is trained for some steps, the model moves towards it."""
    model = mlp()
    model, _ = accelerate(model, sgd(model))
    for _, x, y in batches():
        inner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        for _ in range(2):
            loss = descend(cross_entropy(inner(x), y), optimizer)
        total = cross_entropy(model(x), y)
        total.backward()
        with torch.no_grad():
            for p, q in zip(model.parameters(), inner.parameters()):
                p.add_(0.5 * (q - p) - 0.01 * p.grad)
        model.zero_grad()
        yield (loss, total), model


class Picklable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x)


@case
def model_saved_whole(accelerate):
    model = Picklable()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        loss, saved = descend(cross_entropy(model(x), y), optimizer), None
        if i in (CHANGE, STEPS - 1):
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            saved = torch.load(file, weights_only=False)(x).detach()
        yield (loss, saved), model, optimizer


@case
def model_and_optimizer_pickled(accelerate):
    model = Picklable()
    model, optimizer = accelerate(model, adam(model))
    for i, x, y in batches():
        loss, again = descend(cross_entropy(model(x), y), optimizer), None
        if i == CHANGE:
            other = pickle.loads(pickle.dumps(model))
            again = other(x).detach(), type(other).__name__, len(pickle.dumps(optimizer.state_dict())) > 0
        yield (loss, again), model, optimizer


@case
def function_transforms_of_the_model(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        loss, rows, other = descend(cross_entropy(model(x), y), optimizer), None, None
        parameters = {name: p.detach() * 0.5 for name, p in model.named_parameters()}
        if i in (1, CHANGE):
            other = functional_call(model, parameters, (x,))
            loss_of = lambda p, x, y: cross_entropy(functional_call(model, p, (x[None],)), y[None])
            rows = vmap(grad(loss_of), (None, 0, 0))(parameters, x, y)
        yield (loss, rows, other), model, optimizer


@case
def model_traced_and_exported(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        loss, found = descend(cross_entropy(model(x), y), optimizer), None
        if i == CHANGE:
            traced = torch.jit.trace(model, x)
            exported = torch.export.export(model, (x,)).module()
            found = traced(x + 1).detach(), exported(x).detach()
        yield (loss, found), model, optimizer


@case
def model_with_names_of_its_own(accelerate):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.stats, self.report = nn.Linear(8, 4), {"calls": 0}, "nothing to report"

        def forward(self, x):
            return self.layer(x)

        def graph_text(self):
            return "a graph of my own"

    model = Named()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        model.stats["calls"] += 1
        yield loss, model, optimizer, model.stats, model.report, model.graph_text(), type(model) is Named


@case(eager="an output is changed in place that the backward pass reads")
def output_changed_in_place(accelerate):
    """The backward pass needs what the program overwrites: the same error as in eager."""
    class Exponential(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            return self.layer(x).exp()

    model = Exponential()
    model, optimizer = accelerate(model, sgd(model, lr=0.01))
    for i, x, y in batches():
        out, error = model(x), ""
        loss = out.mean()
        if i in (1, CHANGE):
            out.mul_(0)
        try:
            loss.backward()
            optimizer.step()
        except RuntimeError as raised:
            error = "modified by an inplace operation" in str(raised)
        optimizer.zero_grad()
        yield error, model, optimizer


@case
def evaluation_between_steps(accelerate):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    model, optimizer = accelerate(model, sgd(model, lr=0.02))
    held_out, _ = data(seed=99)
    for i, x, y in batches(16):
        loss = descend(cross_entropy(model(x), y), optimizer)
        model.eval()
        with torch.no_grad():
            evaluated = model(held_out)
        model.train()
        yield (loss, evaluated), model, optimizer


@case
def adversarial_pair(accelerate):
    generator, critic = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    generator, generator_optimizer = accelerate(generator, adam(generator))
    critic, critic_optimizer = accelerate(critic, adam(critic))
    for _, x, y in batches(16):
        fake = generator(x)
        critic_loss = descend(critic(fake.detach()).mean() - critic(x.flip(0)).mean(), critic_optimizer)
        loss = -critic(generator(x)).mean()
        loss.backward()
        generator_optimizer.step()
        generator_optimizer.zero_grad()
        critic_optimizer.zero_grad()
        yield (critic_loss, loss), generator, critic, generator_optimizer, critic_optimizer


@case
def model_called_twice_for_one_loss(accelerate):
    """A siamese pair."""
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches(16):
        one, two = model(x), model(x.flip(1))
        yield descend(cross_entropy(one, y) + (one - two).square().mean(), optimizer), model, optimizer


@case
def recurrent_model_in_a_loop(accelerate):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.body(x[:, None].repeat(1, 3, 1))[0][:, -1])

    model = Recurrent()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def counter_in_the_model_of_a_loop(accelerate):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls, self.seen = nn.Linear(8, 4), 0, []

        def forward(self, x):
            self.calls += 1
            self.seen.append(len(x))
            return self.layer(x) / (1 + self.calls % 2)

    model = Counting()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer, model.calls, model.seen


@case
def settings_of_a_loops_model(accelerate):
    class Scaled(nn.Module):
        def __init__(self, options):
            super().__init__()
            self.layer, self.options = nn.Linear(8, 4), options

        def forward(self, x):
            return self.layer(x) * self.options.scale

    options = types.SimpleNamespace(scale=1.0)
    model = Scaled(options)
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        options.scale = 1.0 if i < CHANGE else 0.5
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def class_of_a_loops_model_changed(accelerate):
    class Linear(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.1

    model = nn.Linear(8, 4)
    model, optimizer = accelerate(model, sgd(model))
    for i, x, y in batches():
        if i == CHANGE:
            model.__class__ = Linear
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def loops_model_that_prints(accelerate):
    class Loud(nn.Linear):
        def forward(self, x):
            print("rows:", len(x))
            return super().forward(x)

    model = Loud(8, 4)
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case
def optimizer_with_a_closure_in_a_loop(accelerate):
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        yield optimizer.step(closure), model, optimizer


@case
def scheduler_made_before_and_after(accelerate):
    model = mlp()
    optimizer = sgd(model)
    before = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    model, optimizer = accelerate(model, optimizer)
    after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    for i, x, y in batches():
        loss = descend(cross_entropy(model(x), y), optimizer)
        (before if i % 2 else after).step()
        yield loss, model, optimizer, before, after


@case
def method_called_instead_of_forward(accelerate):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def encode(self, x):
            return self.layer(x).tanh()

        def forward(self, x):
            return self.head(self.encode(x))

    model = Encoder()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        loss = cross_entropy(model(x), y) + 0.1 * model.encode(x).square().mean()
        yield descend(loss, optimizer), model, optimizer


class Counting(nn.Module):
    """Keeps what it makes: attached, and cut off."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.kept, self.seen = nn.Linear(8, 8), nn.Linear(8, 4), [], []

    def forward(self, x):
        hidden = self.layer(x).tanh()
        self.kept.append(hidden)
        self.seen.append(hidden.detach())
        return self.head(hidden)


@case
def kept_beside_gradients_of_the_inputs(accelerate):
    """The forward pass runs once a step, whatever becomes of it."""
    model = Counting()
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        x = x.requires_grad_()
        loss = descend(cross_entropy(model(x), y) + model.kept[-1].square().mean(), optimizer)
        yield loss, model, optimizer, x.grad, len(model.kept), len(model.seen)


class Styled(nn.Module):
    """Takes a tensor from the program beside its argument."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.style = nn.Linear(8, 8), nn.Linear(8, 4), torch.ones(8)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x) * self.style))


@case(eager="graph was there before")
def style_of_another_network_in_two_calls(accelerate):
    """Both calls go on from one graph, which is gone through once."""
    model, hyper = Styled(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model, optimizer = accelerate(model, sgd(model, hyper))
    for _, x, y in batches():
        model.style = hyper(x.mean(0))
        yield descend(cross_entropy(model(x) + model(x / 2), y), optimizer), model, optimizer, hyper


@case(eager="no parameter or argument|graph was there before")
def style_of_another_network_later(accelerate):
    """A constant at first, whose passes are replayed."""
    model, hyper = Styled(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model, optimizer = accelerate(model, sgd(model, hyper))
    for i, x, y in batches():
        if i >= CHANGE:
            model.style = hyper(x.mean(0))
        yield descend(cross_entropy(model(x), y) + model.style.square().mean(), optimizer), model, optimizer, hyper


@case(eager="no parameter or argument")
def learned_tensor_beside_the_parameters(accelerate):
    """Its gradient is the sum of the model's and the penalty's part, added to what is there."""
    model, style = Styled(), torch.ones(8, requires_grad=True)
    model.style = style
    model, optimizer = accelerate(model, torch.optim.SGD([*model.parameters(), style], lr=0.1))
    for i, x, y in batches():
        loss = cross_entropy(model(x), y) + 0.1 * style.exp().mean()
        loss.backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        yield loss, model, optimizer, style, style.grad


@case
def wrapped_by_the_program(accelerate):
    """A library replaces forward after the fact."""
    model = mlp()
    model, optimizer = accelerate(model, sgd(model))
    forward = model.forward

    @functools.wraps(forward)
    def halved(x):
        return forward(x) * 0.5

    for i, x, y in batches():
        if i == CHANGE:
            model.forward = halved
        yield descend(cross_entropy(model(x), y), optimizer), model, optimizer
