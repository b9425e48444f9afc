"""plan(): what is captured without running is what is captured by running; and models without memory."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path
import time

import numpy
import pytest
import torch
import transformers as hf

import stepc
from harness import assert_same, line_of, source_of, state_leaves, train
from models import DECODER, MODELS, tokens
from on_ranks import PACKAGE
from test_models import build_training, make_batches

OPTIMIZERS = {
    "default": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}


def seed():
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def build(model, optimizer=None):
    seed()
    module = model.build().train()
    training = train(module, model.loss_of, optimizer and optimizer(list(module.parameters())))
    seed()
    return training


def without_memory(text):
    return [line for line in text.splitlines() if not line.lstrip().startswith(("alloc ", "scratch ", "ticks "))]


def snapshot(training):
    return [(path, leaf.clone() if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in state_leaves(training)]


def plan_unnoticed(training, batch):
    """Plans, and checks that the program is as it was, bit by bit."""
    before = snapshot(training)
    given = {name: value.clone() for name, value in batch.items()}
    plan = stepc.plan(training.step, batch)
    assert_same(before, snapshot(training), "after plan()")
    assert all(torch.equal(given[name], batch[name]) for name in batch)
    return plan


def assert_recorded_equally(build_training, batch, steps_before=0):
    planned, recorded = build_training(), build_training()
    seed()
    for _ in range(steps_before):
        planned.step(batch)
    plan = plan_unnoticed(planned, batch)
    assert plan.obstacle == ""
    seed()
    for _ in range(steps_before):
        recorded.step(batch)
    step = stepc.accelerate(recorded.step, config=stepc.Config(mode="exact"))
    for _ in range(6):
        if step.stats["plans"]:
            break
        step(batch)
    assert step.stats["plans"] == 1, step.stats["warnings"]
    a, b = without_memory(plan.graph_text()), without_memory(step.graph_text())
    different = [f"{x}\n   recorded: {y}" for x, y in zip(a, b) if x != y]
    assert not different, f"{len(different)} lines differ, first planned: {different[0]}"
    assert len(a) == len(b)
    assert plan.stats["calls"] == step.stats["nodes"]
    assert plan.stats["state_bytes"] == step.stats["state_bytes"]
    assert 0 < plan.stats["step_bytes_lower_bound"] <= step.stats["planned_peak_bytes"]


@pytest.mark.parametrize("name", MODELS)
def test_the_trace_is_the_recorded_one(name):
    model = MODELS[name]
    assert_recorded_equally(lambda: build(model), model.batch(source_of(0), model.masks))


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "timm_swin", "unet"])
def test_other_precisions_checkpointed(name, precision):
    """With what checkpointing does to generators; dropout draws in all but the first."""

    def built():
        seed()
        training = build_training(MODELS[name], precision, True)
        seed()
        return training

    assert_recorded_equally(built, make_batches(MODELS[name], precision, MODELS[name].masks)(0))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_every_optimizer_form(optimizer, steps_before):
    model = MODELS["llama"]
    batch = model.batch(source_of(0), False)
    assert_recorded_equally(lambda: build(model, OPTIMIZERS[optimizer]), batch, steps_before)


def test_what_the_step_does_to_python_is_undone():
    module = torch.nn.Linear(8, 8)
    seen, count = [], {"steps": 0}

    def step(x):
        loss = module(x).sum()
        loss.backward()
        seen.append(loss)
        count["steps"] += 1
        module.last = loss
        random.random()
        return loss

    before = random.getstate()
    plan = stepc.plan(step, torch.randn(4, 8))
    assert plan.obstacle
    assert seen == [] and count == {"steps": 0} and not hasattr(module, "last")
    assert module.weight.grad is None and random.getstate() == before


def test_reading_what_was_never_computed_names_operator_and_line():
    module = torch.nn.Linear(8, 8)

    def step(x):
        loss = module(x).sum()
        if loss.item() > 0:  # reads
            loss.backward()
        return loss

    with pytest.raises(stepc.UserError, match=r"aten::_local_scalar_dense reads a value") as error:
        stepc.plan(step, torch.randn(4, 8))
    assert line_of(step, "reads") in str(error.value)
    assert module(torch.randn(4, 8)).sum().item()  # nothing is left switched on

    def listing(x):
        return module(x).tolist()  # lists

    with pytest.raises(stepc.UserError, match="a value that was never computed") as error:
        stepc.plan(listing, torch.randn(4, 8))
    assert line_of(listing, "lists") in str(error.value)


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER | {"hidden_size": 256, "intermediate_size": 512}))


def test_a_virtual_model_is_planned_and_materialised_from_weights(tmp_path):
    import safetensors.torch

    torch.manual_seed(1)
    eager = llama()
    with stepc.virtual():
        model = llama()
    assert any(stepc._C.is_virtual(parameter) for parameter in model.parameters())
    ids = tokens(source_of(0))
    batch = {"input_ids": ids, "labels": ids.clone()}
    traces = []
    for one in (eager, model):
        step = train(one, lambda module, batch: module(**batch).loss).step
        traces.append(without_memory(stepc.plan(step, batch).graph_text()))
    assert traces[0] == traces[1]
    with pytest.raises(stepc.UserError, match="no values|never computed"):
        with stepc.virtual():
            model.lm_head.weight.sum().item()

    weights = {name: tensor.clone() for name, tensor in eager.state_dict().items()}
    assert stepc.materialise(model, weights=weights) is model
    assert_same(eager.state_dict().items(), model.state_dict().items(), "materialised")
    assert torch.equal(eager(**batch).loss, model(**batch).loss)

    with stepc.virtual():
        again = llama()
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(weights, path)
    stepc.materialise(again, weights=path)
    assert torch.equal(eager(**batch).loss, again(**batch).loss)

    with stepc.virtual():
        lacking = llama()
    with pytest.raises(stepc.UserError, match="no tensor 'nothing'"):
        stepc.materialise(lacking, weights={**weights, "nothing": torch.zeros(1)})
    del weights["lm_head.weight"]
    with pytest.raises(stepc.UserError, match="'lm_head.weight'"):
        stepc.materialise(lacking, weights=weights)


def test_own_initialisers():
    with stepc.virtual():
        model = llama()
        plain = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(4096))
    stepc.materialise(plain)
    assert torch.equal(plain[1].weight, torch.ones(4096)) and torch.equal(plain[1].running_var, torch.ones(4096))
    assert 0 < plain[0].weight.abs().max() <= 1 / 16
    stepc.materialise(model)
    reference = llama()
    for (name, a), (_, b) in zip(model.named_parameters(), reference.named_parameters()):
        assert torch.isfinite(a).all(), name
        assert abs(a.std() - b.std()) < 0.1 * b.std() + 1e-8, name

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.rand(1024, 1024))

    with stepc.virtual():
        own = Own()
    with pytest.raises(stepc.UserError, match="'scale' of Own has no initialiser"):
        stepc.materialise(own)


SIZES = {
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
    "405B": dict(hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128),
}
PLAN = """
import sys, time, torch, transformers as hf, stepc
hf.LlamaForCausalLM, stepc._C
begin, cpu = time.time(), time.process_time()
torch.set_default_dtype(torch.bfloat16)
with stepc.virtual():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=128256, num_key_value_heads=8, use_cache=False, **{sizes}))
if {checkpointed}:
    model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
built = time.time() - begin
def step(ids):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss
plan = stepc.plan(step, torch.zeros(4, 8192, dtype=torch.long))
print(f"{name}: built in {{built:.2f}} s, all in {{time.time() - begin:.2f}} s, processor {{time.process_time() - cpu:.2f}} s")
print(plan.report())
plan.save_graph("{trace}")
print("OBSTACLE", plan.obstacle)
print("PARAMETERS", plan.stats["parameters"])
"""


@pytest.mark.parametrize("name, checkpointed, parameters", [("8B", False, 8.03e9), ("405B", True, 405.8e9)])
def test_large_models(name, checkpointed, parameters, build_dir, tmp_path):
    """The step's capture, then its Schedule, each in a process of its own, for its memory; the times are printed
    (pytest -s), for they are the machine's."""
    trace = tmp_path / "step.trace"
    script = PLAN.format(sizes=SIZES[name], checkpointed=checkpointed, name=name, trace=trace)
    paths = [str(PACKAGE), str(Path(__file__).resolve().parent)]
    said, _, _, resident = measured(sys.executable, "-c", f"import sys; sys.path[:0] = {paths}\n{script}")
    print(said)
    found = dict(re.findall(r"^([A-Z]+) (.*)$", said, re.MULTILINE))
    assert found["OBSTACLE"] == ""
    assert abs(float(found["PARAMETERS"]) - parameters) < 0.01 * parameters
    assert resident < 2e9

    text, _, seconds, resident = measured(build_dir / "tools/irtool", "--schedule", "--verify", "--hash", trace)
    print(f"{name}: Schedule {text.strip()} in {seconds:.2f} s, {resident / 1e6:.0f} MB")
    assert re.fullmatch(r"[0-9a-f]{16}\n", text)
    assert resident < 2e9
    if name == "405B":
        few, many = (partitioned(trace, mesh, build_dir) for mesh in ("dp_shard=2,tp=2", "dp_shard=128,tp=8"))
        assert abs(many - few) < 0.2 * few


def measured(*command):
    """What the command says on both streams, its processor seconds and the most bytes that it had resident."""
    # By a small process: one that is started takes over the peak of what starts it, here of all tests before.
    starter = ("import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]);"
               "usage = resource.getrusage(resource.RUSAGE_CHILDREN);"
               "print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr);"
               "sys.exit(status)")
    process = subprocess.run([sys.executable, "-c", starter, *command], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    *lines, usage = process.stderr.splitlines()
    seconds, kib = usage.split()
    return process.stdout, lines, float(seconds), int(kib) * 1024


def partitioned(trace, mesh, build_dir):
    """How many nodes a rank's step has; prints the seconds that its partition took."""
    said, lines, seconds, resident = measured(build_dir / "tools/irtool", "--all", "--without", "recompute,fuse,order",
                                              "--times", "--mesh", mesh, trace)
    nodes = sum(line.startswith("%") for line in said.splitlines())
    times = {line.split()[0]: float(line.split()[1]) for line in lines}
    # Of the processor's time these passes took their share.
    seconds *= sum(times[name] for name in ("propagate_shardings", "partition")) / sum(times.values())
    print(f"405B on {mesh}: {nodes} nodes, partitioned in {seconds:.2f} s, {resident / 1e6:.0f} MB")
    assert resident < 1e9
    return nodes

# ---- Config(capture="virtual"): the first call runs the plan


def accelerated(training, **config):
    return stepc.accelerate(training.step, config=stepc.Config(capture="virtual", **config))


def losses_of(step, batches):
    return [float(step(batch).detach()) for batch in batches]


@pytest.mark.parametrize("model", ["llama"])  # others draw, and a replay draws other numbers
def test_no_step_is_run_eagerly(model):
    batches = [make_batches(MODELS[model], "float32", False)(i) for i in range(5)]
    expected = losses_of(build(MODELS[model]).step, batches)
    step = accelerated(build(MODELS[model]))
    assert losses_of(step, batches) == pytest.approx(expected, rel=1e-3)
    assert step.stats["eager_calls"] == 0
    assert step.stats["plain_verifications"] == 1, step.stats
    assert "with the plain graph" in step.report()


def test_what_cannot_be_captured_so_is_recorded(caplog):
    caplog.set_level("INFO", logger="stepc")
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x):
        loss = net(x).square().mean()
        if bool(loss > 1e9):
            loss = loss * 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    fast = stepc.accelerate(step, config=stepc.Config(capture="virtual"))
    for _ in range(5):
        fast(torch.randn(4, 8))
    assert fast.stats["recordings"] > 0
    assert fast.stats["replays"] > 0
    assert "captured by running it: aten::_local_scalar_dense reads a value" in caplog.text
    assert all(torch.isfinite(leaf).all() for state in optimizer.state.values() for leaf in state.values())
