"""Steps on a GPU: eager, torch.compile if wanted, and stepc, interleaved in one process.

    python benchmarks/gpu_step_benchmark.py [--models small 125m ...] [--kinds eager compile exact ...] [--steps 20] [--out FILE]

A row, as JSON: milliseconds a step (the median), peak memory in MiB as PyTorch and the plan count it, and whether the losses of
all steps are eager's, bit by bit.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

import stepc

# width, layers, heads, vocabulary, batch, tokens; the last two have the sizes of BERT-base, and of ViT-S (patches as tokens)
MODELS = {
    "tiny": (128, 2, 4, 512, 2, 64),
    "small": (256, 6, 4, 8192, 4, 128),
    "125m-1x512": (768, 12, 12, 32000, 1, 512),
    "125m": (768, 12, 12, 32000, 8, 1024),
    "1b": (2048, 16, 16, 32000, 4, 1024),
    "bert-base": (768, 12, 12, 30522, 4, 128),
    "vit-s": (384, 12, 6, 1000, 8, 197),
}
ENCODERS = {"bert-base", "vit-s"}


class Block(nn.Module):
    def __init__(self, width, heads, is_causal):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, width, layers, heads, vocabulary, is_causal=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, is_causal) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Runner:
    def __init__(self, kind, model, dtype):
        width, layers, heads, vocabulary, self.batch, self.tokens = MODELS[model]
        self.vocabulary = vocabulary
        torch.manual_seed(0)
        self.model = Decoder(width, layers, heads, vocabulary, model not in ENCODERS).to("cuda", dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        forward = torch.compile(self.model) if kind == "compile" else self.model

        def step(ids):
            logits = forward(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()

        mode = kind.removesuffix("+graphs")
        if mode in ("exact", "fast"):
            step = stepc.accelerate(step, config=stepc.Config(mode=mode, device_graphs=mode != kind))
        self.step = step
        self.generator = torch.Generator().manual_seed(3)
        self.times, self.losses, self.peak = [], [], 0

    def run(self, counts):
        ids = torch.randint(self.vocabulary, (self.batch, self.tokens + 1), generator=self.generator).cuda()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        loss = self.step(ids)
        torch.cuda.synchronize()
        if counts:
            self.times.append(1e3 * (time.perf_counter() - begin))
            self.peak = torch.cuda.max_memory_allocated() / 2**20
        self.losses.append(loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["tiny", "small", "125m-1x512", "125m"], choices=MODELS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kinds", nargs="+", default=["eager", "exact", "exact+graphs"],
                        help="of eager, compile, exact, fast, exact+graphs, fast+graphs")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = []
    for model in options.models:
        runners = {kind: Runner(kind, model, getattr(torch, options.dtype)) for kind in options.kinds}
        for number in range(options.warm + options.steps):
            for runner in runners.values():
                runner.run(number >= options.warm)
        eager = runners.get("eager")
        for kind, runner in runners.items():
            row = {"model": model, "dtype": options.dtype, "kind": kind, "ms": round(statistics.median(runner.times), 3),
                   "peak_mib": round(runner.peak, 1), "card": torch.cuda.get_device_name()}
            if eager is not None and runner is not eager:
                row["times_eager"] = round(statistics.median(eager.times) / row["ms"], 3)
                row["bits"] = runner.losses == eager.losses
            if kind.removesuffix("+graphs") in ("exact", "fast"):
                stats = runner.step.stats
                row |= {name: stats[name] for name in ("replays", "recordings", "unplanned_allocations", "planned_peak_bytes")}
                row["graphs"] = stats.get("device_graphs")
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.out:
                with open(options.out, "w") as out:
                    json.dump(rows, out, indent=1)
        del runners, eager


if __name__ == "__main__":
    main()
