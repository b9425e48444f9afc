"""What the start of an accelerated step costs beyond normal steps, on a Llama of 134M in bfloat16 (--small: 10M).

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/start_benchmark.py [--small] [--cold] [--at-hand] [--rounds N]

Processes in turn, an eager one and an accelerated one (fast mode, no verification) a round; each runs twelve steps of
forward, loss, backward, clipping and fused AdamW. What is normal is the median of the last five of its kind: eager
steps beside those that are recorded, replays beside the first one. Prints the seconds and the page faults of each call,
what the first calls take beyond normal, and what of it is planning. --cold gives each process an empty kernel cache.

The first replay touches its arena for the first time. Where a machine's free memory was given back to the host that it
runs on, that alone takes one to three seconds a GB; with --at-hand another process holds as much memory in huge pages
and ends just before that replay, which then finds it as a machine of its own would have it.
"""

import argparse
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

CALLS, SETTLED = 12, 5
ARENA = 2 << 30  # bytes; at least what the larger model's takes


def hold():
    """Touches as much memory as an arena takes, and keeps it until standard input ends."""
    memory = mmap.mmap(-1, ARENA, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, ARENA, mmap.PAGESIZE):
        memory[page] = 1
    print("held", flush=True)
    sys.stdin.read()


def run(kind, size, at_hand):
    import torch  # only a process that measures has it
    from mode_benchmark import MODELS, build, step_of

    _, layers, width, vocabulary, batch, sequence, *_ = next(model for model in MODELS if model[0] == size)
    model, optimizer = build(layers, width, vocabulary, "bf16")
    step = step_of(model, optimizer, "bf16")
    if kind == "stepc":
        import stepc

        step = stepc.accelerate(step, config=stepc.Config(mode="fast", verify="off"))
    holder = None
    if at_hand:
        holder = subprocess.Popen([sys.executable, __file__, "--hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()
    calls = []
    for _ in range(CALLS):
        ids = torch.randint(vocabulary, (batch, sequence))
        faults, begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        step(ids)
        seconds = time.perf_counter() - begin
        replays = step.stats["replays"] if kind == "stepc" else 0
        calls.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults, replays))
        if holder is not None and (kind == "eager" or step.stats["planning_seconds"] > 0):
            holder.communicate()
            holder = None
    planning = step.stats["planning_seconds"] if kind == "stepc" else 0
    print(json.dumps({"calls": calls, "planning": planning, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))


def measure(kind, size, cold, at_hand):
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, **({"XDG_CACHE_HOME": cache} if cold else {})}
        command = [sys.executable, __file__, "--run", kind, size, *(["--at-hand"] if at_hand else [])]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def normal(calls):
    return statistics.median(seconds for seconds, _, _ in calls[-SETTLED:])


def report(kind, result, eager):
    calls = result["calls"]
    recorded = [one for one in calls if one[2] == 0] if kind == "stepc" else calls[:3]
    first = calls[len(recorded)]
    beyond = sum(seconds - normal(eager["calls"]) for seconds, _, _ in recorded) + first[0] - normal(calls)
    print(
        f"{kind:6} first {', '.join(f'{one[0]:.2f}' for one in recorded)}, then {first[0]:.2f}, normally {normal(calls):.2f}: "
        f"{beyond:.2f} s beyond normal, {result['planning']:.2f} of them planning; page faults "
        f"{', '.join(f'{one[1] / 1e3:.0f}' for one in recorded)} thousand, then {first[1] / 1e3:.0f}; peak {result['peak']:.2f} GB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the 10M model")
    parser.add_argument("--cold", action="store_true", help="an empty kernel cache for each process")
    parser.add_argument("--at-hand", action="store_true", help="the arena's memory need not come from the host")
    parser.add_argument("--rounds", type=int, default=2, help="pairs of processes (2)")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=2, metavar=("KIND", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        return hold()
    if options.run:
        return run(*options.run, options.at_hand)
    size = "10M" if options.small else "134M"
    for _ in range(options.rounds):
        eager = measure("eager", size, options.cold, options.at_hand)
        report("eager", eager, eager)
        report("stepc", measure("stepc", size, options.cold, options.at_hand), eager)


if __name__ == "__main__":
    main()
