"""benchmarks/goodput.py: the trace is the same every time, and what a feature saves is what it should."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def goodput():
    spec = importlib.util.spec_from_file_location("goodput", ROOT / "benchmarks/goodput.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_trace_is_pinned(goodput):
    trace = goodput.pinned_trace()
    assert len(trace) == 466 and trace == goodput.pinned_trace()
    assert 0 < trace[0][0] < trace[-1][0] < 54 * 86400
    assert trace[0] == (pytest.approx(15061.1, abs=0.1), "dies")


def test_what_is_lost(goodput):
    """By hand: one process that dies an hour before the end of a save's interval, of free saves."""
    constants = {name: 0.0 for name in goodput.CONSTANTS} | {"save-every-hand": 7200.0, "start": 100.0, "load-disk": 50.0}
    plain = dict(watchdog=False, asynchronous=False, memory=False, tuned=False)
    whole = goodput.DAYS * 86400
    assert goodput.goodput([], constants, **plain) == 1
    one = goodput.goodput([(7200 * 3 + 3600, "dies")], constants, **plain)
    assert one == pytest.approx(1 - (3600 + 150) / whole)
    # A second one while the first restarts begins the restart anew.
    two = goodput.goodput([(7200 * 3 + 3600, "dies"), (7200 * 3 + 3610, "dies")], constants, **plain)
    assert two == pytest.approx(1 - (3600 + 160) / whole)
    planned = goodput.goodput([(7200 * 3 + 3600, "planned")], constants, **plain)
    assert planned == pytest.approx(1 - 150 / whole)


def test_each_feature_gains(goodput):
    constants = {name: seconds for name, (seconds, _) in goodput.CONSTANTS.items()}
    trace = goodput.pinned_trace()
    by_hand, *single, together = [goodput.goodput(trace, constants, **practice) for _, practice in goodput.PRACTICES]
    assert all(by_hand < one < together < 1 for one in single)
