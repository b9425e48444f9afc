#!/usr/bin/env python3
"""Sequences that one process has no room for: each is split over ranks (parallel.cp), which all keep to the same budget.

    benchmarks/long_context_benchmark.py [--ranks 4] [--seq 32768] [--budget 400MiB] [--steps 3] [--context auto]

The 1.8M Llama in float32. For one rank there is no such plan, all activations recomputed; the ranks train, and say what a
step takes and what each of them was planned to hold and held.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

STEPC = pathlib.Path(__file__).resolve().parent.parent / "build" / "release" / "src" / "stepc"


def write_text(path, size):
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 8))) for _ in range(500)]
    path.write_text(" ".join(draw.choices(words, k=size // 4))[:size])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"ranks": 4, "seq": 32768, "budget": "400MiB", "steps": 3, "context": "auto"}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([STEPC, "init", "model", "--preset", "bench-1.8m"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        config = folder / "model" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": options.seq}))
        write_text(folder / "text.txt", (options.steps + 2) * options.seq)
        (folder / "run.toml").write_text(f"""
[model]
path = "model"
compute = "float32"
[data]
train = ["text.txt"]
seq_len = {options.seq}
eval_fraction = 0.0
[train]
steps = {options.steps}
batch_size = 1
threads = 1
[memory]
budget = "{options.budget}"
[output]
dir = "out"
log_every = 1
""")
        alone = subprocess.run([STEPC, "memory", "run.toml"], cwd=folder, capture_output=True, text=True)
        refused = [line for line in (alone.stdout + alone.stderr).splitlines() if "no plan needs less" in line]
        print("one rank:", *refused or ["has room for the sequence"], flush=True)
        split = ["--ranks", str(options.ranks), f"--parallel.cp={options.ranks}", f"--parallel.context={options.context}"]
        ranks = subprocess.run([STEPC, "train", "run.toml", *split], cwd=folder)
    # The row says something only where one rank has no plan and several do train.
    sys.exit(0 if refused and ranks.returncode == 0 else 1)


if __name__ == "__main__":
    main()
