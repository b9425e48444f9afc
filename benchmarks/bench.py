#!/usr/bin/env python3
"""Compares stepc with PyTorch eager, torch.compile and JAX on whole training steps: paired, interleaved, in one run.

    benchmarks/bench.py [--quick] [--models NAME,...] [--runners NAME,...] [--steps N]

Prints a table and writes build/bench.json. It measures and never gates: only a runner that breaks makes it fail.
What is compared and what each column means is in benchmarks/README.md.
"""
import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release" / "benchmarks"
LOGS = ROOT / "build" / "bench"
RESULT = ROOT / "build" / "bench.json"
THREADS = 2
ROUNDS, QUICK_ROUNDS = 7, 3
JAX = ROOT / ".venv" / "jax"  # where tools/setup bench installs it
# How far JAX's loss may be from eager's, which starts from the same weights, after 2 and 5 steps: a share of it.
LOSS_TOLERANCE = {"f32": 1e-5, "bf16": 2e-3, "autocast": 1e-3}
WARM_STEPS = 3  # after the first two
MOST_WARM_STEPS = 12
RUNNERS = ("eager", "compile", "jax", "stepc", "stepc-paired")
TITLES = {"eager": "PyTorch eager", "compile": "torch.compile", "jax": "JAX", "stepc": "stepc",
          "stepc-paired": "stepc, paired", "stepc-eager": "C++ eager, paired"}


@dataclasses.dataclass(frozen=True)
class Model:
    preset: str
    batch: int
    seq: int
    precisions: tuple
    steps_per_round: int


MODELS = (Model("bench-1.8m", 4, 128, ("f32",), 20),
          Model("bench-10m", 8, 256, ("f32", "bf16"), 4),
          Model("bench-134m", 4, 512, ("f32", "bf16", "autocast"), 1))


class RunnerFailed(Exception):
    pass


class Unavailable(Exception):
    """A runner that this machine does not have."""


class Runner:
    """A process that trains on command; see the protocol in README.md. It works only while it is asked."""

    def __init__(self, name, model, precision, config):
        self.name = name
        shape = [precision, str(model.batch), str(model.seq), str(THREADS)]
        if name.startswith("stepc"):
            mode = "paired" if name == "stepc-paired" else "accelerate"
            command = [BUILD / "stepc_runner", mode, model.preset, *shape]
        elif name == "jax":
            command = [sys.executable, ROOT / "benchmarks" / "jax_runner.py", start_of(model, config), config, *shape]
        else:
            command = [sys.executable, ROOT / "benchmarks" / "torch_runner.py", name, config, *shape]
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{model.preset}-{precision}-{name}.log"
        # torch.compile starts without what an earlier run has compiled.
        cache = LOGS / "inductor"
        shutil.rmtree(cache, ignore_errors=True)
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "TORCHINDUCTOR_CACHE_DIR": str(cache),
                                    "TOKENIZERS_PARALLELISM": "false"}
        if name == "jax":
            environment["PYTHONPATH"] = os.pathsep.join([str(JAX), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.launched_at = time.monotonic()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            env=environment, cwd=ROOT, text=True, bufsize=1)
        greeting = self.receive()
        if "unavailable" in greeting:
            self.close()
            raise Unavailable(greeting["unavailable"])
        self.imported_at = greeting["imported_at"]

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            raise RunnerFailed(f"{lines[-1] if lines else 'ended without a word'} (all of it: {self.log})")
        return json.loads(line)

    def ask(self, command):
        try:
            self.process.stdin.write(command + "\n")
        except BrokenPipeError:
            pass  # it has ended: receive() says why
        return self.receive()

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # the end of its input is the end of its work
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Results:
    """The rows of bench.json, in the order in which they were measured."""

    def __init__(self):
        self.rows = []

    def add(self, model, precision, runner, metric, value, unit):
        self.rows.append(dict(model=model, precision=precision, runner=runner, metric=metric, value=value, unit=unit))

    def get(self, model, precision, runner, metric):
        for row in self.rows:
            if (row["model"], row["precision"], row["runner"], row["metric"]) == (model, precision, runner, metric):
                return row["value"]
        return None

    def save(self):
        RESULT.parent.mkdir(exist_ok=True)
        new = RESULT.with_suffix(".json.new")
        new.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in self.rows) + "\n]\n")
        new.replace(RESULT)


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def spread(seconds):
    """Interquartile range over the median."""
    if len(seconds) < 2:
        return 0.0
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / statistics.median(seconds)


class Comparison:
    """All runners on one model in one precision."""

    def __init__(self, model, precision, names, rounds, steps, results):
        self.model, self.precision, self.names = model, precision, names
        self.rounds, self.steps, self.results = rounds, steps, results
        self.failed = False
        self.first_losses = {}  # by runner: after two steps, and after the first warm ones

    def say(self, text):
        say(f"{self.model.preset} {self.precision}: {text}")

    def add(self, runner, metric, value, unit):
        self.results.add(self.model.preset, self.precision, runner, metric, value, unit)

    def run(self):
        """True when no runner broke. The paired runner comes last: it holds two models."""
        for names in ([n for n in self.names if n != "stepc-paired"], [n for n in self.names if n == "stepc-paired"]):
            self.run_interleaved(names)
        return not self.failed

    def attempt(self, runners, name, action):
        """Drops the runner when it breaks; the others go on."""
        try:
            action()
        except Unavailable as error:
            self.add(name, "unavailable", str(error), "text")
            self.say(f"{TITLES[name]}: n/a: {error}")
        except (RunnerFailed, OSError) as error:
            self.failed = True
            self.say(f"{name} failed: {error}")
            if name in runners:
                runners.pop(name).close()

    def run_interleaved(self, names):
        runners = {}
        try:
            for name in names:
                self.attempt(runners, name, lambda: self.start(runners, name))
            rounds = {name: [] for name in runners}
            for index in range(self.rounds):
                for name in list(runners):
                    self.attempt(runners, name, lambda: rounds[name].append(runners[name].ask(f"run {self.steps}")))
                times = ", ".join(f"{n} {statistics.median(rounds[n][-1]['seconds']):.4g} s" for n in runners)
                if runners:
                    self.say(f"round {index + 1} of {self.rounds}: {times}")
            for name in list(runners):
                self.attempt(runners, name, lambda: self.finish(runners[name], rounds))
        finally:
            for runner in runners.values():
                runner.close()

    def start(self, runners, name):
        self.say(f"starting {TITLES[name]}")
        runner = runners[name] = Runner(name, self.model, self.precision, config_of(self.model))
        first = runner.ask("run 2")
        if name != "stepc-paired":  # which builds two models and runs four steps here
            self.add(name, "import_time", runner.imported_at - runner.launched_at, "s")
            self.add(name, "first_step_time", first["seconds"][0], "s")
            self.add(name, "time_to_second_step", first["finished_at"] - runner.imported_at, "s")
        warm = WARM_STEPS
        last = runner.ask(f"run {WARM_STEPS}")
        self.first_losses[name] = (first["loss"], last["loss"])
        if name == "jax" and "eager" in self.first_losses:
            self.expect_losses_of_eager(name)
        while not last.get("replaying", True) and warm < MOST_WARM_STEPS:
            last = runner.ask("run 1")
            warm += 1
        if not last.get("replaying", True):
            self.say(f"{TITLES[name]} does not replay after {2 + warm} steps: what follows are eager steps")

    def expect_losses_of_eager(self, name):
        pairs = list(zip(self.first_losses[name], self.first_losses["eager"]))
        distances = [abs(loss - eager) / abs(eager) for loss, eager in pairs]
        self.add(name, "loss_distance_from_eager", max(distances), "ratio")
        for (loss, eager), distance in zip(pairs, distances):
            if not distance <= LOSS_TOLERANCE[self.precision]:
                raise RunnerFailed(f"its loss is {loss:.7g} where eager's is {eager:.7g}: that is not the same training")

    def finish(self, runner, rounds):
        answers = rounds[runner.name]
        self.add_times(runner.name, answers, "seconds")
        self.add(runner.name, "loss", answers[-1]["loss"], "nats")
        if runner.name == "stepc-paired":
            self.add_times("stepc-eager", answers, "eager_seconds")
            pairs = [pair for answer in answers for pair in zip(answer["eager_seconds"], answer["seconds"])]
            self.add(runner.name, "speed_over_cpp_eager", statistics.median(e / s for e, s in pairs), "ratio")
            return
        if len(rounds.get("eager", ())) == len(answers):
            ratios = [statistics.median(eager["seconds"]) / statistics.median(answer["seconds"])
                      for eager, answer in zip(rounds["eager"], answers)]
            self.add(runner.name, "speed_over_eager", statistics.median(ratios), "ratio")
        for metric, value in runner.ask("memory").items():
            unit = "s" if metric.endswith("seconds") else "bytes" if metric.endswith("bytes") else "count"
            self.add(runner.name, metric, value, unit)

    def add_times(self, name, answers, key):
        seconds = [second for answer in answers for second in answer[key]]
        self.add(name, "step_time", statistics.median(seconds), "s")
        self.add(name, "step_time_best", min(seconds), "s")
        self.add(name, "step_time_spread", spread(seconds), "ratio")
        self.add(name, "steps", len(seconds), "count")


def config_of(model):
    """The config.json of the C++ preset, so that all runners build the same model."""
    return subprocess.run([BUILD / "stepc_runner", "config", model.preset], check=True, text=True,
                          capture_output=True).stdout


def start_of(model, config):
    """A file with eager's weights and batches, for a runner that cannot make them itself."""
    path = LOGS / f"{model.preset}-start.npz"
    LOGS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, ROOT / "benchmarks" / "torch_runner.py", "start", path, config, str(model.batch), str(model.seq)]
    made = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise RunnerFailed(f"no weights to start from: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
    return path


def measure_planning(results):
    lines = subprocess.run([BUILD / "plan_benchmark"], check=True, text=True, capture_output=True).stdout.splitlines()
    for line in map(json.loads, lines):
        name = f"layout of a {line['kind']}"
        results.add(name, "-", "stepc", "intervals", line["intervals"], "count")
        results.add(name, "-", "stepc", "planning_time", line["seconds"], "s")
        results.add(name, "-", "stepc", "over_lower_bound", line["over_lower_bound"], "ratio")


COLUMNS = (("s/step", "step_time", lambda v: f"{v:.4g}"),
           ("spread", "step_time_spread", lambda v: f"{100 * v:.0f}%"),
           ("vs eager", "speed_over_eager", lambda v: f"{v:.2f}x"),
           ("vs C++ eager", "speed_over_cpp_eager", lambda v: f"{v:.2f}x"),
           ("2nd step s", "time_to_second_step", lambda v: f"{v:.1f}"),
           ("imports s", "import_time", lambda v: f"{v:.1f}"),
           ("planned GB", "planned_peak_bytes", lambda v: f"{v / 1e9:.3f}"),
           ("live GB", "measured_peak_bytes", lambda v: f"{v / 1e9:.3f}"),
           ("RSS GB", "steady_rss_bytes", lambda v: f"{v / 1e9:.2f}"),
           ("promised", "promised_rss_bytes", lambda v: f"{v / 1e9:.2f}"),
           ("peak RSS", "peak_rss_bytes", lambda v: f"{v / 1e9:.2f}"))


def print_table(results):
    table = [["model", "precision", "runner", *(title for title, _, _ in COLUMNS)]]
    absent = {}
    for model in MODELS:
        for precision in model.precisions:
            for runner in ("eager", "compile", "jax", "stepc", "stepc-eager", "stepc-paired"):
                if reason := results.get(model.preset, precision, runner, "unavailable"):
                    table.append([model.preset, precision, TITLES[runner], "n/a"] + [""] * (len(COLUMNS) - 1))
                    absent[TITLES[runner]] = reason
                if results.get(model.preset, precision, runner, "step_time") is None:
                    continue
                values = [(results.get(model.preset, precision, runner, metric), form) for _, metric, form in COLUMNS]
                table.append([model.preset, precision, TITLES[runner],
                              *("" if value is None else form(value) for value, form in values)])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    print(f"\n{cpu_name()}, {THREADS} threads")
    previous = None
    for row in table:
        if row[:2] != previous:
            print()
        previous = row[:2]
        print("  ".join(cell.ljust(width) if i < 3 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())
    print()
    for title, reason in absent.items():
        print(f"{title}: n/a: {reason}")
    for row in results.rows:
        if row["metric"] == "planning_time":
            count, over = (results.get(row["model"], "-", "stepc", m) for m in ("intervals", "over_lower_bound"))
            print(f"{row['model']}: {count} intervals in {row['value']:.3f} s, {over:.4f} of the lower bound")
    print(f"all values: {RESULT.relative_to(ROOT)}")


def cpu_name():
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown CPU"


def names_from(parser, text, known, what):
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"there is no {what} '{name}'; known are {', '.join(known)}")
    return [name for name in known if name in names]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    presets = [model.preset for model in MODELS]
    parser.add_argument("--quick", action="store_true", help="small models and fewer rounds: a few minutes")
    parser.add_argument("--models", help=f"of {','.join(presets)}; default all")
    parser.add_argument("--runners", default=",".join(RUNNERS), help=f"of {','.join(RUNNERS)}; default all")
    parser.add_argument("--steps", type=int, help="measured steps for each runner, spread over the rounds")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error("--steps must be at least 1")
    default = presets[:2] if arguments.quick else presets
    arguments.models = names_from(parser, arguments.models, presets, "model") if arguments.models else default
    arguments.runners = names_from(parser, arguments.runners, RUNNERS, "runner")
    return arguments


def main():
    arguments = parse_arguments()
    if not (BUILD / "stepc_runner").is_file():
        sys.exit("bench: build/release/benchmarks/stepc_runner is missing; `make bench` builds it")
    results = Results()
    try:
        intact = measure(arguments, results)
    finally:
        results.save()
    print_table(results)
    return 0 if intact else 1


def measure(arguments, results):
    """True when no runner broke."""
    intact = True
    measure_planning(results)
    for model in (m for m in MODELS if m.preset in arguments.models):
        rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
        steps = model.steps_per_round
        if arguments.steps:
            rounds = min(rounds, arguments.steps)
            steps = math.ceil(arguments.steps / rounds)
        for precision in model.precisions:
            intact &= Comparison(model, precision, arguments.runners, rounds, steps, results).run()
    return intact


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; what was measured so far is in build/bench.json")
