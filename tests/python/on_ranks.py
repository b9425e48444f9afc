"""Starts a program as several ranks on this machine, with what torchrun would set, and ends those that it started."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

import stepc

PACKAGE = Path(stepc.__file__).parents[1]  # the folder that has it for this interpreter


def start(ranks, arguments, seconds=600, ends_well=True, **environment):
    """The output of each rank, once all have ended: with status 0, or none of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
              "OMP_NUM_THREADS": 1, **environment}
    processes = []
    for rank in range(ranks):
        own = {**common, "RANK": rank, "LOCAL_RANK": rank}
        processes.append(subprocess.Popen(
            [sys.executable, *map(str, arguments)], env={**os.environ, **{name: str(one) for name, one in own.items()}},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    end = time.monotonic() + seconds
    outputs = []
    for rank, process in enumerate(processes):
        try:
            outputs.append(process.communicate(timeout=max(end - time.monotonic(), 1))[0])
        except subprocess.TimeoutExpired:
            for one in processes:
                one.kill()
            raise AssertionError(f"rank {rank} did not end: {process.communicate()[0][-2000:]}") from None
    assert all((process.returncode == 0) == ends_well for process in processes), "\n".join(one[-2000:] for one in outputs)
    return outputs


def results_of(cases, out, group, ranks=2):
    """What each case of ranks_cases.py gave on each of the ranks, which ran them one after the other."""
    program = Path(__file__).resolve().parent / "ranks_cases.py"
    start(ranks, [program, PACKAGE, out, group, *cases])
    all_ranks = [torch.load(out / f"rank-{rank}.pt") for rank in range(ranks)]
    return {name: [one[name] for one in all_ranks] for name in cases}


def assert_as_one(result, tolerance=1e-10):
    """What the ranks got is what one process got."""
    torch.testing.assert_close(torch.tensor(result["got"], dtype=torch.float64),
                               torch.tensor(result["wanted"], dtype=torch.float64), rtol=0, atol=tolerance)
    for name, one in result.get("wanted_state", {}).items():
        torch.testing.assert_close(result["got_state"][name], one, rtol=0, atol=tolerance, msg=name)
