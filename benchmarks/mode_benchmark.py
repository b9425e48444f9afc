"""Eager, exact and fast mode of one unmodified transformers Llama step, interleaved call by call in one process.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/mode_benchmark.py [--large] [--steps N]

Prints one row a model and precision: median seconds of each, and the median of the paired ratios to eager. A step is
forward, loss, backward, clipping and fused AdamW. --large adds the 134M model (some minutes).
"""

import argparse
import statistics
import time

import torch
import transformers

import stepc

# name, layers, width, vocabulary, batch, sequence, precisions
MODELS = (
    ("1.8M", 4, 128, 4096, 4, 128, ("f32",)),
    ("10M", 8, 256, 8192, 8, 256, ("f32", "bf16")),
    ("134M", 12, 768, 32000, 4, 512, ("f32", "bf16", "autocast")),
)
WARM_UP = 4  # recordings, and the first replay


def build(layers, width, vocabulary, precision):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers, num_attention_heads=max(4, width // 64), use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train_step(ids):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step


def measure(layers, width, vocabulary, batch, sequence, precision, steps):
    runs = {"eager": build(layers, width, vocabulary, precision)}
    for mode in ("exact", "fast"):
        config = stepc.Config(mode=mode, verify="off")
        runs[mode] = stepc.accelerate(build(layers, width, vocabulary, precision), config=config)
    batches = [torch.randint(vocabulary, (batch, sequence)) for _ in range(4)]
    seconds = {name: [] for name in runs}
    for i in range(WARM_UP + steps):
        for name, step in runs.items():
            begin = time.perf_counter()
            step(batches[i % len(batches)])
            if i >= WARM_UP:
                seconds[name].append(time.perf_counter() - begin)
    for mode in ("exact", "fast"):
        assert runs[mode].stats["replays"] >= steps and not runs[mode].stats["warnings"], runs[mode].stats
    ratios = {name: statistics.median(a / b for a, b in zip(seconds["eager"], seconds[name])) for name in seconds}
    return {name: statistics.median(seconds[name]) for name in seconds}, ratios, runs["fast"].stats


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the 134M model too")
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each (12)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(f"{'model':<8} {'precision':<9} {'eager s':>9} {'exact s':>9} {'fast s':>9} {'exact x':>8} {'fast x':>7}  "
          "planning s")
    for name, layers, width, vocabulary, batch, sequence, precisions in MODELS:
        if name == "134M" and not arguments.large:
            continue
        for precision in precisions:
            median, ratio, stats = measure(layers, width, vocabulary, batch, sequence, precision, arguments.steps)
            print(f"{name:<8} {precision:<9} {median['eager']:>9.4f} {median['exact']:>9.4f} {median['fast']:>9.4f} "
                  f"{ratio['exact']:>8.2f} {ratio['fast']:>7.2f}  {stats['planning_seconds']:.2f}", flush=True)


if __name__ == "__main__":
    main()
