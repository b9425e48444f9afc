"""`stepc memory`: what a run's memory will be, before it runs, and what it then is."""

import re

import pytest


def arena_in(text):
    return re.search(r"arena +([\d.]+ \w+)", text).group(1)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_run_takes_what_was_planned(stepc, compute):
    options = ("run.toml", f"--model.compute={compute}", "--train.mode=fast", "--train.steps=6")
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
