#!/usr/bin/env python3
"""Goodput of a long run under faults, simulated: what share of the time goes into steps that count.

    benchmarks/goodput.py [--measured FILE ...] [--step SECONDS ...]

    build/release/benchmarks/checkpoint_benchmark 1600 1 --json > copies.json
    benchmarks/restart_benchmark.py --preset llama-134m --json restart.json
    benchmarks/goodput.py --measured copies.json restart.json

Two runs, each with a pinned trace: as many faults as its source names, at moments drawn once by a seed.

    llama-405b   54 days, 16,384 devices, 466 interruptions (Llama 3, arXiv:2407.21783, section 3.3.4; 419 unexpected)
    glm-65b      28 days, 1,536 devices, a fault a day for 0.27 % of the devices, three quarters of which a restart of
                 the processes ends (the blogs "stabilize_llm_training" and "flash_checkpoint" of DLRover's repository)

A fault costs its detection, the restart, the state's loading and the steps since what it is loaded from. Constants are
options, and the table of each run says where each is from: a source, bounds that tests hold, assumptions, or what the
benchmarks above measured here, scaled so:

    stalls            the ratio to a memcpy of the same bytes, times --device-gb at --copy-rate (assumed)
    loading           bytes of state a second and rank: what a restart with state takes more than one without; times
                      --device-gb. Disk is not scaled: it is a rate of shared storage, and not of this machine's disk
    start             that of a restart without state, as it is: it says nothing of how the meeting grows with the ranks

A device's state is 12 bytes a parameter (a master copy and two moments in f32) over all devices, as both runs shard it.
No number here was measured on that many devices.
"""
import argparse
import dataclasses
import json
import math
import pathlib
import random

BYTES_A_PARAMETER = 12


@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    devices: int
    parameters: float
    days: int
    faults: dict       # kind: count. A process that dies, one that hangs, a machine to be replaced, a planned stop
    constants: dict    # name: (seconds, where it is from), beside those of all runs
    published: str = ""

    def device_gb(self):
        return BYTES_A_PARAMETER * self.parameters / self.devices / 1e9

    def interruptions(self):
        return sum(self.faults.values())

    def seconds(self):
        return self.days * 86400


CONSTANTS = {  # name: (seconds, what, and where it is from)
    "step": (6.0, "a step of 16 million tokens at 400 TFLOP/s a device (assumed)"),
    "see-death": (1.0, "connections of a dead process break (a bound of tests/error/test_elastic.py)"),
    "see-hang-watchdog": (60.0, "elastic.stall_seconds = 45 and the 15 s within which all have ended (a bound of tests/error/test_elastic.py)"),
    "see-hang-default": (1800.0, "the process group's own timeout of 30 minutes, that of c10d"),
    "restart-by-hand": (0.0, "an agent restarts the processes (assumed)"),
    "find-culprit-by-hand": (1800.0, "a person who reads logs of all ranks (assumed)"),
    "find-culprit": (10.0, "`stepc blame` reads the files of all ranks (assumed)"),
    "new-machine": (120.0, "the agents' new group with a spare machine (assumed)"),
    "start": (60.0, "processes, imports, the meeting, compiled kernels from the cache (assumed)"),
    "load-disk": (300.0, "a checkpoint of 405B from shared storage, and its hashes (assumed)"),
    "save-stall-blocking": (120.0, "training waits for the files (assumed)"),
    "save-every-hand": (3 * 3600.0, "between two checkpoints, by rule of thumb (assumed)"),
}

RUNS = [
    # Assumed, about as the paper's table has its 419 unexpected interruptions: software: processes die; network and NCCL
    # timeouts: they hang; GPUs, memory, hosts and the rest: the machine goes. The other 47 were planned.
    Run("llama-405b", 16384, 405e9, 54, {"machine": 321, "dies": 56, "hangs": 42, "planned": 47}, {}),
    Run("glm-65b", 1536, 65e9, 28, {"machine": 29, "dies": 87}, {
        "step": (21.6, "250 steps in an hour and a half (flash_checkpoint)"),
        "restart-by-hand": (900.0, "a failed job is seen and submitted in 10 minutes, its pods start in 5 (stabilize_llm_training)"),
        "find-culprit-by-hand": (7200.0, "a broken node is looked for by halves, 2 hours (stabilize_llm_training)"),
        "new-machine": (120.0, "one pod in place of another, 2 minutes (stabilize_llm_training)"),
        "load-disk": (480.0, "8 minutes (stabilize_llm_training)"),
        "save-stall-blocking": (120.0, "2 minutes (flash_checkpoint)"),
        "save-every-hand": (5400.0, "an hour and a half (flash_checkpoint)"),
    }, "published for a run of these: 69 % before DLRover, 95 % with it"),
]


def scaled_constants(device_gb, copy_rate):
    """What grows with the state of a device, as it is assumed where nothing was measured."""
    stall = 1.2 * device_gb / copy_rate
    return {
        "save-stall": (stall, "1.2 of a memcpy of the state (a bound of docs/elastic.md)"),
        "snapshot-stall": (stall, "the same; hash and way to a peer are beside the steps"),
        "load-memory": (device_gb / 0.6, "own memory at 0.6 GB/s a rank with hashes (assumed rate)"),
        "load-peer": (device_gb / 0.3, "a peer's memory at 0.3 GB/s a rank with hashes (assumed rate)"),
    }


def measured_constants(files, device_gb, copy_rate):
    """name: (seconds, where it is from), of what the benchmarks wrote."""
    found = {}
    for path in files:
        for kind, one in json.loads(path.read_text()).items():
            if kind == "copies":
                memcpy = device_gb / copy_rate
                for name, key in (("save-stall", "save_stall"), ("snapshot-stall", "snapshot_stall")):
                    ratio = one[key] / one["memcpy"]
                    found[name] = (ratio * memcpy, f"measured: {ratio:.2f} of a memcpy of {one['gigabytes']:.2f} GB; scaled to "
                                                   f"{device_gb:.2g} GB at {copy_rate:g} GB/s (assumed)")
            elif kind == "restart":
                steps, each = one["next_step"], one["state_bytes"] / one["ranks"] / 1e9
                found["start"] = (steps["without state"], f"measured: {one['preset']} on {one['ranks']} ranks, not scaled")
                for name, source in (("load-memory", "own memory"), ("load-peer", "a peer's memory")):
                    more = steps[source] - steps["without state"]
                    if more <= 0:
                        raise SystemExit(f"goodput: {path}: from {source} took no longer than without state: nothing to scale; take "
                                         f"a larger --preset or more --rounds")
                    found[name] = (more * device_gb / each, f"measured: {more:.2f} s for {each:.3f} GB a rank, "
                                                            f"{each / more:.2f} GB/s; scaled to {device_gb:.2g} GB")
            else:
                raise SystemExit(f"goodput: {path}: {kind} is none of copies, restart")
    return found


def pinned_trace(run):
    """(second, kind) of each interruption."""
    draw = random.Random(20240731)
    kinds = [kind for kind, count in run.faults.items() for _ in range(count)]
    draw.shuffle(kinds)
    return list(zip(sorted(draw.uniform(0, run.seconds()) for _ in kinds), kinds))


def best_interval(stall, run, step):
    """Young's: between two copies that each cost `stall`; at least a step."""
    return max(step, math.sqrt(2 * stall * run.seconds() / run.interruptions()))


def goodput(run, trace, c, *, watchdog, asynchronous, memory, tuned):
    """Share of the time in which steps are taken that are not taken again."""
    stall = c["save-stall"] if asynchronous else c["save-stall-blocking"]
    save_every = best_interval(stall, run, c["step"]) if tuned else c["save-every-hand"]
    snapshot_every = best_interval(c["snapshot-stall"], run, c["step"]) if memory else math.inf
    # Steps, and what they pay for copies.
    share = 1 / (1 + stall / save_every + (c["snapshot-stall"] / snapshot_every if memory else 0))
    useful, now = 0.0, 0.0
    for at, kind in trace:
        worked = max(0.0, at - now) * share
        since = worked % (min(save_every, snapshot_every) * share) if kind != "planned" else 0
        useful += worked - since
        seen = {"dies": c["see-death"], "machine": c["see-death"], "planned": 0.0,
                "hangs": c["see-hang-watchdog"] if watchdog else c["see-hang-default"]}[kind]
        blamed = {"dies": 0.0, "planned": 0.0}.get(kind, c["find-culprit"] if watchdog else c["find-culprit-by-hand"])
        load = c["load-disk"] if not memory else c["load-peer"] if kind in ("machine", "planned") else c["load-memory"]
        lost = seen + blamed + (0 if watchdog else c["restart-by-hand"]) + (c["new-machine"] if kind in ("machine", "planned") else 0) \
            + c["start"] + load
        now = max(now, at + lost)  # a fault while the run restarts begins the restart anew
    useful += max(0.0, run.seconds() - now) * share
    return useful / run.seconds()


PRACTICES = [
    ("checkpoints to storage, by hand", dict(watchdog=False, asynchronous=False, memory=False, tuned=False)),
    ("  + watchdog, agent and blame", dict(watchdog=True, asynchronous=False, memory=False, tuned=False)),
    ("  + saves beside the training", dict(watchdog=False, asynchronous=True, memory=False, tuned=True)),
    ("  + snapshots in memory", dict(watchdog=False, asynchronous=False, memory=True, tuned=True)),
    ("all together", dict(watchdog=True, asynchronous=True, memory=True, tuned=True)),
]


def constants_of(run, options, measured=()):
    """name: (seconds, where it is from); what a person gives counts, then what was measured, then the run's source."""
    device_gb = options.get("device-gb") or run.device_gb()
    found = CONSTANTS | scaled_constants(device_gb, options["copy-rate"]) | run.constants
    found |= measured_constants(measured, device_gb, options["copy-rate"])
    return {name: (options[name], "given") if options.get(name) is not None else one for name, one in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (seconds, what) in (CONSTANTS | scaled_constants(0, 1)).items():
        parser.add_argument(f"--{name}", type=float, metavar="SECONDS", help=what)
    parser.add_argument("--measured", type=pathlib.Path, nargs="*", default=[], metavar="FILE", help="of the benchmarks above")
    parser.add_argument("--device-gb", type=float, help=f"state of a device; {BYTES_A_PARAMETER} bytes a parameter over all devices")
    parser.add_argument("--copy-rate", type=float, default=30, help="GB/s of a memcpy there; 30")
    given = {name.replace("_", "-"): value for name, value in vars(parser.parse_args()).items()}
    for run in RUNS:
        constants = constants_of(run, given, given["measured"])
        seconds = {name: value for name, (value, _) in constants.items()}
        trace = pinned_trace(run)
        print(f"{run.name}: {run.days} days, {run.devices:,} devices, {run.interruptions()} interruptions: goodput, simulated")
        for name, practice in PRACTICES:
            print(f"  {name:<34} {100 * goodput(run, trace, seconds, **practice):5.1f} %")
        if run.published:
            print(f"  {run.published}")
        print("  constants, seconds:")
        for name, (value, what) in constants.items():
            print(f"    {name:<22} {round(value, 3):>7g}  {what}")


if __name__ == "__main__":
    main()
