"""benchmarks/bench.py: what becomes of a runner that is not there, or that trains something else."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench():
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks/bench.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module  # for its dataclass
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench"]


class FakeRunner:
    """Trains nothing; each step's loss is the next of `losses`."""

    def __init__(self, name, losses):
        self.name, self.losses, self.steps = name, losses, 0
        self.launched_at = self.imported_at = 0.0

    def ask(self, command):
        if command == "memory":
            return {"state_bytes": 1}
        count = int(command.split()[1])
        self.steps += count
        return {"seconds": [0.5] * count, "finished_at": 1.0, "loss": self.losses[min(self.steps, len(self.losses)) - 1]}

    def close(self):
        pass


def compare(bench, monkeypatch, jax):
    """One comparison of eager with `jax`, a list of losses or a reason why it is not there."""

    def start(name, model, precision, config):
        if name == "jax" and isinstance(jax, str):
            raise bench.Unavailable(jax)
        return FakeRunner(name, [4.0, 3.0, 2.0, 2.0, 1.0] if name == "eager" else jax)

    monkeypatch.setattr(bench, "Runner", start)
    monkeypatch.setattr(bench, "config_of", lambda model: "{}")
    results = bench.Results()
    intact = bench.Comparison(bench.MODELS[0], "f32", ["eager", "jax"], 1, 1, results).run()
    return intact, results


def test_a_runner_that_is_not_installed_is_a_row_with_its_reason(bench, monkeypatch, capsys):
    intact, results = compare(bench, monkeypatch, "JAX is not installed")
    bench.print_table(results)
    output = capsys.readouterr().out
    row = next(line.split() for line in output.splitlines() if line.split()[2:3] == ["JAX"])
    assert intact and row[3:] == ["n/a"]
    assert "JAX: n/a: JAX is not installed" in output


def test_the_same_losses_are_a_row_of_numbers(bench, monkeypatch, capsys):
    intact, results = compare(bench, monkeypatch, [4.0, 3.0, 2.0, 2.0, 1.0])
    bench.print_table(results)
    assert intact and results.get("bench-1.8m", "f32", "jax", "speed_over_eager") == 1.0


@pytest.mark.parametrize("losses", [[4.0, 3.001, 2.0, 2.0, 1.0], [4.0, 3.0, 2.0, 2.0, 1.001], [4.0, float("nan")]])
def test_another_training_than_eagers_is_a_failure(bench, monkeypatch, losses):
    intact, results = compare(bench, monkeypatch, losses)
    assert not intact
    assert results.get("bench-1.8m", "f32", "jax", "step_time") is None


def test_the_runner_says_when_jax_is_not_installed():
    ran = subprocess.run([sys.executable, "-S", ROOT / "benchmarks/jax_runner.py", "none", "{}", "f32", "1", "8", "1"],
                         capture_output=True, text=True, timeout=60, env={})
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["unavailable"].startswith("JAX is not installed (No module named 'jax')")
