"""Programs whose parameters share memory, or change which memory they share: noticed by storage, not by name."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations, parameters_to_vector, vector_to_parameters

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, adam, batches, data, descend, fit, mlp, sgd


def flatten_parameters(model):
    """Makes all parameters views of one buffer, and returns it."""
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return flat


@case
def parameters_in_a_flat_buffer(accelerate):
    model = mlp()
    flat, optimizer = flatten_parameters(model), sgd(model)
    yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer, flat)


@case
def flat_parameter_that_the_optimizer_owns(accelerate):
    """The optimizer updates the whole; the model's parameters are views of it."""
    model = mlp()
    master = nn.Parameter(flatten_parameters(model))
    optimizer = torch.optim.SGD([master], lr=0.1, momentum=0.9)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        master.grad = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        optimizer.step()
        model.zero_grad()
        return loss

    yield from fit(step, model, optimizer, master)


@case
def gradients_in_a_flat_buffer(accelerate):
    model = mlp()
    optimizer, flat = sgd(model), torch.zeros(sum(p.numel() for p in model.parameters()))
    start = 0
    for p in model.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()

    @accelerate
    def step(x, y):
        flat.zero_()
        loss = cross_entropy(model(x), y)
        loss.backward()
        flat.mul_((0.5 / (flat.norm() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return loss

    yield from fit(step, model, optimizer, flat)


class Tied(nn.Module):
    """A tiny language model."""

    def __init__(self, tied=True):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(4, 8), nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).tanh())


def language_steps(accelerate, model, optimizer, change=None):
    step = accelerate(lambda tokens: descend(cross_entropy(model(tokens[:-1]), tokens[1:]), optimizer))
    for i, _, y in batches():
        if i == CHANGE and change is not None:
            change()
        yield step(y), model, optimizer


@case
def tied_weights(accelerate):
    model = Tied()
    yield from language_steps(accelerate, model, adam(model))


@case
def weights_untied(accelerate):
    model = Tied()
    optimizer = sgd(model)

    def change():
        model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
        optimizer.add_param_group({"params": [model.head.weight]})

    yield from language_steps(accelerate, model, optimizer, change)


@case
def weights_untied_in_place(accelerate):
    """The parameter keeps its name and its object; only its memory is no longer shared."""
    model = Tied(tied=False)
    model.head.weight.data = model.embedding.weight.data
    optimizer = sgd(model)

    def change():
        model.head.weight.data = model.embedding.weight.data.clone()

    yield from language_steps(accelerate, model, optimizer, change)


@case
def momentum_shared_later(accelerate):
    model = mlp(8)
    model.insert(2, nn.Linear(8, 8))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        optimizer.state[model[2].weight]["momentum_buffer"] = optimizer.state[model[0].weight]["momentum_buffer"]

    yield from fit(step, model, optimizer, change=change)


@case
def weights_that_overlap_later(accelerate):
    model = mlp(8)
    model.insert(2, nn.Linear(8, 8))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        flat = torch.linspace(-0.5, 0.5, 96)
        model[0].weight.data, model[2].weight.data = flat[:64].view(8, 8), flat[32:].view(8, 8)

    yield from fit(step, model, optimizer, change=change)


@case
def weights_tied_later(accelerate):
    model = Tied(tied=False)
    optimizer = sgd(model)
    yield from language_steps(accelerate, model, optimizer,
                              lambda: setattr(model.head, "weight", model.embedding.weight))


class Adapted(nn.Module):
    """A linear layer with low-rank adapters that can be switched and merged."""

    def __init__(self):
        super().__init__()
        self.base, self.active, self.merged = nn.Linear(8, 4).requires_grad_(False), "one", False
        self.down = nn.ParameterDict({name: torch.randn(2, 8) * 0.3 for name in ("one", "two")})
        self.up = nn.ParameterDict({name: torch.randn(4, 2) * 0.3 for name in ("one", "two")})

    def forward(self, x):
        out = self.base(x)
        return out if self.merged else out + x @ self.down[self.active].T @ self.up[self.active].T

    def merge(self):
        with torch.no_grad():
            self.base.weight += self.up[self.active] @ self.down[self.active]
        self.merged = True


@case
def adapter_switched(accelerate):
    model = Adapted()
    optimizer = sgd(model.down, model.up)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model, "active", "two"))


@case
def adapter_merged(accelerate):
    model, head = Adapted(), nn.Linear(4, 4)
    optimizer = sgd(model.down, model.up, head)
    step = accelerate(lambda x, y: descend(cross_entropy(head(model(x)), y), optimizer))
    yield from fit(step, model, head, optimizer, change=model.merge)


@case
def adapter_renamed(accelerate):
    model = Adapted()
    optimizer = sgd(model.down, model.up)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        for part in (model.down, model.up):
            part["best"] = part.pop("one")
        model.active = "best"

    yield from fit(step, model, optimizer, change=change)


@case
def peft_lora(accelerate):
    import peft

    base = nn.Sequential()
    base.add_module("first", nn.Linear(8, 16))
    base.add_module("second", nn.Linear(16, 4))
    options = dict(r=2, target_modules=["first", "second"], lora_dropout=0.0)
    model = peft.get_peft_model(base, peft.LoraConfig(**options))
    model.add_adapter("other", peft.LoraConfig(**options))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches(16):
        if i == CHANGE:
            model.set_adapter("other")
            for name, parameter in model.named_parameters():
                parameter.requires_grad_("lora" in name)
        yield step(x, y), model, optimizer


@case
def state_assigned(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    other = mlp().state_dict()

    def change():
        model.load_state_dict(other, assign=True)
        optimizer.param_groups[0]["params"] = list(model.parameters())

    yield from fit(step, model, optimizer, change=change)


@case
def state_assigned_and_the_optimizer_forgotten(accelerate):
    """A mistake, but eager's: the optimizer goes on with parameters that the model has no longer."""
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    other = mlp().state_dict()
    yield from fit(step, model, optimizer, change=lambda: model.load_state_dict(other, assign=True))


@case
def model_made_double(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.to(model[0].weight.dtype)), y), optimizer))

    def change():
        model.to(torch.float64)
        optimizer.state.clear()

    yield from fit(step, model, optimizer, change=change)


@case(narrow=True)
def model_made_narrow(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.to(model[0].weight.dtype)).float(), y), optimizer))

    def change():
        model.to(torch.bfloat16)
        optimizer.state.clear()

    yield from fit(step, model, optimizer, change=change)


@case
def averages_swapped_in_and_out(accelerate):
    """Evaluation with averaged weights: the parameters' memory is exchanged for a while."""
    model = mlp()
    optimizer, average = sgd(model), [p.detach().clone() for p in model.parameters()]
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    held_out, _ = data(seed=99)

    def swap():
        for i, p in enumerate(model.parameters()):
            p.data, average[i] = average[i], p.data

    for _, x, y in batches():
        loss = step(x, y)
        for mean, p in zip(average, model.parameters()):
            mean.lerp_(p.detach(), 0.1)
        swap()
        with torch.no_grad():
            evaluated = model(held_out)
        swap()
        yield loss, model, optimizer, evaluated, average


@case
def weights_exchanged_between_models(accelerate):
    one, two = mlp(), mlp()
    optimizer = sgd(one, two)
    step = accelerate(lambda x, y: descend(cross_entropy(one(x), y) + two(x).square().mean(), optimizer))

    def change():
        for p, q in zip(one.parameters(), two.parameters()):
            p.data, q.data = q.data, p.data

    yield from fit(step, one, two, optimizer, change=change)


@case
def two_heads_that_come_to_share(accelerate):
    trunk, heads = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
    optimizer = sgd(trunk, heads)

    @accelerate
    def step(x, y):
        hidden = trunk(x).tanh()
        return descend(cross_entropy(heads[0](hidden), y) + cross_entropy(heads[1](hidden), y.flip(0)), optimizer)

    yield from fit(step, trunk, heads, optimizer, change=lambda: heads.__setitem__(1, heads[0]))


@case
def parameters_through_a_vector(accelerate):
    model = mlp()
    momentum = torch.zeros_like(parameters_to_vector(model.parameters()))

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            momentum.mul_(0.9).add_(torch.cat([g.reshape(-1) for g in gradients]))
            vector_to_parameters(parameters_to_vector(model.parameters()) - 0.1 * momentum, model.parameters())
        return loss

    yield from fit(step, model, momentum)


@case
def normalised_weights(accelerate):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 16)), nn.Tanh(), nn.Linear(16, 4))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
        optimizer.param_groups[0]["params"] = list(model.parameters())

    yield from fit(step, model, optimizer, change=change)


@case
def buffer_that_appears(accelerate):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.register_buffer("shift", None)

        def forward(self, x):
            return self.layer(x) if self.shift is None else self.layer(x) + self.shift

    model = Shifted()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model, "shift", torch.arange(4.0)))


@case
def buffer_given_anew_in_forward(accelerate):
    class Centered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.layer(x - self.mean)

    model = Centered()
    optimizer = sgd(model)
    yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer)


@case
def part_replaced_by_a_copy(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: model.__setitem__(2, copy.deepcopy(model[2])))


@case
def parameter_that_is_a_view_of_another(accelerate):
    """The first half of one parameter is another one."""
    whole = nn.Parameter(torch.randn(8, 4) * 0.3)
    half = nn.Parameter(whole.detach()[:4])
    optimizer = torch.optim.SGD([whole, half], lr=0.05)
    step = accelerate(lambda x, y: descend(cross_entropy(x @ whole + x[:, :4] @ half, y), optimizer))
    for i, x, y in batches(STEPS):
        yield step(x, y), optimizer, whole, half


@case
def parameters_given_inside_the_step(accelerate):
    """A parameter's memory is replaced within the step, as sharded training does."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        for p in model.parameters():
            p.data = p.data * 0.999
        return loss

    yield from fit(step, model, optimizer)
