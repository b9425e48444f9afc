"""torch.optim's optimizers in every form and under changing schedules, 20 steps, bit-equal: parameters, state, counters.

A form that an optimizer does not have is skipped by asking the optimizer itself.
"""

import io
import logging

import pytest
import torch
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim.lr_scheduler import (CosineAnnealingWarmRestarts, CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR,
                                      ReduceLROnPlateau, SequentialLR)

from harness import Training, run_twins, source_of

pytestmark = pytest.mark.usefixtures("short_collections")

STEPS = 20
REPLAYS = 10  # of 20: RAdam's default form changes its structure once, and is recorded again

OPTIMIZERS = {
    "sgd": (SGD, dict(lr=0.1)),
    "sgd_momentum": (SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    "sgd_nesterov": (SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
    "adam": (Adam, dict(lr=1e-2, weight_decay=0.1)),
    "adam_amsgrad": (Adam, dict(lr=1e-2, amsgrad=True)),
    "adamw": (AdamW, dict(lr=1e-2)),
    "adamw_maximize": (AdamW, dict(lr=1e-2, amsgrad=True, maximize=True)),
    "nadam": (NAdam, dict(lr=1e-2, decoupled_weight_decay=True, weight_decay=0.01)),
    "radam": (RAdam, dict(lr=1e-2, weight_decay=0.01)),
    "rmsprop": (RMSprop, dict(lr=1e-2, momentum=0.9, centered=True)),
    "rmsprop_plain": (RMSprop, dict(lr=1e-2)),
    "adagrad": (Adagrad, dict(lr=0.1, lr_decay=0.1)),
}
FORMS = {
    "default": lambda options: options,
    "foreach": lambda options: {**options, "foreach": True},
    "fused": lambda options: {**options, "fused": True},
    "tensor_lr": lambda options: {**options, "lr": torch.tensor(options["lr"])},
    "fused_tensor_lr": lambda options: {**options, "lr": torch.tensor(options["lr"]), "fused": True},
    "foreach_tensor_lr": lambda options: {**options, "lr": torch.tensor(options["lr"]), "foreach": True},
}


def one_cycle(optimizer):
    cycles_momentum = "betas" in optimizer.defaults or optimizer.defaults.get("momentum", 0) > 0
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 5, cycle_momentum=cycles_momentum)


SCHEDULES = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5) * 0.97**step),
    "one_cycle": one_cycle,
    "cosine_restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.05),
    # Flat as long as anything may be recorded or verified: a learning rate written into the plan would show later.
    "flat_then_falling": lambda optimizer: LambdaLR(optimizer, lambda step: 1.0 if step < 10 else 0.8 ** (step - 9)),
}


def takes(optimizer_type, options):
    """Whether the optimizer has this form: by making one and taking a step with it."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    try:
        optimizer_type([parameter], **options).step()
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def forms(schedules=SCHEDULES):
    for name, (optimizer_type, options) in OPTIMIZERS.items():
        for form, apply in FORMS.items():
            if not takes(optimizer_type, apply(options)):
                continue
            for schedule in schedules:
                yield pytest.param(optimizer_type, lambda options=options, apply=apply: apply(options),
                                   SCHEDULES[schedule], id=f"{name}-{form}-{schedule}")


def build_training(optimizer_type, options, schedule, groups=False):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    parameters = list(model.parameters())
    if groups:
        matrices = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() == 1]
        parameters = [dict(params=matrices), dict(params=others, weight_decay=0.0, lr=options["lr"] / 2)]
    optimizer = optimizer_type(parameters, **options)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Training(step, [model], [optimizer], [schedule(optimizer)])


def make_batch(i):
    return torch.randn(5, 6, generator=source_of(i))


@pytest.mark.parametrize("optimizer_type, options, schedule", list(forms()))
def test_update_is_bit_equal(optimizer_type, options, schedule):
    run_twins(lambda: build_training(optimizer_type, options(), schedule), make_batch, steps=STEPS, replays=REPLAYS)


@pytest.mark.parametrize("optimizer_type, options, schedule", list(forms(["lambda"])))
def test_state_saved_and_loaded_between_steps(optimizer_type, options, schedule):
    def save_and_load(i, training):
        if i == 10:
            file = io.BytesIO()
            torch.save(training.optimizers[0].state_dict(), file)
            file.seek(0)
            training.optimizers[0].load_state_dict(torch.load(file))

    run_twins(lambda: build_training(optimizer_type, options(), schedule), make_batch, steps=STEPS, replays=8,
              before=save_and_load)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer_type, options", [(AdamW, dict(lr=1e-2, weight_decay=0.1)),
                                                     (SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1))])
def test_groups_with_options_of_their_own(optimizer_type, options, foreach):
    build = lambda: build_training(optimizer_type, {**options, "foreach": foreach}, SCHEDULES["lambda"], groups=True)
    run_twins(build, make_batch, steps=STEPS, replays=REPLAYS)


def in_sequence(optimizer):
    parts = [LinearLR(optimizer, start_factor=0.1, total_iters=7), CosineAnnealingLR(optimizer, T_max=10)]
    return SequentialLR(optimizer, parts, milestones=[7])


def test_schedules_in_sequence():
    def build():
        return build_training(SGD, dict(lr=0.1, momentum=0.9), in_sequence)

    run_twins(build, make_batch, steps=STEPS, replays=REPLAYS)


def test_schedule_stepped_inside_the_step():
    """The schedule counts in Python, so it may well run eagerly; it must never be left behind."""

    def build():
        training = build_training(SGD, dict(lr=0.1, momentum=0.9), in_sequence)
        step, scheduler = training.step, training.schedulers[0]
        training.schedulers = []  # the learning rate is compared in the parameter group

        def step_and_schedule(x):
            loss = step(x)
            scheduler.step()
            return loss

        training.step = step_and_schedule
        return training

    run_twins(build, make_batch, steps=STEPS, replays=0)


def test_options_changed_by_hand():
    """Every number of a parameter group may change between steps, not the learning rate alone."""

    def change(i, training):
        (group,) = training.optimizers[0].param_groups
        group["weight_decay"] = 0.01 * i
        group["eps"] = 1e-8 * (i + 1)
        group["betas"] = (0.9 - 0.01 * i, 0.99)

    run_twins(lambda: build_training(AdamW, dict(lr=1e-2), SCHEDULES["lambda"]), make_batch, steps=STEPS,
              replays=REPLAYS, before=change)


@pytest.mark.parametrize("foreach", [False, True])
def test_adafactor_updates_eagerly_with_one_note(foreach, caplog):
    """Its step size depends on the parameters' norms through host numbers; forward and backward are replayed."""
    with caplog.at_level(logging.INFO, logger="stepc"):
        run_twins(lambda: build_training(Adafactor, dict(lr=1e-2, foreach=foreach), SCHEDULES["lambda"]), make_batch,
                  steps=STEPS, replays=REPLAYS, quiet=False)
    notes = [record.getMessage() for record in caplog.records if "Adafactor" in record.getMessage()]
    assert len(notes) == 1, [record.getMessage() for record in caplog.records]
