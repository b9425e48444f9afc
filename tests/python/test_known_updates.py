"""Updates whose host numbers are known need not run their Python before a replay: bit-equal to eager in parameters,
optimizer state, counters and groups, whatever the program does to its optimizer; each test says which way was taken."""

import logging
import math
import warnings

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

import stepc
from harness import Training, assert_same, run_twins, source_of, state_leaves

pytestmark = pytest.mark.usefixtures("short_collections")

STEPS = 24
CHANGED = 12
CONFIG = stepc.Config(mode="exact", verify="first")

OPTIMIZERS = {
    "adamw": (AdamW, dict(lr=1e-2)),
    "adamw_foreach": (AdamW, dict(lr=1e-2, foreach=True)),
    "adamw_fused": (AdamW, dict(lr=1e-2, fused=True)),
    "adamw_amsgrad_maximize": (AdamW, dict(lr=1e-2, amsgrad=True, maximize=True)),
    "adam": (Adam, dict(lr=1e-2)),
    "adam_decay_foreach": (Adam, dict(lr=1e-2, weight_decay=0.1, foreach=True, maximize=True)),
    "adam_fused": (Adam, dict(lr=1e-2, weight_decay=0.1, fused=True)),
    "sgd": (SGD, dict(lr=0.1)),
    "sgd_nesterov": (SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "sgd_dampening_foreach": (SGD, dict(lr=0.1, momentum=0.9, dampening=0.1, foreach=True)),
    "sgd_fused": (SGD, dict(lr=0.1, momentum=0.9, fused=True)),
    "rmsprop": (RMSprop, dict(lr=1e-2, momentum=0.9, centered=True, weight_decay=0.1)),
    "rmsprop_foreach": (RMSprop, dict(lr=1e-2, foreach=True)),
    "adagrad": (Adagrad, dict(lr=0.1, lr_decay=0.1, weight_decay=0.1)),
}


def falling(optimizer):
    return LambdaLR(optimizer, lambda step: 0.95**step)


def build(make, schedule=None, parameters_of=lambda model: model.parameters()):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    optimizer = make(parameters_of(model))

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Training(step, [model], [optimizer], [schedule(optimizer)] if schedule else [])


def make_batch(i):
    return torch.randn(5, 6, generator=source_of(i))


def run(make, *, steps=STEPS, replays=8, schedule=falling, before=None, **options):
    return run_twins(lambda: build(make, schedule, **options), make_batch, steps=steps, replays=replays, config=CONFIG,
                     before=before).stats


def at(step, change):
    return lambda i, training: change(training) if i == step else None


def run_beside(make, before):
    """The same where code of the program's comes to run in the update, for which looking at the step warns."""
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        twins.append(build(make))
    step = stepc.accelerate(twins[0].step, config=CONFIG)
    for i in range(STEPS):
        for training, call in zip(twins, (step, twins[1].step)):
            before(i, training)
            call(make_batch(i))
        assert_same(state_leaves(twins[1]), state_leaves(twins[0]), f"state after step {i}")
    return step.stats


def assert_known(stats, relearned=0):
    """All updates but those that are compared: after every look at the step, and where they were learned again."""
    ran = stats["replays"] - stats["known_updates"]
    assert stats["known_updates"] > 0 and ran <= stats["checks"] + relearned, stats


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bit_equal_without_its_python(name):
    kind, options = OPTIMIZERS[name]
    assert_known(run(lambda parameters: kind(parameters, **options)))


def test_python_is_not_called(monkeypatch):
    calls = []
    original = AdamW._init_group

    def counted(self, *args):
        calls.append(1)
        return original(self, *args)

    # Not of the kind that is noticed: the function object stays what it is.
    training = build(lambda parameters: AdamW(parameters, lr=1e-2))
    step = stepc.accelerate(training.step, config=stepc.Config(mode="exact", verify="off"))
    for i in range(STEPS):
        step(make_batch(i))
    before = step.stats
    assert before["known_updates"] == before["replays"] - 1
    monkeypatch.setattr(AdamW, "_init_group", counted, raising=False)
    step(make_batch(0))
    assert step.stats["known_updates"] == before["known_updates"] and calls  # noticed: it ran


def test_each_number_may_change():
    def change(i, training):
        (group,) = training.optimizers[0].param_groups
        group["lr"] = 1e-2 / (i + 1)
        group["weight_decay"] = 0.01 * (i + 1)
        group["eps"] = 1e-8 * (i + 1)
        group["betas"] = (0.9 - 0.01 * i, 0.99 - 0.001 * i)

    assert_known(run(lambda parameters: AdamW(parameters), schedule=None, before=change))


def test_two_equal_numbers_are_told_apart():
    def change(i, training):
        (group,) = training.optimizers[0].param_groups
        group["lr"] = 0.1 if i < CHANGED else 0.05
        group["weight_decay"] = 0.1 if i < CHANGED else 0.2

    assert_known(run(lambda parameters: Adam(parameters, lr=0.1, weight_decay=0.1, eps=0.1), schedule=None,
                     before=change))


@pytest.mark.parametrize("foreach", [False, True])
def test_groups(foreach):
    def parameters_of(model):
        return [dict(params=[one for one in model.parameters() if one.dim() > 1]),
                dict(params=[one for one in model.parameters() if one.dim() == 1], weight_decay=0.0, lr=5e-3)]

    assert_known(run(lambda parameters: AdamW(parameters, lr=1e-2, foreach=foreach), parameters_of=parameters_of))


def test_a_form_that_comes_back_and_goes():
    """A decay of zero is another branch of the update's code. Whoever takes turns is not learned for ever."""

    def change(i, training):
        training.optimizers[0].param_groups[0]["weight_decay"] = 0.1 if i % 2 else 0.0

    stats = run(lambda parameters: AdamW(parameters, lr=1e-2, fused=True), schedule=None, before=change, steps=40)
    assert stats["replays"] > stats["known_updates"]


@pytest.mark.parametrize("kind, options", [
    (AdamW, dict(lr=torch.tensor(1e-2))), (AdamW, dict(lr=torch.tensor(1e-2), fused=True)), (NAdam, dict(lr=1e-2)),
    (SGD, dict(lr=1)),
], ids=["tensor_lr", "fused_tensor_lr", "unknown", "integer"])
def test_what_is_not_known_runs(kind, options):
    def make(parameters):
        copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        return kind(parameters, **copies)

    assert run(make, schedule=None)["known_updates"] == 0


def test_a_rate_that_becomes_a_tensor_and_a_number_of_another_type():
    def change(i, training):
        group = training.optimizers[0].param_groups[0]
        if i == 8:
            group["lr"] = __import__("numpy").float64(5e-3)
        if i == 14:
            group["lr"] = 2e-3

    stats = run(lambda parameters: AdamW(parameters, lr=1e-2), schedule=None, before=change)
    assert 0 < stats["known_updates"] < stats["replays"] - stats["checks"]


class Sub(AdamW):
    pass


class Counting(AdamW):
    def step(self, closure=None):
        self.param_groups[0]["lr"] *= 0.9
        return super().step(closure)


@pytest.mark.parametrize("kind", [Sub, Counting])
def test_subclasses_run(kind):
    assert run(lambda parameters: kind(parameters, lr=1e-2), schedule=None, replays=0)["known_updates"] == 0


def test_another_class_given_later():
    def change(i, training):
        if i == CHANGED:
            training.optimizers[0].__class__ = Counting

    stats = run_beside(lambda parameters: AdamW(parameters, lr=1e-2), change)
    assert 0 < stats["known_updates"] <= CHANGED


def test_step_replaced_on_the_object():
    calls = []

    def change(training):
        optimizer = training.optimizers[0]
        original = optimizer.step

        def step(*args):
            calls.append(optimizer)
            return original(*args)

        optimizer.step = step

    run(lambda parameters: AdamW(parameters, lr=1e-2), schedule=None, replays=4, before=at(CHANGED, change))
    assert len(calls) >= 2 * (STEPS - CHANGED)


@pytest.mark.parametrize("place", ["class", "function", "module"])
def test_what_is_replaced_in_torch(place, monkeypatch):
    """Another update from then on, in both twins."""
    from torch.optim import adam

    original = adam._single_tensor_adam

    def halved(*args, **kwargs):
        return original(*args, **{**kwargs, "lr": kwargs["lr"] / 2})

    step = AdamW.step

    def stepped(self, closure=None):
        self.param_groups[0]["lr"] = 3e-3
        return step(self, closure)

    def change(i, training):
        if i != CHANGED:
            return
        if place == "class":
            monkeypatch.setattr(AdamW, "step", stepped)
        elif place == "function":
            monkeypatch.setattr(adam, "_single_tensor_adam", halved)
        else:
            monkeypatch.setattr(adam, "_get_value", lambda one: one.item() + 1)

    stats = run_beside(lambda parameters: AdamW(parameters, lr=1e-2), change)
    assert 0 < stats["known_updates"] <= CHANGED and stats["replays"] > CHANGED


@pytest.mark.parametrize("which", ["pre", "post", "all"])
def test_hooks_added_later(which):
    handles = []
    counts = {}

    def hook(optimizer, args, kwargs):
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        optimizer.param_groups[0]["lr"] *= 0.9

    def change(i, training):
        if i == CHANGED and not (which == "all" and handles):
            optimizer = training.optimizers[0]
            add = {"pre": optimizer.register_step_pre_hook, "post": optimizer.register_step_post_hook,
                   "all": register_optimizer_step_pre_hook}[which]
            handles.append(add(hook))

    try:
        stats = run_beside(lambda parameters: AdamW(parameters, lr=1e-2), change)
    finally:
        for handle in handles:
            handle.remove()
    assert 0 < stats["known_updates"] <= CHANGED and len(set(counts.values())) == 1


def test_state_loaded():
    def change(training):
        optimizer = training.optimizers[0]
        state = optimizer.state_dict()
        for one in state["state"].values():
            one["step"] = torch.tensor(3.0)
        state["param_groups"][0]["lr"] = 7e-3
        optimizer.load_state_dict(state)

    assert_known(run(lambda parameters: AdamW(parameters, lr=1e-2), before=at(CHANGED, change)), relearned=2)


def test_counters_written_by_hand():
    def change(training):
        for one in training.optimizers[0].state.values():
            one["step"].fill_(2)

    assert_known(run(lambda parameters: AdamW(parameters, lr=1e-2), before=at(CHANGED, change)))


def test_counters_that_differ_run():
    def change(training):
        next(iter(training.optimizers[0].state.values()))["step"].fill_(2)

    stats = run(lambda parameters: AdamW(parameters, lr=1e-2), before=at(CHANGED, change))
    assert 0 < stats["known_updates"] <= CHANGED


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_counter_that_is_another_tensor(dtype):
    def change(training):
        for one in training.optimizers[0].state.values():
            one["step"] = torch.tensor(5.0, dtype=dtype)

    run(lambda parameters: AdamW(parameters, lr=1e-2), before=at(CHANGED, change))


def test_a_group_added():
    def build_two():
        training = build(lambda parameters: AdamW(parameters, lr=1e-2),
                         parameters_of=lambda model: model[0].parameters())
        return training

    def change(training):
        training.optimizers[0].add_param_group(dict(params=list(training.modules[0][3].parameters()), lr=3e-3))

    stats = run_twins(build_two, make_batch, steps=STEPS, replays=8, config=CONFIG, before=at(CHANGED, change)).stats
    assert stats["known_updates"] > 0


def test_counters_in_one_memory():
    """Views of one tensor: whoever counts one of them alone forgets the others."""

    def change(training):
        states = list(training.optimizers[0].state.values())
        counters = torch.full((len(states),), 4.0)
        for state, counter in zip(states, counters):
            state["step"] = counter

    run(lambda parameters: AdamW(parameters, lr=1e-2), replays=4, before=at(CHANGED, change))


def test_another_parameter_in_the_list():
    def change(training):
        group = training.optimizers[0].param_groups[0]
        group["params"][0] = torch.nn.Parameter(torch.zeros_like(group["params"][0]))

    run(lambda parameters: AdamW(parameters, lr=1e-2), schedule=None, replays=4, before=at(CHANGED, change))


def test_learning_leaves_no_trace(monkeypatch):
    """The optimizer is run with other options to learn; nobody is to see them, and a counter is what it was."""
    from stepc.watch import updates

    seen = []
    probe = updates.Update.probe

    def watched(self, count):
        before = [dict(group) for group in self._groups]
        result = probe(self, count)
        seen.append(all(now[name] is was[name] for now, was in zip(self._groups, before) for name in was))
        return result

    monkeypatch.setattr(updates.Update, "probe", watched)
    assert_known(run(lambda parameters: AdamW(parameters, lr=1e-2)))
    assert len(seen) >= 3 and all(seen)


def test_another_list_of_parameters():
    def change(training):
        group = training.optimizers[0].param_groups[0]
        group["params"] = group["params"][:2]

    stats = run(lambda parameters: AdamW(parameters, lr=1e-2, fused=True), schedule=None, before=at(CHANGED, change))
    assert stats["known_updates"] > 0


def test_parameters_frozen_and_thawed():
    def change(i, training):
        if i in (0, CHANGED):
            training.modules[0][0].requires_grad_(i != 0)

    assert run(lambda parameters: AdamW(parameters, lr=1e-2, fused=True), before=change)["known_updates"] > 0


def test_the_scheduler_sees_that_the_optimizer_stepped():
    """torch's scheduler counts whether step() was called, by a wrapper around it that a replay leaves out."""
    training = build(lambda parameters: AdamW(parameters, lr=1e-2), lambda optimizer: StepLR(optimizer, 5))
    (optimizer,), (scheduler,) = training.optimizers, training.schedulers
    step = stepc.accelerate(training.step, config=CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(STEPS):
            step(make_batch(i))
            scheduler.step()
        known = step.stats["known_updates"]
        assert known > 0
        optimizer._opt_called = False
        step(make_batch(0))
        assert optimizer._opt_called and step.stats["known_updates"] == known
        step(make_batch(0))
        step(make_batch(1))
        assert step.stats["known_updates"] > known
        later = StepLR(optimizer, 3)  # a scheduler that is made late, whose first step asks for it
        step(make_batch(2))
        later.step()


def test_a_scheduler_stepped_inside():
    def build_inside():
        training = build(lambda parameters: AdamW(parameters, lr=1e-2), lambda one: ExponentialLR(one, 0.95))
        step, (scheduler,) = training.step, training.schedulers
        training.schedulers = []

        def both(x):
            loss = step(x)
            scheduler.step()
            return loss

        training.step = both
        return training

    stats = run_twins(build_inside, make_batch, steps=STEPS, replays=8, config=CONFIG).stats
    assert_known(stats)
    assert not stats["traced"]


def test_two_optimizers_and_two_updates_of_one():
    def build_two():
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
        optimizers = [AdamW(model[0].parameters(), lr=1e-2), SGD(model[1].parameters(), lr=0.1, momentum=0.9)]

        def step(x):
            for repeat in range(2):
                loss = model(x).square().mean()
                loss.backward()
                optimizers[0].step()
                if repeat:
                    optimizers[1].step()
                for one in optimizers:
                    one.zero_grad()
            return loss

        return Training(step, [model], optimizers, [falling(one) for one in optimizers])

    stats = run_twins(build_two, make_batch, steps=STEPS, replays=8, config=CONFIG).stats
    assert stats["known_updates"] >= 3 * (stats["replays"] - stats["checks"]) > 0


def test_a_guard_that_misses_takes_the_update_back():
    def build_clipped():
        training = build(lambda parameters: AdamW(parameters, lr=1e-2))
        (model,), (optimizer,) = training.modules, training.optimizers

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if (x.sum() > 0).item():
                return loss * 2
            return loss

        training.step = step
        return training

    stats = run_twins(build_clipped, make_batch, steps=40, replays=8, config=CONFIG).stats
    assert stats["guard_misses"] > 0 and stats["known_updates"] > 0


def test_another_number_than_is_known_ends_it_with_one_line(monkeypatch, caplog):
    """If torch's code computed something else than the table says, its own code would run."""
    from stepc.watch import updates

    def wrong(count, lr, betas, eps, weight_decay):
        return lr, *betas, eps, weight_decay, 1 - lr * weight_decay, 1 - betas[0], 1 - betas[1]

    monkeypatch.setitem(updates._KNOWN, AdamW, wrong)
    with caplog.at_level(logging.INFO, "stepc"):
        assert run(lambda parameters: AdamW(parameters, lr=1e-2))["known_updates"] == 0
    assert len([line for line in caplog.messages if "other numbers than those that are known" in line]) == 1


@pytest.mark.parametrize("rate", [0.0, math.inf])
def test_rates_without_a_scale(rate):
    def change(training):
        training.optimizers[0].param_groups[0]["lr"] = rate

    run(lambda parameters: SGD(parameters, lr=0.1), schedule=None, before=at(CHANGED, change))


def test_fast_mode():
    twin, other = (build(lambda parameters: AdamW(parameters, lr=1e-2), falling) for _ in range(2))
    other.modules[0].load_state_dict(twin.modules[0].state_dict())
    step = stepc.accelerate(twin.step)
    for i in range(STEPS):
        torch.testing.assert_close(step(make_batch(i)), other.step(make_batch(i)).detach())
        for training in (twin, other):
            training.schedulers[0].step()
    assert_known(step.stats)
    for one, expected in zip(twin.optimizers[0].state.values(), other.optimizers[0].state.values()):
        assert one["step"] == expected["step"] == STEPS


# ---- a loop's optimizer, whose step() is ours


def run_loop(make, schedule=falling, scheduled_first=True, before=None):
    """The twins' loops step by step; what is measured of the optimizer."""
    twins = []
    for is_accelerated in (True, False):
        torch.manual_seed(0)
        training = build(make)
        (model,), (optimizer,) = training.modules, training.optimizers
        if before is not None:
            before(optimizer)
        training.schedulers = [schedule(optimizer)] if schedule and scheduled_first else []
        if is_accelerated:
            model, optimizer = stepc.accelerate(model, optimizer, config=CONFIG)
        if schedule and not scheduled_first:
            training.schedulers = [schedule(optimizer)]
        twins.append(training)
    for i in range(STEPS):
        for training in twins:
            training.step(make_batch(i))
            for scheduler in training.schedulers:
                scheduler.step()
        assert_same(state_leaves(twins[1]), state_leaves(twins[0]), f"state after step {i}")
    return stepc.stats(twins[0].optimizers[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loops_are_bit_equal_without_their_optimizers_python(name):
    kind, options = OPTIMIZERS[name]
    assert_known(run_loop(lambda parameters: kind(parameters, **options)))


@pytest.mark.parametrize("scheduled_first", [True, False])
def test_schedulers_of_a_loop(scheduled_first):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_known(run_loop(lambda parameters: AdamW(parameters, lr=1e-2), lambda optimizer: StepLR(optimizer, 5),
                              scheduled_first))
        assert_known(run_loop(lambda parameters: SGD(parameters, lr=0.1), None))


def test_a_step_of_the_programs_own_beneath_a_loops_runs():
    calls = []

    def replace(optimizer):
        original = optimizer.step

        def step(*args):
            calls.append(optimizer)
            return original(*args)

        optimizer.step = step

    stats = run_loop(lambda parameters: AdamW(parameters, lr=1e-2), None, before=replace)
    assert stats["known_updates"] == 0 and len(calls) >= 2 * STEPS


def test_a_hook_added_to_a_loops_optimizer_runs():
    calls = []
    training = build(lambda parameters: AdamW(parameters, lr=1e-2))
    model, optimizer = stepc.accelerate(*training.modules, *training.optimizers, config=CONFIG)
    for i in range(STEPS):
        if i == CHANGED:
            assert stepc.stats(optimizer)["known_updates"] > 0
            optimizer.register_step_post_hook(lambda *_: calls.append(i))
        training.step(make_batch(i))
    assert calls == list(range(CHANGED, STEPS))
