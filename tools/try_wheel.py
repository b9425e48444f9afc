"""What an installed package must do, run by its interpreter in an empty folder: tools/try_wheel runs it in a bare Debian."""

import json
import pathlib
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import torch

import stepc

COMMAND = pathlib.Path(sys.executable).parent / "stepc"


def run(*arguments):
    print("$ stepc", *arguments, flush=True)
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    sys.stdout.write("".join(f"    {line}\n" for line in done.stdout.splitlines()[-6:]))
    if done.returncode != 0:
        sys.exit(f"exit status {done.returncode}: {done.stderr}")
    return done.stdout


def check(holds, what):
    if not holds:
        sys.exit(f"try_wheel: {what}")
    print("ok:", what, flush=True)


def accelerate():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    fast = stepc.accelerate(step, model, optimizer)
    x, y = torch.randn(32, 64), torch.randint(8, (32,))
    losses = [float(fast(x, y)) for _ in range(20)]
    check(losses[-1] < losses[0] and fast.stats["replays"] > 10, f"stepc.accelerate: {fast.stats['replays']} of 20 replayed")


def train():
    lines = [f"The {number} sheep of the shepherd went over the hill, and {number + 1} came back." for number in range(4000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), "text.parquet")
    run("init", "model", "--preset", "llama-2m")
    pathlib.Path("run.toml").write_text('[model]\npath = "model"\n[data]\ntrain = ["text.parquet"]\nseq_len = 64\n'
                                        '[train]\nsteps = 12\nbatch_size = 4\n[output]\ndir = "out"\nlog_every = 1\n')
    check("GiB" in run("memory", "run.toml") or "MiB" in run("memory", "run.toml"), "stepc memory prints a plan")
    run("train", "run.toml")
    steps = [json.loads(line) for line in pathlib.Path("out/metrics.jsonl").read_text().splitlines()]
    check(sum("loss" in step for step in steps) == 12, "stepc train: 12 steps on rows of a Parquet file")
    check(pathlib.Path("out/events.out.tfevents.stepc").stat().st_size > 0, "TensorBoard's events are there")
    check(pathlib.Path("out/model/model.safetensors").exists() or list(pathlib.Path("out/model").glob("*.safetensors")),
          "the trained model is there")


accelerate()
train()
