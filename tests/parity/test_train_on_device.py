"""`stepc train --device`: on the emulated device, and on CUDA where there is one. The same run as on the CPU, step by step."""

import json
import os
import pathlib
import re
import shutil

import pytest
import torch
from tiny_run import write_tiny_model

EXACT = ["--train.mode=exact", "--train.steps=12", "--output.save_every=6", "--train.seed=3"]


@pytest.fixture(params=["emulated"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return request.param


@pytest.fixture
def run(stepc, device, build_dir):
    """The command, with what knows the device."""
    added = {} if device == "cuda" else {"LD_PRELOAD": str(next(build_dir.glob("tests/libemulated_device.so")))}

    def start(*arguments, succeeds=True):
        ran = stepc(*arguments, env=os.environ | added)
        assert (ran.returncode == 0) == succeeds, ran.stdout + ran.stderr
        return ran

    return start


def make_small(stepc):
    """The emulated device interprets a Graph's kernels, element by element."""
    write_tiny_model(stepc.path / "model", stepc.path / "model", hidden=32, inner=64, layers=2)


def losses(stepc, out):
    rows = [json.loads(line) for line in (stepc.path / out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_run_on_a_device_is_eagers(stepc, run, device, mode):
    if mode == "fast":
        make_small(stepc)
    assert stepc("train", "run.toml", *EXACT, "--output.dir=cpu").returncode == 0
    run("train", "run.toml", "--device", device, *EXACT, "--train.mode=eager", "--output.dir=eager")
    said = run("train", "run.toml", "--device", device, *EXACT, f"--train.mode={mode}", "--output.dir=there").stdout
    if mode == "exact":
        assert losses(stepc, "there") == losses(stepc, "eager")
    else:
        assert int(re.search(r"a graph of (\d+) nodes", said).group(1)) > 0, said
        assert losses(stepc, "there") == pytest.approx(losses(stepc, "eager"), rel=1e-4)
    assert losses(stepc, "there") == pytest.approx(losses(stepc, "cpu"), rel=1e-4)
    assert int(re.search(r"(\d+) replayed, ", said).group(1)) >= 3, said
    assert int(re.search(r"graphs +(\d+) launched a step", said).group(1)) >= 2, said


def test_a_profile_has_the_devices_times(stepc, run, device):
    said = run("train", "run.toml", "--device", device, *EXACT, "--profile", "trace.json").stdout
    assert re.search(rf"step \(exact mode on {device}:0\) .*\ntimes are the device's, each instruction launched by itself; "
                     r"the host made its calls in", said), said
    assert re.search(r"step time +(predicted .*; )?measured [\d.]+ [mu]?s on the device, the mean of \d+ replays; ", said), said
    tracks = {event["args"]["name"] for event in json.loads((stepc.path / "trace.json").read_text())["traceEvents"]
              if event["name"] == "thread_name"}
    assert {"measured on the device", "the host's calls"} <= tracks


def test_a_run_is_resumed_there_and_elsewhere(stepc, run, device):
    whole = [*EXACT, "--device", device, "--lora.rank=2", "--lora.dropout=0.1", "--optim.schedule=constant"]
    run("train", "run.toml", *whole, "--output.dir=whole")
    run("train", "run.toml", *whole, "--output.dir=parts", "--train.steps=6")
    run("train", "run.toml", *whole, "--output.dir=parts", "--resume")
    assert losses(stepc, "parts") == pytest.approx(losses(stepc, "whole"), rel=0 if device == "emulated" else 1e-3)
    lora = [one for one in whole if one not in ("--device", device)]
    assert stepc("train", "run.toml", *lora, "--output.dir=parts",
                 "--train.steps=14", "--resume").returncode == 0


def test_micro_batches_and_buckets(stepc, run, device):
    options = [*EXACT, "--train.micro_batches=2", "--model.compute=bfloat16"]
    assert stepc("train", "run.toml", *options, "--output.dir=cpu").returncode == 0
    run("train", "run.toml", "--device", device, *options, "--output.dir=there")
    assert losses(stepc, "there") == pytest.approx(losses(stepc, "cpu"), rel=1e-2)


def test_a_model_is_evaluated_and_speaks_there(stepc, run, device):
    here = stepc("eval", "run.toml", "--model", "model")
    there = run("eval", "run.toml", "--model", "model", f"--train.device={device}").stdout
    number = re.compile(r"held-out loss ([\d.]+)")
    assert float(number.search(there).group(1)) == pytest.approx(float(number.search(here.stdout).group(1)), abs=1e-3)
    words = ["generate", "model", "--prompt", "light and", "--tokens", "8", "--seed", "5"]
    assert run(*words, "--device", device).stdout == stepc(*words).stdout


def test_a_device_that_is_not_there(stepc):
    for name, said in [("gpu", 'is no device; give "cpu", "cuda" or "cuda:1"'), ("meta", "is no device"),
                       ("xpu", "this PyTorch is built without it")]:
        ran = stepc("train", "run.toml", "--device", name)
        assert ran.returncode != 0 and f'train.device = "{name}"' in ran.stderr and said in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1 and not (stepc.path / "out").exists()
    ran = stepc("generate", "model", "--prompt", "x", "--device", "nowhere")
    assert ran.returncode != 0 and '--device = "nowhere" is no device' in ran.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without CUDA")
def test_cuda_where_there_is_none(stepc):
    ran = stepc("train", "run.toml", "--device", "cuda")
    assert ran.returncode != 0 and len(ran.stderr.strip().splitlines()) == 1
    assert re.search('train.device = "cuda": .* choose "cpu"', ran.stderr)


def test_an_index_that_is_not_there(stepc, run, device):
    said = run("train", "run.toml", "--device", f"{device}:7", succeeds=False).stderr
    assert re.search(rf'train.device = "{device}:7": there (is|are) \d+ of them', said)


RANKS = ["--ranks=2", "--train.steps=3", "--data.seq_len=16", "--data.eval_windows=2", "--output.sample_tokens=2", "--optim.schedule=constant", "--train.seed=3", "--train.device_kernels=true"]
SHARED = {
    "zero 3": ["--parallel.dp_shard=2", "--parallel.zero=3"],
    "micro-batches": ["--parallel.dp_shard=2", "--parallel.zero=1", "--train.micro_batches=2"],
    "cp": ["--parallel.cp=2", "--parallel.context=ring"],
    "stages": ["--parallel.pp=2", "--train.micro_batches=2", "--parallel.order=zb-h1"],
}


@pytest.fixture
def run_ranks(stepc, run, device, monkeypatch):
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("[SKIP] there are no two CUDA devices")
    make_small(stepc)
    monkeypatch.setenv("EMULATED_DEVICES", "2")
    return run


@pytest.mark.parametrize("how", SHARED.values(), ids=SHARED)
def test_ranks_with_a_device_each_train_as_ranks_on_cpus(stepc, run_ranks, device, how):
    """Evaluate and sample, and go on from their checkpoint there and on CPUs."""
    ranks = [*RANKS, *how]
    here = stepc("train", "run.toml", *ranks, "--output.dir=cpu")
    assert here.returncode == 0, here.stderr
    there = [*ranks, "--device", device, "--output.dir=there"]
    said = run_ranks("train", "run.toml", *there, "--train.steps=2").stdout
    assert f"on {device}:0: model and optimizer" in said and "compared with the plain graph" in said, said
    shutil.copytree(stepc.path / "there", stepc.path / "elsewhere")
    run_ranks("train", "run.toml", *there, "--train.verify=off", "--resume")
    assert stepc("train", "run.toml", *ranks, "--output.dir=elsewhere", "--resume").returncode == 0
    for out in ("there", "elsewhere"):
        assert len(losses(stepc, out)) == 3 and losses(stepc, out) == pytest.approx(losses(stepc, "cpu"), rel=1e-4)


def test_ranks_that_cannot_have_a_device_each_are_told_in_one_line(stepc, run, device, monkeypatch):
    monkeypatch.setenv("EMULATED_DEVICES", "1")
    kernels = "--train.device_kernels=true"
    numbered = f'train.device = "{device}:0": 2 ranks of this machine each have the device of their number: leave the number out'
    said = run("train", "run.toml", "--ranks=2", kernels, "--device", f"{device}:0", succeeds=False).stderr
    assert numbered in said, said
    if device == "cuda" and torch.cuda.device_count() > 1:
        return
    said = run("train", "run.toml", "--ranks=2", kernels, "--parallel.dp_shard=2", "--device", device, succeeds=False).stderr
    assert f'train.device = "{device}:1": there is 1 of them here, {device}:0' in said, said


@pytest.mark.parametrize("asked, words", [(["--parallel.strategy=auto"], 'parallel.strategy = "auto"'),
                                          (["--parallel.dp_shard=2", "--memory.budget=auto"], 'the memory budget "auto"')])
def test_what_is_weighed_on_ranks_is_by_the_rates_of_a_known_card(stepc, run_ranks, device, asked, words, monkeypatch):
    searched = ["train", "run.toml", *RANKS, *asked, "--device", device]
    if device == "emulated":
        said = run_ranks(*searched, succeeds=False).stderr
        assert f'train.device = "emulated": {words} weighs by rates, and those of emulated:0 are not known, those of a100' in said, said
        monkeypatch.setenv("EMULATED_CARD", "90 85520809984 85520809984 NVIDIA H100 80GB HBM3")
    said = run_ranks(*searched).stdout
    assert "from data sheets and published rates of the card" in said and len(losses(stepc, "out")) == 3, said


CARDS = {
    "too old": ("70 16000000000 16000000000 Tesla V100-SXM2-16GB", "(sm_70) is too old: PyTorch has kernels for sm_75 and newer; choose \"cpu\""),
    "too small": ("90 20000 80000000000 NVIDIA H100 80GB HBM3", "on emulated:0 (NVIDIA H100 80GB HBM3), of whose 74.5 GiB there are 19.5 KiB free"),
}


@pytest.mark.parametrize("card, words", CARDS.values(), ids=CARDS.keys())
def test_a_card_that_a_run_cannot_use_is_one_line(stepc, build_dir, card, words):
    """Before anything runs."""
    added = {"LD_PRELOAD": str(next(build_dir.glob("tests/libemulated_device.so"))), "EMULATED_CARD": card}
    ran = stepc("train", "run.toml", "--device", "emulated", env=os.environ | added)
    assert ran.returncode != 0 and words in ran.stderr and len(ran.stderr.strip().splitlines()) == 1, ran.stderr


def test_cards_that_are_a_default_have_a_line_in_the_docs():
    """Where `stepc train` has run, and what with."""
    root = pathlib.Path(__file__).resolve().parents[2]
    cards = re.search(r"kProvenCards = \{(.*)\};", (root / "src/train/machine/device.h").read_text())[1]
    ran = (root / "docs/gpu.md").read_text().split("What has run on a GPU:")[1].split("\n\n")[1].splitlines()
    heads = [one.strip() for one in ran[0].split("|")]
    for card in re.findall(r'"(.*?)"', cards):
        column = next(at for at, head in enumerate(heads) if head.startswith(card))
        assert any("`stepc train --device cuda`" in line.split("|")[column] for line in ran[2:])
