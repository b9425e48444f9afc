"""`stepc train --profile`: one step's instructions as a trace, and the run that goes on after it."""

import json

import pytest


@pytest.mark.parametrize("mode, step", [("exact", 7), ("fast", 4)])  # exact mode records first
def test_a_run_writes_a_trace_and_goes_on(stepc, mode, step):
    plain = stepc("train", "run.toml", f"--train.mode={mode}", "--train.steps=10", "--output.dir=plain")
    result = stepc("train", "run.toml", f"--train.mode={mode}", "--train.steps=10", "--profile", "trace.json")
    assert (plain.returncode, result.returncode) == (0, 0), result.stderr
    assert f"profile of step {step}: trace.json (open it at ui.perfetto.dev)" in result.stdout
    assert f"step ({mode} mode)" in result.stdout and "by kind" in result.stdout
    trace = json.loads((stepc.path / "trace.json").read_text())
    modules = {event["args"]["module"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert any(module.startswith("model.layers.0.mlp") for module in modules), modules
    assert (stepc.path / "out/model/model.safetensors").read_bytes() == \
        (stepc.path / "plain/model/model.safetensors").read_bytes()


def test_a_short_run_says_that_there_is_none(stepc):
    result = stepc("train", "run.toml", "--train.steps=2", "--profile", "trace.json")
    assert result.returncode == 0, result.stderr
    assert "profile: none, the run had too few replayed steps" in result.stdout
    assert not (stepc.path / "trace.json").exists()


def test_mistakes_are_answered_before_the_run(stepc):
    eager = stepc("train", "run.toml", "--train.mode=eager", "--profile", "trace.json")
    assert (eager.returncode, eager.stderr) == \
        (2, 'stepc: --profile trace.json: train.mode is "eager", which has no instructions; choose "exact" or "fast"\n')
    nowhere = stepc("train", "run.toml", "--profile", "no/trace.json")
    assert (nowhere.returncode, nowhere.stderr) == (2, "stepc: --profile no/trace.json: there is no directory no\n")
    assert not (stepc.path / "out").exists()
