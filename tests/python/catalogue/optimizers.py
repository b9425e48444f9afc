"""Optimizers as people write and use them: what they keep, count and read is as in eager."""

import collections
import itertools
import types

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from catalogue.case import case
from catalogue.parts import CHANGE, adam, batches, descend, fit, mlp, sgd


def trained(accelerate, model, optimizer, *looks, change=None):
    """The ordinary step with this optimizer."""
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, *looks, change=change)


class Custom(torch.optim.Optimizer):
    """What all of the optimizers below have in common: a loop over parameters that calls `update`."""

    def __init__(self, parameters, lr=0.05, **defaults):
        super().__init__(parameters, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p], group)


# ---- what they keep


@case
def new_tensor_put_into_the_state(accelerate):
    class Momentum(Custom):
        def update(self, p, g, state, group):
            state["m"] = 0.9 * state["m"] + g if "m" in state else g.clone()
            p.sub_(group["lr"] * state["m"])

    model = mlp()
    yield from trained(accelerate, model, Momentum(model.parameters()))


@case
def gradient_kept_in_the_state(accelerate):
    class Difference(Custom):
        def update(self, p, g, state, group):
            p.sub_(group["lr"] * (g + 0.1 * (g - state.get("last", g))))
            state["last"] = g

    model = mlp()
    yield from trained(accelerate, model, Difference(model.parameters()))


@case
def list_of_tensors_in_the_state(accelerate):
    class Averaging(Custom):
        def update(self, p, g, state, group):
            history = state.setdefault("history", collections.deque(maxlen=3))
            history.append(g.clone())
            p.sub_(group["lr"] * sum(history) / len(history))

    model = mlp()
    optimizer = Averaging(model.parameters())
    for seen in trained(accelerate, model, optimizer):
        yield seen[0], model, [list(state["history"]) for state in optimizer.state.values()]


@case
def counts_on_itself(accelerate):
    class Warm(Custom):
        t = 0

        def step(self, closure=None):
            self.t += 1
            super().step()

        def update(self, p, g, state, group):
            p.sub_(group["lr"] * min(1.0, self.t / 8) * g)

    model = mlp()
    optimizer = Warm(model.parameters(), 0.5)
    for seen in trained(accelerate, model, optimizer):
        yield *seen, optimizer.t


@case
def counts_on_its_class(accelerate):
    class Warm(Custom):
        updates = 0

        def update(self, p, g, state, group):
            Warm.updates += 1
            p.sub_(group["lr"] / (1 + Warm.updates // 8) * g)

    model = mlp()
    for seen in trained(accelerate, model, Warm(model.parameters(), 0.5)):
        yield *seen, Warm.updates


@case
def counts_in_its_state(accelerate):
    class Corrected(Custom):
        def update(self, p, g, state, group):
            state["step"] = state.get("step", 0) + 1
            mean = state.setdefault("mean", torch.zeros_like(p))
            mean.lerp_(g, 0.1)
            p.add_(mean, alpha=-group["lr"] / (1 - 0.9 ** state["step"]))

    model = mlp()
    yield from trained(accelerate, model, Corrected(model.parameters()))


@case
def counts_beside_its_parameters(accelerate):
    """As MADGRAD, in a tensor, and in a number and a list besides."""

    class Slowing(Custom):
        def __init__(self, parameters):
            super().__init__(parameters)
            self.state["k"], self.state["calls"], self.state["rates"] = torch.tensor([0]), 0, []

        def step(self, closure=None):
            self.rate = 0.05 / (1 + self.state["k"].item()) ** 0.5
            super().step()
            self.state["k"].add_(1)
            self.state["calls"] += 1
            self.state["rates"].append(self.rate)

        def update(self, p, g, state, group):
            p.sub_(self.rate * g)

    model = mlp()
    optimizer = Slowing(model.parameters())
    yield from trained(accelerate, model, optimizer, optimizer.state["rates"])


@case
def counts_in_its_group(accelerate):
    class Decaying(Custom):
        def step(self, closure=None):
            for group in self.param_groups:
                group["k"] = group.get("k", 0) + 1
            super().step()

        def update(self, p, g, state, group):
            p.sub_(group["lr"] / group["k"] ** 0.5 * g)

    model = mlp()
    yield from trained(accelerate, model, Decaying(model.parameters()))


@case
def counts_in_hooks(accelerate):
    model, calls = mlp(), collections.Counter()
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: calls.update(["before"]))
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: calls.update(["after"]))
    yield from trained(accelerate, model, optimizer, calls)


@case
def hook_that_clips(accelerate):
    model, bound = mlp(), {"value": 10.0}
    optimizer = sgd(model)

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(model.parameters(), bound["value"])

    optimizer.register_step_pre_hook(clip)
    yield from trained(accelerate, model, optimizer, change=lambda: bound.update(value=0.1))


@case
def hook_that_changes_the_rate(accelerate):
    model = mlp()
    optimizer = sgd(model)

    def decay(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9

    optimizer.register_step_post_hook(decay)
    yield from trained(accelerate, model, optimizer)


# ---- what they read


@case
def reads_a_norm_on_the_host(accelerate):
    class Normed(Custom):
        def update(self, p, g, state, group):
            p.sub_(group["lr"] / max(g.norm().item(), 1e-3) * 0.1 * g)

    model = mlp()
    yield from trained(accelerate, model, Normed(model.parameters()))


@case
def adapts_its_rate_from_a_product(accelerate):
    """As D-adaptation and Prodigy do: a number in the group is computed from gradients."""

    class Adapting(Custom):
        def update(self, p, g, state, group):
            if "last" in state:
                group["d"] = max(group["d"], 1e-2 * float((g * state["last"]).sum()))
            state["last"] = g.clone()
            p.sub_(group["d"] * g)

    model = mlp()
    yield from trained(accelerate, model, Adapting(model.parameters(), d=0.05))


@case
def trust_ratio(accelerate):
    class Lars(Custom):
        def update(self, p, g, state, group):
            ratio = torch.where(g.norm() > 0, p.norm() / (g.norm() + 1e-8), torch.ones(()))
            p.sub_(group["lr"] * ratio.clamp(max=10.0) * g)

    model = mlp()
    yield from trained(accelerate, model, Lars(model.parameters()))


@case
def sign_of_momentum(accelerate):
    class Lion(Custom):
        def update(self, p, g, state, group):
            mean = state.setdefault("mean", torch.zeros_like(p))
            p.mul_(1 - group["lr"] * 0.1).add_((0.9 * mean + 0.1 * g).sign(), alpha=-group["lr"])
            mean.lerp_(g, 0.01)

    model = mlp()
    yield from trained(accelerate, model, Lion(model.parameters(), lr=0.01))


@case(narrow=True)
def orthogonalised_momentum(accelerate):
    """Muon's: Newton-Schulz in bfloat16 for matrices, momentum for the rest."""

    class Muon(Custom):
        def update(self, p, g, state, group):
            mean = state.setdefault("mean", torch.zeros_like(p))
            mean.lerp_(g, 0.1)
            p.add_(self.orthogonal(mean) if p.ndim == 2 else mean, alpha=-group["lr"])

        def orthogonal(self, mean):
            x = mean.bfloat16()
            x = x / (x.norm() + 1e-7)
            for _ in range(3):
                product = x @ x.T
                x = 3.4445 * x + (-4.775 * product + 2.0315 * product @ product) @ x
            return x.float()

    model = mlp()
    yield from trained(accelerate, model, Muon(model.parameters(), lr=0.01))


@case
def schedule_free(accelerate):
    class ScheduleFree(Custom):
        k = 0

        def step(self, closure=None):
            self.k += 1
            super().step()

        def update(self, p, g, state, group):
            z = state.setdefault("z", p.clone())
            p.lerp_(z, 1 / self.k)
            p.add_(g, alpha=-group["lr"] * (1 - 1 / self.k) * 0.1)
            z.sub_(group["lr"] * g)

    model = mlp()
    optimizer = ScheduleFree(model.parameters())
    for seen in trained(accelerate, model, optimizer):
        yield *seen, optimizer.k


@case
def factored_second_moment(accelerate):
    class Factored(Custom):
        def update(self, p, g, state, group):
            if p.ndim == 2:
                row, column = g.square().mean(1), g.square().mean(0)
                state["row"] = row if "row" not in state else state["row"].lerp(row, 0.1)
                state["column"] = column if "column" not in state else state["column"].lerp(column, 0.1)
                scale = (state["row"][:, None] * state["column"] / state["row"].mean() + 1e-8).sqrt()
                g = g / scale
            p.sub_(group["lr"] * g)

    model = mlp()
    yield from trained(accelerate, model, Factored(model.parameters(), lr=0.01))


# ---- set by hand


@case
def rate_set_before_the_update(accelerate):
    model = mlp()
    optimizer, count = sgd(model), itertools.count(1)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / next(count) ** 0.5
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer)


@case
def rate_decayed_after_the_update(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        return loss

    yield from fit(step, model, optimizer)


@case
def weight_decay_set_inside(accelerate):
    model = mlp()
    optimizer, state = torch.optim.AdamW(model.parameters(), lr=1e-2), {"step": 0}

    @accelerate
    def step(x, y):
        state["step"] += 1
        optimizer.param_groups[0]["weight_decay"] = 0.01 * min(state["step"], 8)
        return descend(cross_entropy(model(x), y), optimizer)

    yield from fit(step, model, optimizer, state)


@case
def rate_from_a_function_of_the_trainer(accelerate):
    class Trainer:
        def __init__(self):
            self.model, self.iteration = mlp(), 0
            self.optimizer = adam(self.model)

        def rate(self):
            return 1e-2 * min(1.0, (self.iteration + 1) / 6)

        def step(self, x, y):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate()
            self.iteration += 1
            return descend(cross_entropy(self.model(x), y), self.optimizer)

    trainer = Trainer()
    step = accelerate(trainer.step)
    yield from fit(step, trainer.model, trainer.optimizer)


@case
def hyper_parameters_changed(accelerate):
    model = mlp()
    optimizer = adam(model)
    change = lambda: optimizer.param_groups[0].update(betas=(0.5, 0.9), eps=1e-4, weight_decay=0.1)
    yield from trained(accelerate, model, optimizer, change=change)


@case
def decay_switched_on(accelerate):
    """A call that was not there before is told by its tensors: it is like the next one, which runs beside replays."""
    model = mlp()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01, foreach=False, decoupled_weight_decay=True)
    yield from trained(accelerate, model, optimizer,
                       change=lambda: optimizer.param_groups[0].update(weight_decay=0.5))


@case
def factors_written_by_a_mask(accelerate):
    """Numbers that are put into tensors below any recording."""
    model = mlp()
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    yield from trained(accelerate, model, optimizer, change=lambda: optimizer.param_groups[0].update(etas=(0.3, 1.5)))


@case
def group_added(accelerate):
    model, extra = mlp(), nn.Linear(8, 4)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x) + extra(x), y), optimizer))
    change = lambda: optimizer.add_param_group({"params": list(extra.parameters()), "lr": 0.01})
    extra.requires_grad_(False)
    for seen in fit(step, model, extra, optimizer, change=lambda: (extra.requires_grad_(True), change())):
        yield seen


@case
def momentum_switched_off(accelerate):
    model = mlp()
    optimizer = sgd(model)
    yield from trained(accelerate, model, optimizer, change=lambda: optimizer.param_groups[0].update(momentum=0.0))


@case
def whole_number_becomes_a_fraction(accelerate):
    model = mlp()
    optimizer = sgd(model)
    yield from trained(accelerate, model, optimizer, change=lambda: optimizer.param_groups[0].update(dampening=0.5))


@case
def bounds_of_steps(accelerate):
    model = mlp()
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    change = lambda: optimizer.param_groups[0].update(step_sizes=(1e-6, 0.02))
    yield from trained(accelerate, model, optimizer, change=change)


# ---- several, exchanged and wrapped


@case
def two_optimizers_in_turn(accelerate):
    model, state = mlp(), types.SimpleNamespace(step=0)
    pair = [sgd(model[0]), adam(model[2])]

    @accelerate
    def step(x, y):
        optimizer = pair[state.step % 2]
        state.step += 1
        loss = descend(cross_entropy(model(x), y), optimizer)
        model.zero_grad()
        return loss

    yield from ((*seen, state.step) for seen in fit(step, model, *pair))


@case
def two_optimizers_swapped(accelerate):
    model = mlp()
    pair = {"first": sgd(model), "second": adam(model)}
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), pair["first"]))
    change = lambda: pair.update(first=pair["second"], second=pair["first"])
    yield from fit(step, model, *pair.values(), change=change)


@case
def optimizer_made_anew(accelerate):
    model, holder = mlp(), types.SimpleNamespace()
    holder.optimizer = adam(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), holder.optimizer))

    def change():
        holder.optimizer = adam(model, lr=3e-2)

    for seen in fit(step, model, change=change):
        yield *seen, holder.optimizer


@case
def optimizer_made_after_accelerating(accelerate):
    model, holder = mlp(), {}
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), holder["optimizer"]))
    holder["optimizer"] = adam(model)
    for i, x, y in batches():
        holder["optimizer"].param_groups[0]["lr"] = 1e-2 * 0.9**i
        yield step(x, y), model, holder["optimizer"]


@case
def optimizer_in_a_wrapper(accelerate):
    class Lookahead:
        """Every third step the weights go half-way back."""

        def __init__(self, optimizer):
            self.optimizer, self.steps = optimizer, 0
            self.slow = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]

        def zero_grad(self):
            self.optimizer.zero_grad()

        @torch.no_grad()
        def step(self):
            self.optimizer.step()
            self.steps += 1
            if self.steps % 3 == 0:
                for slow, p in zip(self.slow, self.optimizer.param_groups[0]["params"]):
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)

    model = mlp()
    lookahead = Lookahead(sgd(model))
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), lookahead))
    for _, x, y in batches(15):
        yield step(x, y), model, lookahead.optimizer, lookahead.slow, lookahead.steps


@case
def sharpness_aware(accelerate):
    model = mlp()
    optimizer, parameters = sgd(model), list(model.parameters())

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in parameters]
            for p, move in zip(parameters, moves):
                p.add_(move)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(parameters, moves):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    yield from fit(step, model, optimizer)


@case(eager="closure|LBFGS")
def closure_of_lbfgs(accelerate):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=2)

    @accelerate
    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    for i, x, y in batches():
        yield step(x, y), model


@case
def averaged_model(accelerate):
    model = mlp()
    optimizer, average = sgd(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        average.update_parameters(model)
        return loss

    yield from fit(step, model, average, optimizer)


@case
def state_loaded(accelerate):
    model = mlp()
    optimizer = adam(model)
    start = mlp().state_dict(), adam(mlp()).state_dict()

    def change():
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])

    yield from trained(accelerate, model, optimizer, change=change)


@case
def amsgrad_switched_on(accelerate):
    """Not for people who value their runs, but eager does it."""
    model = mlp()
    optimizer = adam(model)

    def change():
        optimizer.state.clear()
        optimizer.param_groups[0]["amsgrad"] = True

    yield from trained(accelerate, model, optimizer, change=change)


@case
def every_optimizer_of_torch(accelerate):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    kinds = [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta,
             torch.optim.RMSprop, torch.optim.ASGD, torch.optim.Adam]
    optimizers = [kind(layer.parameters(), lr=1e-3) for kind, layer in zip(kinds, model)]
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), *optimizers))
    yield from fit(step, model, *optimizers)


@case
def frozen_layer_of_an_optimizer(accelerate):
    model = mlp()
    yield from trained(accelerate, model, adam(model), change=lambda: model[0].requires_grad_(False))


@case
def gradients_set_to_zero_for_some(accelerate):
    model, state = mlp(), {"warm": True}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        if state["warm"]:
            model[0].weight.grad = None
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    for i, x, y in batches():
        state["warm"] = i < CHANGE
        yield step(x, y), model, optimizer


# ---- around another one


class Lookahead(torch.optim.Optimizer):
    """Steps the optimizer that it wraps, and goes back half of the way after every third step."""

    def __init__(self, base):
        self.base, self.count = base, 0
        super().__init__(base.param_groups, {})
        self.slow = [[p.data.clone() for p in group["params"]] for group in self.param_groups]

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.count += 1
        if self.count % 3 == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for p, q in zip(group["params"], slow):
                    q.add_(p.data - q, alpha=0.5)
                    p.data.copy_(q)
        return loss


@case
def around_another_optimizer(accelerate):
    model = mlp()
    optimizer = Lookahead(adam(model))
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches(24):
        yield step(x, y), model, optimizer.base, optimizer.count, optimizer.slow
