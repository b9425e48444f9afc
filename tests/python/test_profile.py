"""step.profile(): where a replayed step's time goes, as a table and as a trace."""

import json

import pytest
import torch

import stepc
from harness import train


def make_step(mode="exact", **chosen):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    training = train(model, lambda model, x: model(x).square().mean())
    return stepc.accelerate(training.step, config=stepc.Config(mode=mode, **chosen))


def call(step, times):
    for _ in range(times):
        step(torch.randn(16, 8))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_every_instruction_is_in_both_tracks(mode, tmp_path):
    step = make_step(mode, kernel_directory=str(tmp_path))  # where no calibration is kept
    call(step, 5)
    with step.profile(tmp_path / "trace.json") as profile:
        call(step, 2)
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks = {1: [], 2: []}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    for events in tracks.values():
        assert [event["args"]["instruction"] for event in events] == list(range(step.stats["instructions"]))
        for event, after in zip(events, events[1:]):
            assert event["dur"] >= 0 and event["ts"] + event["dur"] <= after["ts"] + 1e-6
    assert sum(event["dur"] for event in tracks[1]) <= trace["otherData"]["step_us"]
    assert {event["args"]["phase"] for event in tracks[1]} == {"forward", "backward", "update"}
    assert "defaults: `stepc calibrate` measures this machine's" in trace["otherData"]["rates"]
    text = str(profile)
    assert text.startswith(f"step ({mode} mode)") and "by kind" in text and "by module" in text
    profile.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "trace.json").read_bytes()


def test_results_are_those_of_an_unprofiled_step():
    def losses(profiled):
        torch.manual_seed(0)
        step, found = make_step(), []
        for i in range(8):
            x = torch.full((16, 8), float(i))
            if profiled and i > 3:
                with step.profile():
                    found.append(step(x))
            else:
                found.append(step(x))
        return torch.stack(found)

    assert losses(True).equal(losses(False))


def test_what_cannot_be_profiled_is_said(tmp_path):
    step = make_step()
    with pytest.raises(stepc.UserError, match="no call in the profile's block was replayed") as caught:
        with step.profile(tmp_path / "trace.json"):
            call(step, 1)
    assert "\n" not in str(caught.value) and not (tmp_path / "trace.json").exists()
    profile = step.profile()
    assert str(profile) == "nothing is profiled yet"
    with pytest.raises(stepc.UserError, match="nothing is profiled yet"):
        profile.save(tmp_path / "trace.json")
    with pytest.raises(stepc.UserError, match='mode is "eager": a profile times the instructions of a plan'):
        with make_step("eager").profile():
            pass
    call(step, 4)
    with pytest.raises(stepc.UserError, match="no/where.json"):
        with step.profile(tmp_path / "no" / "where.json"):
            call(step, 1)


def test_an_error_in_the_block_passes_through():
    step = make_step()
    call(step, 4)
    with pytest.raises(KeyError):
        with step.profile():
            raise KeyError("the user's own")
    with step.profile() as profile:
        call(step, 1)
    assert "instructions" in str(profile)
