"""Planning without running: the plan's trace is the recorded one, and the program is afterwards as it was."""

import pytest
import torch

import stepc
from harness import Twin, accelerate_found, assert_same, source_of, state_leaves
from models import MODELS
from test_models import build_training

pytestmark = pytest.mark.usefixtures("short_collections")

VARIANTS = [(name, precision) for name in MODELS for precision in ("float32", "autocast")]


def without_allocations(text):
    """A trace's text but for when and where memory was asked for, which only a real run knows."""
    return [line for line in text.splitlines() if not line.startswith(("  alloc", "  scratch", "ticks"))]


def recorded_text(build, batch):
    twin = Twin(build, lambda training: accelerate_found(training, stepc.Config(mode="exact", verify="off")))
    with twin.turn():
        for _ in range(3):
            twin.call(batch)
    return twin.call.graph_text()


@pytest.mark.parametrize("name, precision", VARIANTS, ids=["-".join(variant) for variant in VARIANTS])
def test_plan_is_the_recorded_step(name, precision):
    model = MODELS[name]
    batch = model.batch(source_of(0), model.masks)
    build = lambda: build_training(model, precision, model.checkpointing)
    expected = without_allocations(recorded_text(build, batch))

    twin = Twin(build, lambda training: training.step)
    with twin.turn():
        before = [(path, leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
                  for path, leaf in state_leaves(twin.training)]
        plan = stepc.plan(twin.call, batch)
        assert plan.obstacle == ""
        assert_same(before, state_leaves(twin.training), "state after planning")
    seen = without_allocations(plan.graph_text())
    for number, (line, planned) in enumerate(zip(expected, seen)):
        assert planned == line, f"line {number}"
    assert len(seen) == len(expected) > 50


def test_a_planned_program_goes_on_training():
    model = MODELS["gpt2"]
    build = lambda: build_training(model, "float32", False)
    plain, planned = (Twin(build, lambda training: training.step) for _ in range(2))
    for i in range(3):
        batch = model.batch(source_of(i), False)
        with planned.turn():
            stepc.plan(planned.call, batch)
            planned.call(batch)
        with plain.turn():
            plain.call(batch)
    assert_same(state_leaves(plain.training), state_leaves(planned.training), "state after planning and training")


def test_a_value_that_was_never_computed_is_named_with_its_line():
    linear = torch.nn.Linear(4, 4)

    def train_step(x):
        loss = linear(x).square().mean()
        loss.backward()
        return loss * 2 if loss > 1 else loss

    with pytest.raises(stepc.UserError, match=r"test_plan\.py:\d+"):
        stepc.plan(train_step, torch.ones(2, 4))
