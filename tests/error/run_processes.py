"""Runs on several ranks that are processes: how they are started, found and watched."""

import json
import os
import socket
from pathlib import Path

import pytest

from tiny_run import RUN

TRAIN = [*RUN, "--train.threads=1"]
TWO = [*TRAIN, "--ranks", "2"]


@pytest.fixture
def tiny(tiny):
    yield tiny
    left = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and Path(os.readlink(process / "cwd")).is_relative_to(tiny.path):
                left.append((process / "cmdline").read_text())
        except OSError:  # ended meanwhile, or somebody else's
            pass
    assert not left


def variables_of(rank, ranks, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def losses(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return {(line["step"], key): line[key] for line in lines for key in ["loss", "grad_norm", "held_out_loss"]
            if key in line}


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert abs(found[key] - value) <= tolerance * max(1, abs(value)), (key, found[key], value)


def steps_saved(path):
    """What a killed process left half-written is none."""
    return sorted(int(each.name.split("-")[1]) for each in path.glob("checkpoint-*") if ".tmp-" not in each.name)


def ranks_of(launcher):
    """Process ids by rank, of those that have not ended."""
    found = {}
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        try:
            variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        except OSError:
            continue
        found |= {int(each.removeprefix("RANK=")): int(child) for each in variables if each.startswith("RANK=")}
    return found


def until(process, start):
    for line in process.stdout:
        if line.startswith(start):
            return
    raise AssertionError(process.stderr.read())
