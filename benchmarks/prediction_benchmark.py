"""Predicted beside measured step times: every row is planned, priced and run, and this machine calibrated, in turn.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/prediction_benchmark.py [--large] [--all] [--held-out]
        [--models GLOB,...]

One row a model, precision and mode: what the plan's Schedule should take with the calibration alone, the least of six
medians of replays, in turn with those of other rows (so calibration measures, too: what else the machine does for a
moment is not the step's), the error, and the classes of instructions that are more than 25 % off and at least 2 % of the
step. Nothing is fitted to a row. --large adds the 134M model (some minutes), --all the models of the parity tests
(tests/python/models.py) in both precisions: steps of a few milliseconds, where what an instruction costs whatever its size is
most of the time. --held-out adds others of that size (held_out_models.py), by which nothing was chosen.

--keep DIR keeps kernels, rows and Perfetto traces of each row's instructions: rows that are there are not
measured again, so that --seconds N can cut a run into pieces; but those are that were measured while others took more than a
twentieth of the machine.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
import transformers

import stepc
from held_out_models import HELD_OUT, Classifier

MODES = ("fast", "exact")
BURSTS, BURST_SECONDS, FEWEST_STEPS, MOST_STEPS = 6, 0.1, 2, 200
ENOUGH_SECONDS = 30  # of a model's bursts
TOO_BUSY = 0.05  # a machine of whose processors others take so much is not measured
AT_ONCE = 6  # models that are measured beside each other
STEPS_BEFORE_PROFILE = 5


def llama(layers, width, vocabulary, batch, sequence, precision):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 8 // 3 // 32 * 32, use_cache=False,
        num_hidden_layers=layers, num_attention_heads=max(4, width // 64),
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    ids = torch.randint(vocabulary, (batch, sequence))
    return model, {"input_ids": ids, "labels": ids}


def gpt2():
    config = transformers.GPT2Config(vocab_size=5000, n_positions=256, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    ids = torch.randint(5000, (4, 128))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def bert():
    config = transformers.BertConfig(vocab_size=5000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=1024)
    ids = torch.randint(5000, (8, 64))
    return transformers.BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def vit():
    config = transformers.ViTConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768,
                                    image_size=64, patch_size=8)
    batch = {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.randint(2, (8,))}
    return transformers.ViTForImageClassification(config), batch


def t5():
    config = transformers.T5Config(vocab_size=2000, d_model=128, d_kv=32, d_ff=512, num_layers=3, num_heads=4,
                                   use_cache=False, decoder_start_token_id=0)
    batch = {"input_ids": torch.randint(2000, (4, 64)), "labels": torch.randint(2000, (4, 32))}
    return transformers.T5ForConditionalGeneration(config), batch


def resnet():
    batch = {"x": torch.randn(8, 3, 64, 64), "labels": torch.randint(10, (8,))}
    return Classifier(torchvision.models.resnet18(num_classes=10)), batch


def mlp():
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    return Classifier(torch.nn.Sequential(*layers)), {"x": torch.randn(64, 512), "labels": torch.randint(10, (64,))}


ROWS = {
    "llama 1.8M f32": lambda: llama(4, 128, 4096, 4, 128, "f32"),
    "llama 10M f32": lambda: llama(8, 256, 8192, 8, 256, "f32"),
    "llama 10M bf16": lambda: llama(8, 256, 8192, 8, 256, "bf16"),
    "llama 10M autocast": lambda: llama(8, 256, 8192, 8, 256, "f32"),
    "gpt2": gpt2, "bert": bert, "vit": vit, "t5": t5, "resnet18": resnet, "mlp": mlp,
}
LARGE = {
    "llama 134M f32": lambda: llama(12, 768, 32000, 4, 512, "f32"),
    "llama 134M bf16": lambda: llama(12, 768, 32000, 4, 512, "bf16"),
    "llama 134M autocast": lambda: llama(12, 768, 32000, 4, 512, "f32"),
}


class WithLoss(torch.nn.Module):
    """A model of the parity tests with its loss, which may be the test's own."""

    def __init__(self, net, loss_of):
        super().__init__()
        self.net, self.loss_of = net, loss_of

    def forward(self, **batch):
        return {"loss": self.loss_of(self.net, batch)}


def parity_rows():
    from harness import source_of
    from models import MODELS, cast

    def build(model):
        return WithLoss(model.build(), model.loss_of), model.batch(source_of(0), model.masks)

    return in_both_precisions({name: lambda model=model: build(model) for name, model in MODELS.items()})


def in_both_precisions(builds):
    """Of functions that make a model and its batch in f32."""
    from models import cast

    def build(make, dtype):
        module, batch = make()
        return module.train().to(dtype), cast(batch, dtype)

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    return {f"{name} {precision}": lambda make=make, dtype=dtype: build(make, dtype)
            for name, make in builds.items() for precision, dtype in dtypes.items()}


class Others:
    """What share of this machine's processors others take: processes beside this one, and whoever else its host runs."""

    def __init__(self):
        self.begin = self.times()

    @staticmethod
    def times():
        user, nice, system, idle, waiting, irq, soft, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
        own, ticks = os.times(), os.sysconf("SC_CLK_TCK")
        busy = (user + nice + system + irq + soft + stolen) / ticks
        return busy - own.user - own.system, busy + (idle + waiting) / ticks

    def share(self):
        others, whole = (now - then for now, then in zip(self.times(), self.begin))
        return others / max(whole, 1e-9)


def median_of_replays(step, batch):
    """Of a burst; None: it did not replay."""
    seconds, end = [], time.perf_counter() + BURST_SECONDS
    for _ in range(MOST_STEPS):
        before, replays = step.stats["execute_seconds"], step.stats["replays"]
        step(batch)
        if step.stats["replays"] == replays + 1:
            seconds.append(step.stats["execute_seconds"] - before)
        if time.perf_counter() > end and len(seconds) >= FEWEST_STEPS:
            break
    return statistics.median(seconds) if seconds else None


def accelerated(name, build, config):
    """The step and its batch, replaying."""
    torch.manual_seed(0)
    model, batch = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train_step(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=name.endswith("autocast")):
            loss = model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = stepc.accelerate(train_step, config=config)
    for _ in range(4):
        step(batch)
    return step, batch


def profile_of(step, batch, trace):
    """The classes that are off in the shortest of some profiled steps, which `trace` gets. Each is the last of several in
    a row, as the steps are that are measured: what has run a moment ago has its code and data at hand."""
    profiles = []
    for _ in range(BURSTS):
        with step.profile(trace) as profile:
            for _ in range(STEPS_BEFORE_PROFILE):
                step(batch)
        profiles.append((json.loads(trace.read_text())["otherData"]["step_us"], profile))
    _, profile = min(profiles, key=lambda one: one[0])
    profile.save(trace)
    off = [line for line in str(profile).splitlines() if line.startswith("more than 25 % off")]
    return off[0].partition(": ")[2] if off else ""


def measure(names, rows, directory):
    """Of some models by name and mode: predicted and measured seconds, measured over planned memory, classes that are off,
    the share of the machine that others took; [] where the step did not replay.

    What a shared machine can do changes within minutes: it is calibrated between the bursts of these rows, and once more
    for those of the next.
    """
    config = {mode: stepc.Config(mode=mode, verify="off", kernel_directory=directory) for mode in MODES}
    rows = {(name, mode): rows[name] for name in names for mode in MODES}
    steps = {(name, mode): accelerated(name, build, config[mode]) for (name, mode), build in rows.items()}
    seconds, others = {row: [] for row in rows}, Others()

    def run_bursts():
        begin = time.perf_counter()
        for _ in range(BURSTS // 2):
            for row, (step, batch) in steps.items():
                seconds[row].append(median_of_replays(step, batch))
            if time.perf_counter() - begin > ENOUGH_SECONDS:
                break

    run_bursts()
    stepc.calibrate(config[MODES[0]])
    run_bursts()
    share, found = others.share(), {}
    for (name, mode), build in rows.items():
        replayed = [burst for burst in seconds[name, mode] if burst is not None]
        del steps[name, mode]
        if not replayed:
            found[name, mode] = []
            continue
        step, batch = accelerated(name, build, config[mode])  # its plan is priced by what is known now
        off = profile_of(step, batch, directory / f"{name.replace(' ', '_')}_{mode}.json")
        memory = step.stats["measured_peak_bytes"] / max(step.stats["planned_peak_bytes"], 1)
        found[name, mode] = [step.predicted_seconds, min(replayed), memory, off, share]
    return found


def line(name, mode, predicted, measured, memory, off, others):
    busy = f"others took {others:.0%} of the machine; " if others > TOO_BUSY else ""
    return (f"{name:24}{mode:7}{predicted * 1e3:9.2f} ms{measured * 1e3:9.2f} ms{predicted / measured - 1:+8.0%}"
            f"{memory:8.3f}  {busy}{off}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--models", help="patterns of names, separated by commas")
    parser.add_argument("--keep", type=Path, help="directory")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after so many")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python"))
    rows = (ROWS | (LARGE if arguments.large else {}) | (parity_rows() if arguments.all else {})
            | (in_both_precisions(HELD_OUT) if arguments.held_out else {}))
    patterns = (arguments.models or "*").split(",")
    names = [name for name in rows if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if not names:
        sys.exit(f"no model is named {arguments.models}; there are {', '.join(rows)}")
    torch.set_num_threads(2)
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        directory = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        kept = directory / "rows.jsonl"
        rows_kept = map(json.loads, kept.read_text().splitlines() if kept.exists() else [])
        known = {(row[0], row[1]): row for row in rows_kept if len(row) == 2 or row[-1] <= TOO_BUSY}
        print(f"{'model':24}{'mode':7}{'predicted':>12}{'measured':>12}{'error':>8}{'memory':>8}  more than 25 % off")
        errors, not_replayed, left = [], [], 0
        for group in (names[first:first + AT_ONCE] for first in range(0, len(names), AT_ONCE)):
            missing = [name for name in group if any((name, mode) not in known for mode in MODES)]
            if missing and time.perf_counter() - begin > arguments.seconds:
                left += len(missing)
                group = [name for name in group if name not in missing]
            elif missing:
                for row, found in measure(missing, rows, directory).items():
                    known[row] = [*row, *found]
                    with kept.open("a") as file:
                        file.write(json.dumps(known[row]) + "\n")
            for row in (known[name, mode] for name in group for mode in MODES):
                if len(row) == 2:
                    not_replayed.append(f"{row[0]} ({row[1]})")
                    continue
                errors.append(abs(row[2] / row[3] - 1))
                print(line(*row), flush=True)
    if errors:
        print(f"\nerror of the step time: median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
              "; memory: measured over planned")
    if left:
        print(f"{left} models are left for the next run")
    if not_replayed:
        sys.exit(f"not replayed: {', '.join(not_replayed)}")


if __name__ == "__main__":
    main()
