"""Unmodified models on a mesh: captured without execution, spread over ranks, and run on virtual ones.

What irtool says of a step that stepc.plan() captured: which matmuls no axis splits, and how far any output is from one
device's.
"""

import re
import subprocess

import pytest
import torch
import transformers

import stepc
from harness import source_of
from models import MODELS, decoder
from test_models import build_training

pytestmark = pytest.mark.usefixtures("short_collections")

DECODERS = ["llama", "qwen3", "gpt2", "bloom", "glm", "olmo2"]
# Attention to the last six tokens, in one call; from transformers 5 on gemma2, which has that too, makes it of matmuls.
WINDOWED = decoder(transformers.MistralConfig, sliding_window=6)
# What the interpreter knows every op of.
OTHERS = ["qwen2", "olmo", "gemma2", "bert", "t5", "vit", "timm_swin"]


def written(plan, tmp_path):
    assert plan.obstacle == ""
    trace = tmp_path / "step.trace"
    trace.write_text(plan.graph_text())
    return trace


def captured(name, tmp_path):
    model = (MODELS | {"windowed": WINDOWED})[name]
    torch.manual_seed(0)
    training = build_training(model, "float32", False)
    return written(stepc.plan(training.step, model.batch(source_of(0), False)), tmp_path)


@pytest.fixture
def irtool(build_dir):
    def run(trace, mesh, *options):
        command = [build_dir / "tools/irtool", "--mesh", mesh, *options, trace]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def is_as_one_device(text):
    """In float64, but where a step reads the bits of numbers and so runs in its own dtypes."""
    error = float(re.search(r"the largest error of an output is (\S+)", text)[1])
    return error < (1e-10 if "in float64" in text else 1e-5)


def matmuls_left_whole(text):
    return [line for line in text.splitlines()[1:] if line.split()[0].startswith(("matmul", "attention"))]


def sent(text):
    """(collectives, MiB) of the table that --communication prints."""
    units = {"B": 2**-20, "KiB": 2**-10, "MiB": 1}
    rows = [line.split() for line in text.splitlines() if re.match("  [a-z]", line)]
    return sum(int(row[2]) for row in rows), sum(float(row[3]) * units[row[4]] for row in rows)


@pytest.mark.parametrize("name", DECODERS + ["gemma2", "bert", "t5", "vit", "whisper"])
def test_what_is_sent_and_what_stays_whole(name, irtool, tmp_path):
    """A row of the table (pytest -s), with the lines of what is not split and why."""
    trace = captured(name, tmp_path)
    text = irtool(trace, "dp_shard=2,tp=2", "--whole")
    whole = matmuls_left_whole(text)
    count, mebibytes = sent(irtool(trace, "dp_shard=2,tp=2", "--communication"))
    print(f"{name:<8} {count:>4} collectives {mebibytes:>6.3f} MiB, {len(whole)} matmuls and attentions whole")
    print(text)
    assert count > 0 and mebibytes > 0
    if name != "vit":  # whose patches' weight has its gradient from tokens that are whole along tp
        assert all("rotary_emb" in line for line in whole), whole  # an outer product of positions


@pytest.mark.parametrize("name", DECODERS + OTHERS)
@pytest.mark.parametrize("mesh", ["dp_shard=2,tp=2", "dp_replicate=2,cp=2"])
def test_ranks_do_what_one_device_does(name, mesh, irtool, tmp_path):
    text = irtool(captured(name, tmp_path), mesh, "--on-ranks")
    assert is_as_one_device(text), text


@pytest.mark.parametrize("name", ["llama", "windowed"])
def test_attention_by_heads_exchanges_and_gathers_nothing(name, irtool, tmp_path):
    trace = captured(name, tmp_path)
    text = irtool(trace, "dp_replicate=2,cp=2", "--zero", "0", "--context", "heads", "--on-ranks", "--communication")
    assert is_as_one_device(text), text
    rows = {(row[0], row[1]): int(row[2]) for row in map(str.split, text.splitlines()) if len(row) == 5}
    assert rows["all_to_all", "cp"] == 2 * 8  # of each layer: q, k, v, its result, and their gradients
    assert ("all_gather", "cp") not in rows


def step_with(optimizer_of, tmp_path):
    torch.manual_seed(0)
    model = MODELS["llama"]
    module = model.build().train()
    optimizer = optimizer_of(module.parameters())

    def step(batch):
        loss = module(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return written(stepc.plan(step, model.batch(source_of(0), True)), tmp_path)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_lies_as_its_parameters(name, irtool, tmp_path):
    trace = step_with(OPTIMIZERS[name], tmp_path)
    for mesh in ("dp_replicate=2,dp_shard=2", "dp_shard=2,tp=2"):
        assert is_as_one_device(irtool(trace, mesh, "--on-ranks"))
    text = irtool(trace, "dp_shard=2", "--zero", "1", "--shardings")
    states = [line for line in text.splitlines() if "optimizer_state" in line and "[]" not in line]
    assert states and all("dp_shard" in line for line in states if "32]" in line), states


def test_a_scaled_loss_is_checked_over_all_ranks(irtool, tmp_path):
    model = MODELS["llama"]
    torch.manual_seed(0)
    module = model.build().train()

    def step(batch):
        (module(**batch).loss * 1024).backward()
        gradients = [parameter.grad / 1024 for parameter in module.parameters()]
        finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients):
                parameter.sub_(torch.where(finite, 0.1 * gradient, 0.0))
        module.zero_grad()
        return finite

    for mesh in ("dp_replicate=2,dp_shard=2", "dp_shard=2,tp=2"):
        trace = written(stepc.plan(step, model.batch(source_of(0), False)), tmp_path)
        assert is_as_one_device(irtool(trace, mesh, "--on-ranks"))


def test_packed_documents(irtool, tmp_path):
    model = MODELS["llama"]
    torch.manual_seed(0)
    module = model.build().train()
    optimizer = torch.optim.AdamW(module.parameters())
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]])
    documents = (positions == 0).cumsum(1)
    seen = (documents[:, :, None] == documents[:, None, :]) & torch.ones(10, 10, dtype=torch.bool).tril()
    ids = torch.randint(3, 60, (2, 10))

    def step(ids, positions, seen):
        loss = module(input_ids=ids, labels=ids, position_ids=positions, attention_mask=seen[:, None]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    trace = written(stepc.plan(step, ids, positions, seen), tmp_path)
    for mesh in ("dp_shard=2", "dp_shard=2,tp=2", "cp=2"):
        assert is_as_one_device(irtool(trace, mesh, "--on-ranks"))
