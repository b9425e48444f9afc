"""Two builds of stepc on the steps of mode_benchmark.py: is the new one slower?

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/compare_builds.py OLD NEW [--pairs N] [--steps N]

OLD and NEW are what PYTHONPATH takes, a build/release/python each. A pair is one process of each build; their steps are
taken in turn, so that what else the machine does falls on both, and give one number: the median of NEW's over OLD's
seconds. Prints for each model, precision and mode the median over the pairs with its 95 % interval, and what each
build's planning took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from mode_benchmark import MODELS, WARM_UP, build, step_of


def serve(model, precision, mode):
    """Takes a step for every line that comes in, and answers with its seconds."""
    import torch

    import stepc

    _, layers, width, vocabulary, batch, sequence, *_ = next(m for m in MODELS if m[0] == model)
    train_step = step_of(*build(layers, width, vocabulary, precision), precision)
    step = stepc.accelerate(train_step, config=stepc.Config(mode=mode, verify="off"))
    batches = [torch.randint(vocabulary, (batch, sequence)) for _ in range(4)]
    count = 0
    for line in sys.stdin:
        if line.strip() == "stats":
            print(json.dumps({"replays": step.stats["replays"], "planning": step.stats["planning_seconds"]}), flush=True)
            continue
        begin = time.perf_counter()
        step(batches[count % len(batches)])
        print(time.perf_counter() - begin, flush=True)
        count += 1


class Server:
    """A process with one build."""

    def __init__(self, python_path, *what):
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", *what], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": python_path})

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("compare_builds: a process ended early")
        return json.loads(answer)

    def end(self):
        self.process.communicate()


def pair_of(paths, what, steps):
    """The median ratio of one pair of processes, and what both say of themselves."""
    servers = [Server(path, *what) for path in paths]
    for _ in range(WARM_UP):
        for server in servers:
            server.ask("step")
    ratios = []
    for i in range(steps):
        order = (0, 1) if i % 2 == 0 else (1, 0)  # who comes second finds the caches and the clock as the first left them
        seconds = {which: servers[which].ask("step") for which in order}
        ratios.append(seconds[1] / seconds[0])
    stats = [server.ask("stats") for server in servers]
    for server in servers:
        server.end()
    assert all(stat["replays"] >= steps for stat in stats), stats
    return statistics.median(ratios), [stat["planning"] for stat in stats]


def interval(values):
    """The 95 % interval of the median: order statistics of the binomial distribution (Conover, 1999, 3.2)."""
    values, n = sorted(values), len(values)
    below = max(0, int(n / 2 - 1.96 * n**0.5 / 2))
    return values[below], values[n - 1 - below]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar="BUILD")
    parser.add_argument("--models", nargs="+", default=["1.8M", "10M"], choices=[model[0] for model in MODELS])
    parser.add_argument("--modes", nargs="+", default=["fast", "exact"], choices=["fast", "exact"])
    precisions = sorted({one for model in MODELS for one in model[6]})
    parser.add_argument("--precisions", nargs="+", default=precisions, choices=precisions)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each process")
    options = parser.parse_args()
    print(f"{'model':<8} {'precision':<9} {'mode':<6} {'new/old':>8} {'95 %':>17} {'planning s, old and new':>25}")
    for model in (m for m in MODELS if m[0] in options.models):
        for precision in (one for one in model[6] if one in options.precisions):
            for mode in options.modes:
                pairs = [pair_of(options.builds, (model[0], precision, mode), options.steps)
                         for _ in range(options.pairs)]
                low, high = interval([ratio for ratio, _ in pairs])
                planning = [statistics.median(seconds[i] for _, seconds in pairs) for i in range(2)]
                print(f"{model[0]:<8} {precision:<9} {mode:<6} {statistics.median(r for r, _ in pairs):>8.3f} "
                      f"{low:>8.3f} {high:>8.3f} {planning[0]:>16.3f} {planning[1]:>8.3f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
