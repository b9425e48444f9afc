"""train.precision = "fp8" from the command line: on this CPU, on ranks, and priced for a GPU."""

import json
import re

import pytest

STEPS = 8
FP8 = "--train.precision=fp8"


def losses(stepc, out, *options):
    run = stepc("train", "run.toml", f"--train.steps={STEPS}", f"--output.dir={out}", "--data.eval_fraction=0", *options)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in (stepc.path / out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], run


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_run_in_float8_is_near_one_in_bfloat16(stepc, recipe):
    bf16, _ = losses(stepc, "bf16", "--model.compute=bfloat16")
    float8, run = losses(stepc, "fp8", "--model.compute=bfloat16", FP8, f"--train.fp8_recipe={recipe}")
    assert "float8 is emulated on a CPU: its numbers, at the cost of matmuls in float32\n" in run.stdout + run.stderr
    assert "runs eagerly" not in run.stdout + run.stderr and len(float8) == STEPS
    assert float8 != bf16 and float8 == pytest.approx(bf16, rel=0.02)


def test_ranks_scale_by_the_largest_of_all(stepc):
    one, _ = losses(stepc, "one", FP8)
    for axis in ("dp_shard", "tp"):
        two, _ = losses(stepc, axis, FP8, "--ranks=2", f"--parallel.{axis}=2", "--train.threads=1")
        assert two == pytest.approx(one, rel=2e-3)


def test_a_gpu_is_priced_in_float8(stepc):
    bf16, float8 = (stepc("memory", "run.toml", "--model.compute=bfloat16", "--target", "h100", *options) for options in ([], [FP8]))
    assert float8.returncode == 0, float8.stderr
    pattern = r"predicted time .*\na step takes [\d.]+ MiB; NVIDIA H100"
    assert re.search(pattern, bf16.stdout) and re.search(pattern, float8.stdout)
    assert bf16.stdout != float8.stdout


@pytest.mark.parametrize("options, said", [
    (["--train.mode=exact"], 'run.toml: train.precision = "fp8" is for train.mode = "fast", found "exact"'),
    (["--train.fp8_recipe=blockwise"], "must be one of tensorwise, rowwise"),
])
def test_mistakes_are_one_line(stepc, options, said):
    run = stepc("train", "run.toml", FP8, *options)
    assert run.returncode != 0 and said in run.stderr and run.stderr.count("\n") == 1, run.stderr
