#!/usr/bin/env python3
"""Goodput of a long run under faults, simulated: what share of the time goes into steps that count.

    benchmarks/goodput.py [--measured FILE ...] [--step SECONDS ...]

    build/release/benchmarks/checkpoint_benchmark 1600 1 --json > copies.json
    benchmarks/restart_benchmark.py --preset llama-134m --json restart.json
    benchmarks/goodput.py --measured copies.json restart.json

The trace is pinned: 54 days, 16,384 devices and 466 interruptions, as Meta says of Llama 3 405B (arXiv:2407.21783, section 3.3.4:
419 of them unexpected), at moments drawn once by a seed, each of a kind by assumed shares (about those of that paper's table): a process that dies, one that hangs,
a machine to be replaced, or one that was planned. A fault costs its detection, the restart, the state's loading and the steps since what
it is loaded from. Constants are options, and the table below says where each is from: bounds that tests hold, assumptions, or
what was measured here by the benchmarks above, scaled so:

    stalls            the ratio to a memcpy of the same bytes, times --device-gb at --copy-rate (assumed)
    loading           bytes of state a second and rank: what a restart with state takes more than one without; times --device-gb.
                      Disk stays assumed: it is a rate of shared storage, and not of this machine's disk
    start             that of a restart without state, as it is: it says nothing of how the meeting grows with the ranks

No number here was measured on 16,384 devices.
"""
import argparse
import json
import math
import pathlib
import random

DAYS, INTERRUPTIONS, SEED = 54, 466, 20240731
# Assumed, about as the paper's table has its 419 unexpected interruptions: software: processes die; network and NCCL timeouts: they
# hang; GPUs, memory, hosts and the rest: the machine goes. The other 47 were planned.
KINDS = {"machine": 321, "dies": 56, "hangs": 42, "planned": 47}

CONSTANTS = {  # name: (seconds, what, and where it is from)
    "step": (6.0, "a step of 16 million tokens at 400 TFLOP/s a device (assumed)"),
    "see-death": (1.0, "connections of a dead process break (a bound of tests/error/test_elastic.py)"),
    "see-hang-watchdog": (60.0, "elastic.stall_seconds = 45 and the 15 s within which all have ended (a bound of tests/error/test_elastic.py)"),
    "see-hang-default": (1800.0, "the process group's own timeout of 30 minutes, that of c10d"),
    "find-culprit-by-hand": (1800.0, "a person who reads logs of all ranks (assumed)"),
    "find-culprit": (10.0, "`stepc blame` reads the files of all ranks (assumed)"),
    "new-machine": (120.0, "the agents' new group with a spare machine (assumed)"),
    "start": (60.0, "processes, imports, the meeting, compiled kernels from the cache (assumed)"),
    "load-disk": (300.0, "a checkpoint of 405B from shared storage, and its hashes (assumed)"),
    "load-memory": (10.0, "25 GB a machine from its own memory, at 5 GB/s with hashes (assumed rate)"),
    "load-peer": (20.0, "the same over the network at 25 GB/s, and hashes (assumed)"),
    "save-stall-blocking": (120.0, "training waits for the files (assumed)"),
    "save-stall": (1.5, "a copy of the state aside (assumed)"),
    "snapshot-stall": (1.5, "a copy into shared memory; hash and way to a peer are beside the steps (assumed)"),
    "save-every-hand": (3 * 3600.0, "between two checkpoints, by rule of thumb (assumed)"),
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
                                                   f"{device_gb:g} GB at {copy_rate:g} GB/s (assumed)")
            elif kind == "restart":
                steps, each = one["next_step"], one["state_bytes"] / one["ranks"] / 1e9
                found["start"] = (steps["without state"], f"measured: {one['preset']} on {one['ranks']} ranks, not scaled")
                for name, source in (("load-memory", "own memory"), ("load-peer", "a peer's memory")):
                    more = steps[source] - steps["without state"]
                    if more <= 0:
                        raise SystemExit(f"goodput: {path}: from {source} took no longer than without state: nothing to scale; take "
                                         f"a larger --preset or more --rounds")
                    found[name] = (more * device_gb / each, f"measured: {more:.2f} s for {each:.3f} GB a rank, "
                                                            f"{each / more:.2f} GB/s; scaled to {device_gb:g} GB")
            else:
                raise SystemExit(f"goodput: {path}: {kind} is none of copies, restart")
    return found


def pinned_trace():
    """(second, kind) of each interruption."""
    draw = random.Random(SEED)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
    assert len(kinds) == INTERRUPTIONS
    draw.shuffle(kinds)
    return list(zip(sorted(draw.uniform(0, DAYS * 86400) for _ in kinds), kinds))


def best_interval(stall, c):
    """Young's: between two copies that each cost `stall`."""
    return max(c["step"], math.sqrt(2 * stall * DAYS * 86400 / INTERRUPTIONS))


def goodput(trace, c, *, watchdog, asynchronous, memory, tuned):
    """Share of the time in which steps are taken that are not taken again."""
    stall = c["save-stall"] if asynchronous else c["save-stall-blocking"]
    save_every = best_interval(stall, c) if tuned else c["save-every-hand"]
    snapshot_every = best_interval(c["snapshot-stall"], c) if memory else math.inf
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
        lost = seen + blamed + (c["new-machine"] if kind in ("machine", "planned") else 0) + c["start"] + load
        now = max(now, at + lost)  # a fault while the run restarts begins the restart anew
    useful += max(0.0, DAYS * 86400 - now) * share
    return useful / (DAYS * 86400)


PRACTICES = [
    ("checkpoints to storage, by hand", dict(watchdog=False, asynchronous=False, memory=False, tuned=False)),
    ("  + watchdog and blame", dict(watchdog=True, asynchronous=False, memory=False, tuned=False)),
    ("  + saves beside the training", dict(watchdog=False, asynchronous=True, memory=False, tuned=True)),
    ("  + snapshots in memory", dict(watchdog=False, asynchronous=False, memory=True, tuned=True)),
    ("all together", dict(watchdog=True, asynchronous=True, memory=True, tuned=True)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (seconds, what) in CONSTANTS.items():
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="SECONDS", help=f"{what}; {seconds:g}")
    parser.add_argument("--measured", type=pathlib.Path, nargs="*", default=[], metavar="FILE", help="of the benchmarks above")
    parser.add_argument("--device-gb", type=float, default=40, help="state of a device; 40")
    parser.add_argument("--copy-rate", type=float, default=30, help="GB/s of a memcpy there; 30")
    given = {name.replace("_", "-"): value for name, value in vars(parser.parse_args()).items()}
    sources = {name: what for name, (_, what) in CONSTANTS.items()}
    for name, (seconds, what) in measured_constants(given["measured"], given["device-gb"], given["copy-rate"]).items():
        if given[name] == CONSTANTS[name][0]:  # what a person gives counts
            given[name], sources[name] = seconds, what
    for name, (seconds, _) in CONSTANTS.items():
        if given[name] != seconds and not sources[name].startswith("measured"):
            sources[name] = "given"
    trace = pinned_trace()
    print(f"{DAYS} days, {INTERRUPTIONS} interruptions: goodput, simulated")
    for name, practice in PRACTICES:
        print(f"  {name:<34} {100 * goodput(trace, given, **practice):5.1f} %")
    print("constants, seconds:")
    for name, what in sources.items():
        print(f"  {name:<22} {round(given[name], 2):>7g}  {what}")


if __name__ == "__main__":
    main()
