"""`stepc memory`: what a run's memory will be, before it runs, and what it then is."""

import json
import re

import pytest
import torch
import transformers


def arena_in(text):
    return re.search(r"arena +([\d.]+ \w+)", text).group(1)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_run_takes_what_was_planned(stepc, compute):
    options = ("run.toml", f"--model.compute={compute}", "--train.mode=fast", "--train.steps=6",
               "--train.batch_size=16")
    planned = stepc("memory", *options, "--picture", "memory.svg")
    assert planned.returncode == 0, planned.stderr
    for word in ("parameters", "optimizer state", "activations", "workspaces"):
        assert word in planned.stdout, planned.stdout
    assert (stepc.path / "memory.svg").read_text().startswith("<svg")
    run = stepc("train", *options)
    assert run.returncode == 0, run.stderr
    assert arena_in(run.stdout) == arena_in(planned.stdout)
    staging = re.search(r"staging for saves ([\d.]+ \w+)", planned.stdout).group(1)
    assert f"from a copy of the state: {staging}" in run.stdout


def test_a_budget_makes_it_smaller(stepc):
    def peak(*more):
        result = stepc("memory", "run.toml", "--train.batch_size=32", *more)
        assert result.returncode == 0, result.stderr
        number, unit = re.search(r"peak ([\d.]+) (\w+)", result.stdout).groups()
        return float(number) * {"KiB": 1, "MiB": 1024}[unit]

    whole = peak()
    assert peak(f"--memory.budget={int(whole * 0.9)}KiB") <= whole * 0.9
    wrong = stepc("memory", "run.toml", "--memory.budget=12")
    assert wrong.returncode == 2
    assert wrong.stderr == 'stepc: memory budget is "12"; it is "none", "auto" or a size such as "12GiB"\n'


UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def bytes_in(pattern, text):
    number, unit = re.search(pattern + r" *([\d.]+) (\w+)", text).groups()
    return float(number) * UNITS[unit]


@pytest.fixture
def words(stepc):
    words = "the cat sat on the mat and the dog ran over the hill to see it ".split()
    (stepc.path / "words.txt").write_text(" ".join(words[i * i % len(words)] for i in range(60_000)))


@pytest.fixture
def larger(stepc, words):
    """Runs whose steps are much larger than what a process takes by chance."""
    def options(preset, compute, batch_size):
        stepc("init", "larger", f"--preset={preset}")
        return ("run.toml", "--model.path=larger", f"--model.compute={compute}", '--data.train=["words.txt"]',
                "--data.seq_len=256", f"--train.batch_size={batch_size}", "--train.steps=3", "--output.save_every=0")
    return options


@pytest.mark.parametrize("preset, compute, batch_size, budget", [
    ("llama-2m", "float32", 40, "none"),
    ("llama-2m", "float32", 40, "300MiB"),
    ("qwen3-10m", "bfloat16", 8, "none"),
    ("qwen3-10m", "bfloat16", 8, "350MiB"),
])
def test_a_run_takes_its_plan_from_the_start(stepc, larger, preset, compute, batch_size, budget):
    run = stepc("train", *larger(preset, compute, batch_size), f"--memory.budget={budget}")
    assert run.returncode == 0, run.stderr
    assert_takes_its_plan(run)


def test_a_run_whose_parameters_outweigh_its_activations_takes_its_plan(stepc, larger):
    options = larger("bench-10m", "bfloat16", 1)
    config = json.loads((stepc.path / "larger/config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 16000,
               "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    (stepc.path / "larger/config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(stepc.path / "larger"))
    model.save_pretrained(stepc.path / "larger")
    run = stepc("train", *options)
    assert run.returncode == 0, run.stderr
    assert_takes_its_plan(run)


def assert_takes_its_plan(run):
    assert "a run takes" in run.stdout
    assert "compared before the first of them with the plain graph" in run.stdout, run.stdout
    assert "0 recorded, 0 eager" in run.stdout, run.stdout
    # Start, capture, verification and loading included; "at most" is the system's count for the process.
    resident = r"resident memory .* the plan's [\d.]+ \w+:"
    loaded_and_plan, peak = bytes_in(resident, run.stdout), bytes_in(resident + r" [\d.]+ \w+; at most", run.stdout)
    assert peak <= 1.05 * loaded_and_plan, run.stdout


def test_what_the_machine_does_not_have_is_refused_before_it_is_taken(stepc, larger):
    refused = stepc("train", *larger("llama-2m", "float32", 20000))
    assert refused.returncode == 2
    assert re.fullmatch(r"stepc: training larger needs at least [\d.]+ [GT]iB of memory, there is [\d.]+ [GT]iB\n",
                        refused.stderr), refused.stderr
