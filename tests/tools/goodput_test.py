"""benchmarks/goodput.py: the trace is the same every time, and what a feature saves is what it should."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def goodput():
    spec = importlib.util.spec_from_file_location("goodput", ROOT / "benchmarks/goodput.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def llama(goodput):
    return next(run for run in goodput.RUNS if run.name == "llama-405b")


def test_the_trace_is_pinned(goodput, llama):
    trace = goodput.pinned_trace(llama)
    assert len(trace) == 466 and trace == goodput.pinned_trace(llama)
    assert 0 < trace[0][0] < trace[-1][0] < 54 * 86400
    assert trace[0] == (pytest.approx(15061.1, abs=0.1), "dies")


def test_the_state_of_a_device(llama):
    assert llama.device_gb() == pytest.approx(405 * 12 / 16384)


def test_what_is_lost(goodput, llama):
    """By hand: one process that dies an hour before the end of a save's interval, of free saves."""
    names = goodput.CONSTANTS | goodput.scaled_constants(1, 1)
    constants = {name: 0.0 for name in names} | {"save-every-hand": 7200.0, "start": 90.0, "restart-by-hand": 10.0, "load-disk": 50.0}
    plain = dict(watchdog=False, asynchronous=False, memory=False, tuned=False)
    whole = llama.seconds()
    assert goodput.goodput(llama, [], constants, **plain) == 1
    one = goodput.goodput(llama, [(7200 * 3 + 3600, "dies")], constants, **plain)
    assert one == pytest.approx(1 - (3600 + 150) / whole)
    # A second one while the first restarts begins the restart anew.
    two = goodput.goodput(llama, [(7200 * 3 + 3600, "dies"), (7200 * 3 + 3610, "dies")], constants, **plain)
    assert two == pytest.approx(1 - (3600 + 160) / whole)
    planned = goodput.goodput(llama, [(7200 * 3 + 3600, "planned")], constants, **plain)
    assert planned == pytest.approx(1 - 150 / whole)


@pytest.mark.parametrize("which", [0, 1])
def test_each_feature_gains(goodput, which):
    run = goodput.RUNS[which]
    constants = {name: seconds for name, (seconds, _) in goodput.constants_of(run, {"copy-rate": 30}).items()}
    trace = goodput.pinned_trace(run)
    by_hand, *single, together = [goodput.goodput(run, trace, constants, **practice) for _, practice in goodput.PRACTICES]
    assert all(by_hand < one < together < 1 for one in single)


def test_a_source_counts_before_an_assumption(goodput):
    of_glm = goodput.constants_of(goodput.RUNS[1], {"copy-rate": 30, "step": 5.0})
    assert of_glm["load-disk"] == (480.0, "8 minutes (stabilize_llm_training)")
    assert of_glm["step"] == (5.0, "given") and of_glm["start"] == goodput.CONSTANTS["start"]


def test_constants_that_were_measured(goodput, tmp_path):
    """Scaled by bytes; what a person gives counts, and each says where it is from."""
    copies, restart = tmp_path / "copies.json", tmp_path / "restart.json"
    copies.write_text('{"copies": {"gigabytes": 1.6, "memcpy": 0.5, "save_stall": 0.5, "snapshot_stall": 0.55, "hashing": 1}}')
    steps = {"own memory": 2.5, "a peer's memory": 3.0, "disk": 9, "without state": 2.0}
    restart.write_text(json.dumps({"restart": {"preset": "p", "ranks": 2, "state_bytes": 2e9, "next_step": steps}}))
    found = goodput.measured_constants([copies, restart], device_gb=60, copy_rate=30)
    assert {name: round(seconds, 6) for name, (seconds, _) in found.items()} == {
        "save-stall": 2.0, "snapshot-stall": 2.2, "start": 2.0, "load-memory": 30.0, "load-peer": 60.0}
    assert all(what.startswith("measured: ") for _, what in found.values())
    said = subprocess.run([sys.executable, ROOT / "benchmarks/goodput.py", "--start=7", "--measured", copies, restart],
                          capture_output=True, text=True, check=True).stdout
    for line in ["start +7  given", "load-memory +0.148  measured: 0.50 s for .*", "load-disk +300  a checkpoint of .* \\(assumed\\)"]:
        assert re.search(f"^ +{line}$", said, re.MULTILINE), said
    restart.write_text(json.dumps({"restart": {"preset": "p", "ranks": 2, "state_bytes": 2e9, "next_step": steps | {"own memory": 2}}}))
    with pytest.raises(SystemExit, match="from own memory took no longer than without state: nothing to scale"):
        goodput.measured_constants([restart], 60, 30)
    restart.write_text('{"other": 1}')
    with pytest.raises(SystemExit, match="other is none of copies, restart"):
        goodput.measured_constants([restart], 60, 30)
