"""Eager, exact and fast mode of unmodified transformers Llama training, interleaved call by call in one process.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/mode_benchmark.py [--large] [--steps N]

Prints one row a model, precision and form: median seconds of each, and the median of the paired ratios to eager. A step
is forward, loss, backward, clipping and fused AdamW: one accelerated function, or a loop that stays as it is over an
accelerated model and optimizer, or transformers' Trainer with these. Trainers run one after the other, and their ratios
are those of the medians. --large adds the 134M model (some minutes).
"""

import argparse
import itertools
import statistics
import tempfile
import time

import torch
import transformers

import stepc

# name, layers, width, vocabulary, batch, sequence, precisions, forms
MODELS = (
    ("1.8M", 4, 128, 4096, 4, 128, ("f32",), ("step",)),
    ("10M", 8, 256, 8192, 8, 256, ("f32", "bf16"), ("step", "loop", "trainer")),
    ("134M", 12, 768, 32000, 4, 512, ("f32", "bf16", "autocast"), ("step",)),
)
MODES = ("eager", "exact", "fast")
WARM_UP = 5  # a first look at a loop, recordings, and the first replay


def build(layers, width, vocabulary, precision):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers, num_attention_heads=max(4, width // 64), use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_of(model, optimizer, precision):
    def train_step(ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step


def check(stats, mode, steps):
    assert stats["replays"] >= steps and not stats["warnings"], stats
    assert mode != "fast" or (stats["graph_nodes"] > 0 and stats["recorded_replays"] == 0), stats


def measure_interleaved(form, shape, precision, steps):
    layers, width, vocabulary, batch, sequence = shape
    runs, accelerated = {}, {}
    for mode in MODES:
        config = stepc.Config(mode=mode, verify="off")
        model, optimizer = build(layers, width, vocabulary, precision)
        if mode != "eager" and form == "loop":
            accelerated[mode], optimizer = stepc.accelerate(model, optimizer, config=config)
        runs[mode] = step_of(model, optimizer, precision)
        if mode != "eager" and form == "step":
            accelerated[mode] = runs[mode] = stepc.accelerate(runs[mode], config=config)
    batches = [torch.randint(vocabulary, (batch, sequence)) for _ in range(4)]
    seconds = {mode: [] for mode in runs}
    for i in range(WARM_UP + steps):
        for mode, step in runs.items():
            begin = time.perf_counter()
            step(batches[i % len(batches)])
            if i >= WARM_UP:
                seconds[mode].append(time.perf_counter() - begin)
    stats = {mode: stepc.stats(one) if form == "loop" else one.stats for mode, one in accelerated.items()}
    for mode, one in stats.items():
        check(one, mode, steps)
    ratios = {mode: statistics.median(a / b for a, b in zip(seconds["eager"], seconds[mode])) for mode in seconds}
    return {mode: statistics.median(seconds[mode]) for mode in seconds}, ratios, stats["fast"]


class Clock(transformers.TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.begin = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.begin)


def measure_trainer(shape, precision, steps):
    layers, width, vocabulary, batch, sequence = shape
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(vocabulary, (4 * batch, sequence))]
    medians = {}
    for mode in MODES:
        model, optimizer = build(layers, width, vocabulary, precision)
        if mode != "eager":
            config = stepc.Config(mode=mode, verify="off")
            model, optimizer = stepc.accelerate(model, optimizer, config=config)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder, max_steps=WARM_UP + steps, per_device_train_batch_size=batch, use_cpu=True,
                report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
            )
            transformers.Trainer(model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, scheduler),
                                 callbacks=[clock]).train()
        medians[mode] = statistics.median(clock.seconds[WARM_UP:])
        if mode != "eager":
            check(stepc.stats(model), mode, steps)
    return medians, {mode: medians["eager"] / seconds for mode, seconds in medians.items()}, stepc.stats(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the 134M model too")
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each (12)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"{'model':<8} {'precision':<9} {'form':<8} {'eager s':>9} {'exact s':>9} {'fast s':>9} {'exact x':>8} "
          f"{'fast x':>7}  planning s")
    for name, *shape, precisions, forms in MODELS:
        if name == "134M" and not arguments.large:
            continue
        for precision, form in itertools.product(precisions, forms):
            if form == "trainer":
                median, ratio, stats = measure_trainer(shape, precision, arguments.steps)
            else:
                median, ratio, stats = measure_interleaved(form, shape, precision, arguments.steps)
            print(f"{name:<8} {precision:<9} {form:<8} {median['eager']:>9.4f} {median['exact']:>9.4f} "
                  f"{median['fast']:>9.4f} {ratio['exact']:>8.2f} {ratio['fast']:>7.2f}  "
                  f"{stats['planning_seconds']:.2f}", flush=True)


if __name__ == "__main__":
    main()
