#!/usr/bin/env python3
"""A step on ranks beside what it must cost, and beside PyTorch's: paired, interleaved, on loopback, one thread a rank.

    benchmarks/ranks_benchmark.py [--ranks N] [--preset NAME] [--precision bfloat16] [--batch N] [--seq N] [--rounds N]

Four teams of processes take turns, a few steps each: stepc, PyTorch's DistributedDataParallel, FSDP2 and tensor
parallelism, all over Gloo. stepc's ranks take a data-parallel step, one on shards (zero 3), one under tensor and one
under context parallelism, one of a rank's rows alone without other ranks, and the collectives of the first four bare.
What a step costs above rows and collectives is the ratio that counts.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release" / "benchmarks"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Team:
    """Processes that work only while they are asked. `hosts`: of each rank what stands before its command, and variables."""

    def __init__(self, command, ranks, hosts=None):
        port = str(free_port())
        self.ranks = []
        for rank in range(ranks):
            before, variables = hosts[rank] if hosts else ([], {})
            place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1} | variables
            self.ranks.append(subprocess.Popen(
                [*before, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE if rank == 0 else None, text=True,
                env=os.environ | {name: str(value) for name, value in place.items()}))

    def run(self, count):
        for rank in self.ranks:
            rank.stdin.write(f"run {count}\n")
            rank.stdin.flush()
        line = self.ranks[0].stdout.readline()
        if not line:
            sys.exit("ranks_benchmark: a team ended without a word")
        return json.loads(line)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(timeout=60)


def medians_of(teams, rounds, steps):
    """By name the median of each round, in which the teams take their steps in turn. Ends the teams."""
    for team in teams:
        team.run(3)  # not counted
    medians = {}
    for _ in range(rounds):
        for team in teams:
            for name, values in team.run(steps).items():
                medians.setdefault(name, []).append(statistics.median(values))
    for team in teams:
        team.close()
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"ranks": 2, "preset": "bench-10m", "precision": "bfloat16", "batch": 8, "seq": 256,
                          "rounds": 7, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    shape = [options.precision, options.batch, options.seq]
    config = subprocess.run([BUILD / "stepc_runner", "config", options.preset], check=True, capture_output=True,
                            text=True).stdout
    torch_ranks = [sys.executable, ROOT / "benchmarks" / "torch_ranks.py"]
    teams = [Team([BUILD / "ranks_benchmark", options.preset, *shape], options.ranks),
             *(Team([*torch_ranks, kind, config, *shape], options.ranks) for kind in ("ddp", "fsdp", "tp"))]
    seconds = medians_of(teams, options.rounds, options.steps)
    print(f"{options.preset}, {options.precision}, {options.batch} x {options.seq} tokens on {options.ranks} ranks; "
          f"median of {options.rounds} rounds")
    for name, values in seconds.items():
        print(f"  {name:12}{1e3 * statistics.median(values):9.1f} ms")
    # Of the same round each: what else the machine did is in both.
    ratio = lambda a, b: statistics.median(x / y for x, y in zip(a, b))
    total = lambda *names: [sum(values) for values in zip(*(seconds[name] for name in names))]
    for text, value, wanted in [
            ("dp step / (a rank's rows + its collectives)", ratio(seconds["dp"], total("alone", "dp_bare")), 1.10),
            ("zero 3 step / (a rank's rows + its collectives)",
             ratio(seconds["zero3"], total("alone", "zero3_bare")), 1.15),
            ("dp step / DistributedDataParallel", ratio(seconds["dp"], seconds["ddp"]), 0.6),
            ("zero 3 step / FSDP2", ratio(seconds["zero3"], seconds["fsdp"]), 0.6),
            ("tp step / torch.distributed.tensor.parallel", ratio(seconds["tp"], seconds["torch_tp"]), 0.7)]:
        print(f"  {text:48}{value:6.2f}   wanted: at most {wanted}")


if __name__ == "__main__":
    main()
