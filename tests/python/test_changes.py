"""What a program changes between two steps: noticed in time, named in the log, and never answered by a stale plan."""

import contextlib
import copy
import logging
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import stepc
from harness import run_twins, source_of, train
from models import MODELS, causal_batch

STEPS, CHANGED, REPLAYS = 20, 9, 10


def build(optimizer=None):
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 8), nn.Linear(8, 4))
    return train(model, lambda model, x: model(x).square().mean() + torch.zeros(()), optimizer and optimizer(model))


def make_batch(i):
    return torch.randn(8, 6, generator=source_of(i), dtype=torch.float32)


def run_changed(change, steps=STEPS, replays=REPLAYS, build=build, make_batch=make_batch, **options):
    """Does `change(training)` before step CHANGED, when the first plan has been replayed for some steps."""

    def before(i, training):
        if i == CHANGED:
            change(training)

    return run_twins(build, make_batch, steps=steps, replays=replays, before=before, **options)


def freeze_layer(training):
    training.modules[0][0].requires_grad_(False)


def evaluate(training):
    training.modules[0].eval()


def evaluate_one_layer(training):
    training.modules[0][1].eval()


def use_one_thread(training):
    torch.set_num_threads(1)


def replace_data(training):
    parameter = training.modules[0][3].weight
    parameter.data = torch.ones_like(parameter.data) * 0.1


def replace_data_transposed(training):
    """The same shape with other strides: the recorded kernels would read it wrongly."""
    parameter = training.modules[0][3].weight
    parameter.data = parameter.data.t().contiguous().t() * 0.5


def replace_parameter(training):
    layer = training.modules[0][0]
    layer.weight = nn.Parameter(torch.ones_like(layer.weight) * 0.1)  # the optimizer keeps the old one


def write_in_place(training):
    with torch.no_grad():
        training.modules[0][3].weight.mul_(0.5)


def replace_buffer(training):
    training.modules[0][1].running_mean = torch.ones(16)


def add_param_group(training):
    (optimizer,) = training.optimizers
    training.modules.append(nn.Linear(1, 1))
    optimizer.add_param_group({"params": list(training.modules[1].parameters()), "lr": 1e-3})
    for parameter in training.modules[1].parameters():
        parameter.grad = torch.ones_like(parameter)
    training.schedulers.clear()  # it counts the groups that it began with


def load_model(training):
    (model,) = training.modules
    state = {key: value + 0.01 if value.is_floating_point() else value for key, value in model.state_dict().items()}
    model.load_state_dict(state)


def load_model_assigned(training):
    (model,) = training.modules
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def load_optimizer(training):
    (optimizer,) = training.optimizers
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        entry["exp_avg"] *= 0.5
    optimizer.load_state_dict(state)


def clear_optimizer_state(training):
    training.optimizers[0].state.clear()


def zero_gradients_kept(training):
    for parameter in training.modules[0].parameters():
        parameter.grad = torch.full_like(parameter, 0.01)


def add_hook(training):
    training.modules[0][0].register_forward_hook(lambda module, inputs, output: output * 0.5)


def add_gradient_hook(training):
    training.modules[0][0].weight.register_hook(lambda gradient: gradient * 0.5)


def replace_layer_function(training):
    training.modules[0][2] = nn.Tanh()


def change_default_dtype(training):
    torch.set_default_dtype(torch.float64)


def ask_for_determinism(training):
    torch.use_deterministic_algorithms(True)


def change_matmul_precision(training):
    torch.set_float32_matmul_precision("medium")


CHANGES = [freeze_layer, evaluate, evaluate_one_layer, use_one_thread, replace_data, replace_data_transposed,
           replace_parameter, write_in_place, replace_buffer, add_param_group, load_model, load_model_assigned,
           load_optimizer, clear_optimizer_state, zero_gradients_kept, add_hook, add_gradient_hook,
           replace_layer_function, change_default_dtype, ask_for_determinism, change_matmul_precision]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_is_noticed(change):
    run_changed(change)


@pytest.mark.parametrize("change", [freeze_layer, evaluate, use_one_thread], ids=lambda change: change.__name__)
def test_change_and_back_again(change):
    """The first plan is still there, so going back needs no new recording."""

    def before(i, training):
        if i == 9:
            change(training)
        elif i == 16:
            training.modules[0].train().requires_grad_(True)
            torch.set_num_threads(2)

    step = run_twins(build, make_batch, steps=24, replays=13, before=before)
    assert step.stats["plans"] == 2


# ---- the state around the step


def under_autocast(i):
    return torch.autocast("cpu", torch.bfloat16) if i >= CHANGED else contextlib.nullcontext()


def under_no_cache(i):
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=i < CHANGED)


def under_other_dtype(i):
    return torch.autocast("cpu", torch.bfloat16 if i < CHANGED else torch.float16)


def under_anomaly_detection(i):
    return torch.autograd.set_detect_anomaly(i >= CHANGED, check_nan=False)


@pytest.mark.parametrize("around", [under_autocast, under_no_cache, under_other_dtype, under_anomaly_detection],
                         ids=lambda around: around.__name__)
def test_context_around_the_step(around):
    """An autocast that stays open after the step keeps its casts of the parameters; such a step may run eagerly."""
    run_twins(build, make_batch, steps=STEPS, replays=0, around=around)


def test_grad_mode_around_the_step():
    """The same function trains, and under `no_grad` it evaluates."""

    def build_both():
        training = build()
        (model,), (optimizer,) = training.modules, training.optimizers

        def step(x):
            loss = model(x).square().mean()
            if loss.requires_grad:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return loss

        training.step = step
        return training

    run_twins(build_both, make_batch, steps=24, replays=8,
              around=lambda i: torch.no_grad() if i % 3 == 2 else contextlib.nullcontext())


# ---- the batch


def test_new_shape_is_named_in_the_log(caplog):
    def make(i):
        batch = causal_batch(source_of(i), False)
        return {key: value[:, : 10 if i < CHANGED else 7] for key, value in batch.items()}

    with caplog.at_level(logging.INFO, logger="stepc"):
        step = run_twins(lambda: train(MODELS["llama"].build(), MODELS["llama"].loss_of), make, steps=STEPS,
                         replays=REPLAYS)
    lines = [record.getMessage() for record in caplog.records if "recording again" in record.getMessage()]
    assert len(lines) == 1 and re.search(r"recording again: new shape: .*input_ids.*3x10 -> 3x7", lines[0]), lines
    assert step.stats["plans"] == 2


@pytest.mark.parametrize("change", [
    lambda x: x.double().float(),  # nothing
    lambda x: x.t().contiguous().t(),  # strides
    lambda x: x[:5],  # shape
    lambda x: x.repeat(1, 2)[:, ::2],  # strides
    lambda x: x.clone().requires_grad_(),  # gradient asked for
    lambda x: x[:1].expand(8, 6),  # a stride of zero
], ids=["same", "strides", "shape", "step", "requires_grad", "expanded"])
def test_batches_that_differ(change):
    run_twins(build, lambda i: change(make_batch(i)) if i >= CHANGED else make_batch(i), steps=STEPS, replays=5,
              quiet=False)


def test_dtype_of_a_batch():
    def loss_of(model, x):
        return model(x.float()).square().mean()

    def make(i):
        return make_batch(i).to(torch.float32 if i < CHANGED else torch.float64)

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), make, steps=STEPS, replays=REPLAYS)


def test_batch_tensors_that_are_one():
    """Two arguments over one storage, written in place: not the program of two separate ones."""

    def loss_of(model, batch):
        x, y = batch
        x.mul_(0.5)
        return (model(x) - model(y)).square().mean() + model(y).abs().mean()

    def make(i):
        x = make_batch(i)
        return ([x, x if i >= CHANGED else x.clone()],)

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), make, steps=STEPS, replays=REPLAYS)


def test_structure_of_a_batch():
    def loss_of(model, batch):
        loss = model(batch["x"]).square().mean()
        return cross_entropy(model(batch["x"]), batch["y"]) + loss if batch.get("y") is not None else loss

    def make(i):
        batch = {"x": make_batch(i)}
        if i % 3 == 2:
            batch["y"] = torch.arange(8) % 4
        elif i % 3 == 1:
            batch["y"] = None
        return batch

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), make, steps=36, replays=15)


@pytest.mark.parametrize("values", [(0.5, 2.0), (1, 2), (True, False), ("mean", "sum"), (None, 3)], ids=str)
def test_arguments_that_are_no_tensors(values):
    def loss_of(model, batch):
        x, value = batch
        loss = model(x).square().sum() if value == "sum" else model(x).square().mean()
        return loss * (value if isinstance(value, (int, float)) else 1)

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), lambda i: ([make_batch(i), values[i // 8 % 2]],), steps=24,
              replays=10)


def test_argument_that_is_another_number_every_time():
    """A plan for each would be recorded for ever; whatever is done about it, it is not stale."""

    def loss_of(model, batch):
        x, weight = batch
        return model(x).square().mean() * weight

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), lambda i: ([make_batch(i), 1.0 / (1 + i)],), steps=16, replays=0)


NAMES = {"text": lambda i: f"{i}.png", "list": lambda i: [f"{i}.png", f"{i}.json"], "dict": lambda i: {"files": (f"{i}.png", i)}}


@pytest.mark.parametrize("python", ["auto", "pure"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_that_are_others_in_every_batch(names, python):
    """Those of the files that a batch is from: a plan for each would be recorded for ever. "pure" ends, with a line."""

    def loss_of(model, batch):
        return model(batch["x"]).square().mean()

    step = run_twins(lambda: train(nn.Linear(6, 4), loss_of), lambda i: {"x": make_batch(i), "names": names(i)}, steps=24,
                     replays=14, quiet=python == "auto", config=stepc.Config(mode="exact", python=python))
    assert step.stats["plans"] <= 3


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_that_a_model_gets_with_every_batch(names):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x, names):
            return self.layer(x)

    model = Named()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact", pace="off"))
    for i in range(24):
        model(make_batch(i), names(i)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert stepc.stats(model)["replays"] >= 14 and not stepc.stats(model)["warnings"]


def test_plans_are_kept_and_the_least_recently_used_goes():
    """Three shapes in turn. Two plans are too few for them, three are enough."""
    make = lambda i: make_batch(i)[: 4 + i % 3]
    step = run_twins(build, make, steps=30, replays=15, config=stepc.Config(mode="exact", max_plans=3))
    assert step.stats["plans"] == 3
    run_twins(build, make, steps=30, replays=0, config=stepc.Config(mode="exact", max_plans=2), quiet=False)


# ---- verification on every kind of schedule


@pytest.mark.parametrize("verify, replays", [("off", 10), ("first", 9), ("every:3", 6), ("always", 0)])
def test_verification_changes_nothing(verify, replays):
    """With dropout and BatchNorm a verification that is not undone would show in the generator and the buffers."""
    step = run_twins(build, make_batch, steps=13, replays=replays, config=stepc.Config(mode="exact", verify=verify))
    assert step.stats["eager_calls"] >= {"off": 0, "first": 1, "every:3": 3, "always": 9}[verify]
