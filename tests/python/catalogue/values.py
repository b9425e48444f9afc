"""Programs that compute in Python with what they read from tensors, and return Python values: those of this step."""

import collections
import copy
import dataclasses
import functools
import math
import pickle
import statistics
import types

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from catalogue.case import case
from catalogue.parts import STEPS, adam, batches, data, descend, fit, mlp, sgd

# ---- arithmetic on host reads


@case
def divided_by_a_count_of_at_least_one(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        mask = (y == 0).float()
        count = max(float(mask.sum()), 1.0)
        loss = (cross_entropy(model(x), y, reduction="none") * mask).sum() / count
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer)


@case
def clipped_by_hand(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        scale = min(1.0, 0.5 / (norm + 1e-6))
        for p in model.parameters():
            p.grad.mul_(scale)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    yield from fit(step, model, optimizer)


@case
def weight_of_a_term_from_its_size(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        one, two = cross_entropy(logits, y), logits.square().mean()
        return descend(one + two * (one.item() / max(two.item(), 1e-8)) * 0.1, optimizer)

    yield from fit(step, model, optimizer)


@case
def baseline_in_python(accelerate):
    model, state = mlp(), types.SimpleNamespace(baseline=0.0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        reward = (logits.argmax(-1) == y).float().mean().item()
        loss = cross_entropy(logits, y) * (1.0 + reward - state.baseline)
        state.baseline = 0.9 * state.baseline + 0.1 * reward
        return descend(loss, optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, state.baseline


@case
def logarithm_of_a_loss(accelerate):
    model, kept = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        kept.append(math.exp(min(loss.item(), 20.0)))
        return loss

    yield from fit(step, model, optimizer, kept)


@case
def scale_made_from_a_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        scale = 1.0 / (x.abs().max().item() + 1e-6)
        return descend(cross_entropy(model(x * scale), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def sum_of_a_list_of_items(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        rows = cross_entropy(model(x), y, reduction="none")
        mean = sum(value.item() for value in rows) / len(rows)
        return descend((rows - mean).relu().mean() + rows.mean(), optimizer), mean

    yield from fit(step, model, optimizer)


@case
def tolist_of_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        counts = torch.bincount(y, minlength=4).tolist()
        weights = torch.tensor([1.0 / max(count, 1) for count in counts])
        return descend(cross_entropy(model(x), y, weight=weights), optimizer)

    yield from fit(step, model, optimizer)


@case
def numpy_of_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        center = x.numpy().mean(axis=0)
        return descend(cross_entropy(model(x - torch.from_numpy(center)), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def expert_by_index(accelerate):
    experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
    optimizer = sgd(experts)

    @accelerate
    def step(x, y):
        expert = experts[int((x.mean() > 0).item())]
        return descend(cross_entropy(expert(x), y), optimizer)

    for _, x, y in batches(20):
        yield step(x, y), experts, optimizer


# ---- branches


@case
def skipped_where_not_finite(accelerate):
    model, skipped = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        if not math.isfinite(loss.item()):
            skipped.append(len(skipped))
            optimizer.zero_grad()
            return loss
        return descend(loss, optimizer)

    for i, x, y in batches():
        yield step(x * (float("inf") if i in (2, 7) else 1.0), y), model, optimizer, skipped


@case
def skipped_where_torch_says_nan(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            optimizer.step()
        optimizer.zero_grad()
        return loss

    for i, x, y in batches():
        yield step(x * (float("nan") if i in (2, 7) else 1.0), y), model, optimizer


@case
def early_stopping(accelerate):
    model, state = mlp(), types.SimpleNamespace(best=math.inf, bad=0, stopped=False)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        if state.stopped:
            return cross_entropy(model(x), y)
        loss = descend(cross_entropy(model(x), y), optimizer)
        value = loss.item()
        state.bad = 0 if value < state.best else state.bad + 1
        state.best, state.stopped = min(state.best, value), state.bad >= 3
        return loss

    for _, x, y in batches(16):
        yield step(x, y), model, optimizer, vars(state)


@case
def plateau_inside(accelerate):
    model = mlp()
    optimizer = sgd(model, lr=0.5)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step(loss.item())
        return loss

    yield from fit(step, model, optimizer, scheduler)


@case
def best_weights_kept(accelerate):
    model, best = mlp(), {"loss": math.inf, "state": None}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        if loss.item() < best["loss"]:
            best.update(loss=loss.item(), state=copy.deepcopy(model.state_dict()))
        return loss

    yield from fit(step, model, optimizer, best)


@case
def line_search(accelerate):
    model = nn.Linear(8, 4)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rate, before = 4.0, [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            while True:
                for p, old, g in zip(model.parameters(), before, gradients):
                    p.copy_(old - rate * g)
                if cross_entropy(model(x), y).item() < loss.item() or rate < 1e-3:
                    break
                rate *= 0.5
        return loss, rate

    for _, x, y in batches(20):
        yield step(x, y), model


@case
def loss_scale_of_its_own(accelerate):
    model, scale = mlp(), {"value": 1024.0, "good": 0}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        (loss * scale["value"]).backward()
        if any(not torch.isfinite(p.grad).all().item() for p in model.parameters()):
            scale.update(value=scale["value"] / 2, good=0)
        else:
            for p in model.parameters():
                p.grad.div_(scale["value"])
            optimizer.step()
            scale["good"] += 1
            if scale["good"] % 3 == 0:
                scale["value"] *= 2
        optimizer.zero_grad()
        return loss

    for i, x, y in batches(16):
        yield step(x * (float("inf") if i == 6 else 1.0), y), model, optimizer, scale


@case
def penalty_until_it_holds(accelerate):
    """A multiplier that Python raises while a constraint is broken."""
    model, multiplier = mlp(), [0.0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        excess = logits.square().mean() - 0.05
        multiplier[0] = max(0.0, multiplier[0] + 0.1 * excess.item())
        return descend(cross_entropy(logits, y) + multiplier[0] * excess, optimizer)

    yield from fit(step, model, optimizer, multiplier)


# ---- what is returned


@case
def loss_as_a_number(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).item())
    yield from fit(step, model, optimizer)


@case
def accuracy(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        return {"loss": loss.item(), "accuracy": (logits.argmax(-1) == y).sum().item() / len(y)}

    yield from fit(step, model, optimizer)


@case
def learning_rate_returned(accelerate):
    model = mlp()
    optimizer = sgd(model)
    scheduler = CosineAnnealingLR(optimizer, STEPS)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        return {"loss": loss, "lr": optimizer.param_groups[0]["lr"]}

    for i, x, y in batches():
        yield step(x, y), model, optimizer, scheduler
        if i >= 4:
            scheduler.step()


@case
def learning_rate_of_a_scheduler_inside(accelerate):
    model = mlp()
    optimizer = adam(model)
    scheduler = CosineAnnealingLR(optimizer, STEPS)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step()
        return loss, scheduler.get_last_lr(), scheduler.last_epoch

    yield from fit(step, model, optimizer, scheduler)


@case
def text_returned(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        return loss, f"loss={loss.item():.3f}"

    yield from fit(step, model, optimizer)


@case
def phase_returned(accelerate):
    model, state = mlp(), {"step": 0}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        state["step"] += 1
        return descend(cross_entropy(model(x), y), optimizer), "warm-up" if state["step"] < 7 else "training"

    yield from fit(step, model, optimizer, state)


@case
def record_returned(accelerate):
    @dataclasses.dataclass
    class Record:
        number: int
        loss: float
        logits: torch.Tensor

    model, state = mlp(), {"step": 0}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        state["step"] += 1
        logits = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        return Record(state["step"], loss.item(), logits.detach())

    yield from fit(step, model, optimizer)


@case
def list_that_grows_returned(accelerate):
    model, losses = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        losses.append(round(loss.item(), 2))
        return loss, list(losses)

    yield from fit(step, model, optimizer)


@case
def statistics_of_the_model_returned(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        return loss, norms, max(norms, key=norms.get)

    yield from fit(step, model, optimizer)


@case
def comparison_returned(accelerate):
    model, target = mlp(), [10.0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        better = loss.item() < target[0]
        target[0] = min(target[0], loss.item())
        return loss, better

    yield from fit(step, model, optimizer, target)


@case
def evaluation_every_few_steps(accelerate):
    model, state = mlp(), {"step": 0, "scores": []}
    optimizer = sgd(model)
    held_out, classes = data(16, seed=99)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        state["step"] += 1
        if state["step"] % 3 == 0:
            with torch.no_grad():
                state["scores"].append((model(held_out).argmax(-1) == classes).float().mean().item())
        return loss

    for _, x, y in batches(18):
        yield step(x, y), model, optimizer, state


@case
def target_network_by_the_reward(accelerate):
    """Reinforcement learning's usual step: a target network copied every few steps, an epsilon in Python."""
    model, target = mlp(), mlp()
    target.load_state_dict(model.state_dict())
    optimizer, state = adam(model), {"step": 0, "epsilon": 1.0}

    @accelerate
    def step(x, y):
        with torch.no_grad():
            wanted = 0.9 * target(x).max(-1).values
        loss = descend(mse_loss(model(x).gather(1, y[:, None]).squeeze(1), wanted + y.float()), optimizer)
        state["step"] += 1
        state["epsilon"] = max(0.1, state["epsilon"] * 0.95)
        if state["step"] % 4 == 0:
            target.load_state_dict(model.state_dict())
        return loss, state["epsilon"]

    for _, x, y in batches(18):
        yield step(x, y), model, target, optimizer, state


@case
def mean_of_kept_numbers_of_their_own_type(accelerate):
    """What is kept of a step is of the type that eager has, in every step; some libraries take no other."""

    class Run:
        pass

    model, run, last, recent = mlp(), Run(), [], collections.deque(maxlen=3)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        run.loss = descend(cross_entropy(model(x), y), optimizer).item()
        recent.append(run.loss)
        last[:] = [run.loss, {"classes": y.sum().item()}]
        return statistics.mean(recent)

    for _, x, y in batches(18):
        out = step(x, y)
        types_now = [type(one) is float for one in (run.loss, last[0], *recent)] + [type(last[1]["classes"]) is int]
        yield out, model, optimizer, run.loss, last, list(recent), types_now


@case
def numbers_of_their_own_type_at_once(accelerate):
    """What item() gives is Python's own number, in the step itself and wherever it is kept."""

    class Slots:
        __slots__ = ("loss",)

    model, slots, seen, best, run = mlp(), Slots(), set(), [(9.0, "none")], types.SimpleNamespace()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        number, count = loss.item(), (y > 1).sum().item()
        slots.loss, run.pair, run.late = number, (number, [{"n": (count,)}]), lambda: number
        run.bound = functools.partial(round, number)
        seen.add(number)
        best.append(min(best[-1], (number, "step")))
        return [type(number), number.__class__, type(count), type(pickle.loads(pickle.dumps(number)))]

    for _, x, y in batches():
        inside = step(x, y)
        kept = (slots.loss, run.pair[0], run.pair[1][0]["n"][0], run.late(), run.bound.args[0], best[-1][0], *seen)
        yield None, model, [str(kind) for kind in (*inside, *map(type, kept))]


@case
def decided_by_arithmetic_on_a_returned_number(accelerate):
    """The number itself is only handed on; what was computed of it chooses."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        out = model(x)
        size = x.abs().mean().item()
        loss = cross_entropy(out, y) if math.sin(40 * size) > 0 else 0.1 * out.square().mean()
        return descend(loss, optimizer), size

    for _, x, y in batches(24):
        yield step(x, y), model, optimizer


@case
def element_chosen_by_a_returned_number(accelerate):
    model, weights = mlp(), [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        count = (y > 1).sum().item()
        return descend(weights[count] * cross_entropy(model(x), y), optimizer), count

    for _, x, y in batches(24):
        yield step(x, y), model, optimizer
