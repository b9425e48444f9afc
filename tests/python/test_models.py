"""Unmodified models of transformers, timm and diffusers: five replayed steps of each are bit-equal to eager."""

import re

import pytest
import torch

from harness import run_twins, source_of, train
from models import GROUPED, MODELS, Model, cast, causal_batch, enable_checkpointing, mixtral

pytestmark = pytest.mark.usefixtures("short_collections")

PRECISIONS = ("float32", "bfloat16", "autocast")


def variants():
    for name, model in (MODELS | GROUPED).items():
        for precision in PRECISIONS:
            for checkpointed in (False, True) if model.checkpointing else (False,):
                for masked in (False, True) if model.masks else (False,):
                    words = [name, precision] + ["checkpointed"] * checkpointed + ["masked"] * masked
                    yield pytest.param(model, precision, checkpointed, masked, id="-".join(words))


def build_training(model, precision, checkpointed, reentrant=False):
    module = model.build().train()
    if checkpointed:
        enable_checkpointing(module, reentrant)
    if precision == "bfloat16":
        module.to(torch.bfloat16)

    def loss_of(module, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            return model.loss_of(module, batch)

    return train(module, loss_of)


def make_batches(model, precision, masked):
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return lambda i: cast(model.batch(source_of(i), masked), dtype)


@pytest.mark.parametrize("model, precision, checkpointed, masked", list(variants()))
def test_replay_is_bit_equal(model, precision, checkpointed, masked):
    run_twins(lambda: build_training(model, precision, checkpointed), make_batches(model, precision, masked))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_reentrant_checkpointing(name):
    model = MODELS[name]
    run_twins(lambda: build_training(model, "float32", True, reentrant=True), make_batches(model, "float32", True))


def test_lengths_that_decide_shapes():
    """SpeechT5's loss makes a tensor as long as every text: one plan for each length that comes, all of them replayed."""
    model = MODELS["speech_t5"]

    def make_batch(i):
        batch = model.batch(source_of(i), False)
        batch["attention_mask"][1, 7 + i % 2 :] = 0
        return batch

    step = run_twins(lambda: build_training(model, "float32", False), make_batch, steps=20, replays=8)
    assert step.stats["plans"] == 2


def test_routing_by_data_runs_eagerly_and_says_where():
    """In a loop Mixtral's experts get as many tokens as the router sends them: no recording holds that."""
    model = Model(mixtral, causal_batch)
    step = run_twins(lambda: build_training(model, "float32", False), make_batches(model, "float32", False), steps=9,
                     replays=0)
    (warning,) = step.stats["warnings"]
    assert re.search(r"modeling_mixtral\.py:\d+", warning), warning
    assert re.search(r"aten::\w+", warning), warning
