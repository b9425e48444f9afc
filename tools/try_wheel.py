"""What an installed package must do, run by its interpreter in an empty folder where no compiler is: tools/try_wheel."""

import json
import pathlib
import shutil
import subprocess
import sys
import warnings

import pyarrow
import pyarrow.parquet
import torch

import stepc


def check(holds, what):
    if not holds:
        sys.exit(f"try_wheel: not so: {what}")
    print("ok:", what, flush=True)


def run(*arguments):
    print("$ stepc", *arguments, flush=True)
    done = subprocess.run(["stepc", *arguments], capture_output=True, text=True)
    sys.stdout.write("".join(f"    {line}\n" for line in done.stdout.splitlines()[-4:]))
    if done.returncode != 0:
        sys.exit(f"try_wheel: exit status {done.returncode}: {done.stderr}")
    return done.stdout


def accelerate():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x, y):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stepc.accelerate(train_step)
    x, y = torch.randn(32, 64), torch.randint(8, (32,))
    losses = [float(step(x, y)) for _ in range(20)]
    replays = step.stats["replays"]
    check(losses[-1] < losses[0] and replays > 10, f"stepc.accelerate: {replays} of 20 steps are replayed")


def refuse():
    """What the library throws is the same error for the module."""
    try:
        stepc.accelerate(lambda: None, config=stepc.Config(max_plans=0))
    except stepc.UserError as error:
        check("max_plans is 0" in str(error), f"a mistake is told in one line: {error}")
    else:
        check(False, "a mistake is told")


def train():
    lines = [f"The {number} sheep of the shepherd went over the hill, and {number + 1} came back." for number in range(4000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), "text.parquet")
    run("init", "model", "--preset", "llama-2m")
    pathlib.Path("run.toml").write_text('[model]\npath = "model"\n[data]\ntrain = ["text.parquet"]\nseq_len = 64\n'
                                        '[train]\nsteps = 12\nbatch_size = 4\n[output]\ndir = "out"\nlog_every = 1\n')
    check("MiB" in run("memory", "run.toml"), "stepc memory says where the bytes of a step go")
    run("train", "run.toml")
    rows = [json.loads(line) for line in pathlib.Path("out/metrics.jsonl").read_text().splitlines()]
    check(sum("loss" in row for row in rows) == 12, "stepc train: 12 steps on the rows of a Parquet file")
    check(pathlib.Path("out/events.out.tfevents.stepc").stat().st_size > 0, "TensorBoard's events are written")
    check(list(pathlib.Path("out/model").glob("*.safetensors")), "the trained model is written")


warnings.simplefilter("error")  # a step that runs eagerly is told by a warning
check(not any(map(shutil.which, ("gcc", "cc", "g++", "c++", "clang", "cmake"))), "no compiler is in reach")
accelerate()
refuse()
train()
