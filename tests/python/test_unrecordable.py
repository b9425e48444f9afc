"""What no recording can hold: found, and named with the op and the line of the step that does it where the step runs
eagerly for it; what its own Python does runs beside every replay.

Every step here is equal to eager, whatever is replayed of it; where the design says how such a thing is found, there is
exactly one warning, in `step.stats` and in the log.
"""

import logging
import os
import random
import types

import numpy
import pytest
import torch
from torch import nn

import stepc
from harness import Training, decay, line_of, run_twins, source_of, train


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def make_batch(i):
    return torch.randn(8, 6, generator=source_of(i))


def run_warned(caplog, build, names, line=None, steps=14, make_batch=make_batch):
    """Runs the twins and expects one warning that holds all of `names` and the line."""
    with caplog.at_level(logging.WARNING, logger="stepc"):
        step = run_twins(build, make_batch, steps=steps, replays=0)
    warnings = step.stats["warnings"]
    assert len(warnings) == 1, warnings
    logged = [record for record in caplog.records if record.name == "stepc" and record.levelno == logging.WARNING]
    assert len(logged) == 1, [record.getMessage() for record in logged]
    for name in (*names, *([line] if line else [])):
        assert name in warnings[0], f"{name!r} is not in: {warnings[0]}"
    return step


# ---- shapes that depend on data


def select_by_mask(x):
    return x[x > 0]  # shape


def select_masked(x):
    return x.masked_select(x > 0)  # shape


def find_nonzero(x):
    return x.flatten()[(x > 0).flatten().nonzero().squeeze(-1)]  # shape


def find_unique(x):
    return x[x.detach().round().unique().abs().long() % 8]  # shape


@pytest.mark.parametrize("select, op", [(select_by_mask, "aten::"), (select_masked, "aten::masked_select"),
                                        (find_nonzero, "aten::nonzero")], ids=lambda value: getattr(value, "__name__", ""))
def test_shape_that_depends_on_data(select, op):
    """A size that was met before may have a plan; with any other the step runs as it is."""
    build = lambda: train(mlp(), lambda model, x: select(model(x)).square().sum())
    step = run_twins(build, make_batch, steps=40, replays=0)
    assert op in step.stats["traced"] and line_of(select, "shape") in step.stats["traced"], step.stats["traced"]


def test_count_of_values_that_differ():
    """As often as not it is the same, so that there are plans, and steps that leave them."""
    run_twins(lambda: train(mlp(), lambda model, x: find_unique(model(x)).square().sum()), make_batch, steps=40, replays=0)


# ---- numbers and arrays that leave for Python


def branch_on_float(model, x):
    loss = model(x).square().mean()
    scale = loss.item()  # here
    return loss * 2 if scale > 0.02 else loss


def test_branch_on_a_float_that_changes():
    """The number is read, and what it decides is seen by the calls that follow."""
    run_twins(lambda: train(mlp(), branch_on_float), make_batch, steps=40, replays=4, quiet=False)


def use_list(model, x):
    rows = x[:, 0].tolist()  # here
    return model(x)[[index for index, value in enumerate(rows) if value > 0]].square().sum()


def use_numpy(model, x):
    weight = float(numpy.abs(x.numpy()).max())  # here
    return model(x).square().mean() * weight


def use_numpy_of_hidden(model, x):
    hidden = model(x)
    weight = hidden.detach().numpy().std()  # here
    return hidden.square().mean() * float(weight)


def use_many(model, x):
    weight = float(numpy.abs(x.repeat(8, 1).numpy()).max())  # here
    return model(x).square().mean() * weight


@pytest.mark.parametrize("loss_of", [use_numpy, use_numpy_of_hidden])
def test_few_numbers_are_read_one_by_one(loss_of):
    step = run_twins(lambda: train(mlp(), loss_of), make_batch, steps=14, replays=6)
    assert "numpy" in step.stats["traced"]


def test_rows_chosen_by_a_list():
    """Another number of rows is another plan, for which there are too many here."""
    run_twins(lambda: train(mlp(), use_list), make_batch, steps=20, replays=0)


@pytest.mark.parametrize("loss_of, op", [(use_many, "numpy")], ids=lambda value: getattr(value, "__name__", ""))
def test_host_reads_that_recordings_do_not_hold(loss_of, op, caplog):
    run_warned(caplog, lambda: train(mlp(), loss_of), [op], line_of(loss_of, "here"))


# ---- randomness that is not PyTorch's


def draw_from_python(model, x):
    return model(x).square().mean() * random.random()


def flip_with_python(model, x):
    return model(x).square().mean() if random.random() < 0.5 else model(x).abs().mean()


def draw_from_numpy(model, x):
    return model(x + torch.from_numpy(numpy.random.randn(8, 6).astype("float32"))).square().mean()


def draw_one_from_numpy(model, x):
    return model(x).square().mean() * numpy.random.uniform(0.5, 1.0)


@pytest.mark.parametrize("loss_of", [draw_from_python, flip_with_python, draw_from_numpy, draw_one_from_numpy])
def test_randomness_of_python_and_numpy(loss_of):
    """Python draws at every step; what it drew goes into the replay."""
    step = run_twins(lambda: train(mlp(), loss_of), make_batch, steps=30, replays=6)
    assert "random" in step.stats["traced"]


# ---- Python state


def build_with_local_counter():
    count = 0

    def loss_of(model, x):
        nonlocal count
        count += 1
        return model(x).square().mean() / count

    return train(mlp(), loss_of)


def build_with_attribute_counter():
    class Counting(nn.Sequential):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x) * (1 + 0.1 * self.calls)

    return train(Counting(nn.Linear(6, 4)), lambda model, x: model(x).square().mean())


def build_with_object_counter():
    calls = types.SimpleNamespace(count=0)

    def loss_of(model, x):
        calls.count += 1
        return model(x).square().mean() * (0.5 if calls.count % 2 else 1.0)

    return train(mlp(), loss_of)


def build_with_global_counter():
    """In a module of its own, so that the twins do not count together."""
    module = {"count": 0}
    exec("def loss_of(model, x):\n"
         "    global count\n"
         "    count += 1\n"
         "    return model(x).square().mean() / count", module)
    return train(mlp(), module["loss_of"])


def build_with_self_counter():
    class Trainer:
        def __init__(self):
            self.model = mlp()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            self.steps = 0

        def step(self, x):
            self.steps += 1
            loss = self.model(x).square().mean() / self.steps
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    trainer = Trainer()
    return Training(trainer.step, [trainer.model], [trainer.optimizer], [decay(trainer.optimizer)])


@pytest.mark.parametrize("build, name", [(build_with_local_counter, "count"), (build_with_attribute_counter, "calls"),
                                         (build_with_object_counter, "count"), (build_with_global_counter, "count"),
                                         (build_with_self_counter, "steps")],
                         ids=lambda value: getattr(value, "__name__", value))
def test_counters_in_python(build, name):
    step = run_twins(build, make_batch, steps=20, replays=6)
    assert name in step.stats["traced"]


def test_values_appended_to_a_list():
    """The list grows in every step, so the step must really run in every call."""

    def build():
        model, history = mlp(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss.item())
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=history)

    run_twins(build, make_batch, steps=14, replays=6)


def test_tensor_made_from_a_counter():
    def build():
        count = 0

        def loss_of(model, x):
            nonlocal count
            count += 1
            weight = torch.tensor(1.0 / count)
            return model(x).square().mean() * weight

        return train(mlp(), loss_of)

    run_twins(build, make_batch, steps=14, replays=6)


def test_constant_tensors_are_replayed():
    """`torch.tensor` of a number that never changes is an ordinary constant: no reason to run eagerly."""
    run_twins(lambda: train(mlp(), lambda model, x: model(x).square().mean() * torch.tensor([0.5, 1.0]).sum()), make_batch)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_setting_changed_between_steps(as_tensor):
    """A Python number that the step reads is changed by the loop after the plan was made: never a stale plan."""

    def build():
        settings = {"weight": 1.0}

        def loss_of(model, x):
            weight = torch.tensor(settings["weight"]) if as_tensor else settings["weight"]
            return model(x).square().mean() * weight

        training = train(mlp(), loss_of)
        training.watch = settings
        return training

    def change(i, training):
        training.watch["weight"] = 1.0 if i < 8 else 0.25

    run_twins(build, make_batch, steps=16, replays=4, before=change, quiet=False)


def test_setting_of_a_module_changed_between_steps():
    """The probability of a dropout is such a number too."""

    def change(i, training):
        training.modules[0][1].p = 0.1 if i < 8 else 0.6

    run_twins(lambda: train(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 4)),
                            lambda model, x: model(x).square().mean()),
              make_batch, steps=16, replays=4, before=change, quiet=False)


# ---- what cannot be watched is read again at every step


@pytest.mark.parametrize("read", [lambda: float(os.environ["STEP_WEIGHT"]),
                                  lambda: 1 + int.from_bytes(os.urandom(2), "big") / 65536], ids=["environment", "entropy"])
def test_what_comes_from_outside(read, monkeypatch):
    monkeypatch.setenv("STEP_WEIGHT", "1.0")
    model, met = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train_step(x):
        met.append(read())
        loss = model(x).square().mean() * met[-1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = stepc.accelerate(train_step, config=stepc.Config(mode="exact"))
    for i in range(16):
        if i == 10:
            monkeypatch.setenv("STEP_WEIGHT", "0.5")
        x = make_batch(i)
        loss = step(x)
        assert torch.equal(loss, model(x).square().mean().detach() * met[-1]), i
    assert len(met) == 16 and step.stats["replays"] >= 4 and not step.stats["warnings"], step.stats


# ---- tensors that only garbage keeps


def test_reference_cycle_made_in_the_step():
    """The hook's closure holds its own tensor, and PyTorch's graph holds the hook: eager leaks it in every step, and so
    does a replay."""

    def loss_of(model, x):
        hidden = model[0](x)
        hidden.register_hook(lambda gradient: gradient + hidden.detach() * 1e-3)
        return model[2](hidden.tanh()).square().mean()

    run_twins(lambda: train(mlp(), loss_of), make_batch, steps=14, replays=5, quiet=False)
