#!/usr/bin/env python3
"""What a CUDA device does with a training step of Llamas under PyTorch eager and torch.compile: what stepc must beat there.

    benchmarks/gpu_peers.py [--models NAME,...] [--runners NAME,...] [--seconds N] [--json FILE]

A step is forward, cross-entropy, backward, clipping to norm 1 and fused AdamW, all in bfloat16, on random tokens.
Each row is a process of its own. Needs torch with CUDA alone: the model is written out here, as transformers has it.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

# layers, width, heads, key-value heads, MLP width, vocabulary; batch x seq
MODELS = {"llama-125m": (12, 768, 12, 12, 2048, 32000, 16, 1024), "llama-1b": (16, 2048, 32, 8, 8192, 128256, 4, 2048),
          "llama-3b": (28, 3072, 24, 8, 8192, 128256, 2, 2048)}
RUNNERS = ("eager", "compile")
WARM_STEPS, MOST_STEPS = 5, 40


class Block(nn.Module):
    def __init__(self, width, heads, key_heads, mlp):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        linear = lambda given, made: nn.Linear(given, made, bias=False)  # noqa: E731
        self.norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = linear(width, width), linear(width, width)
        self.k, self.v = linear(width, key_heads * self.size), linear(width, key_heads * self.size)
        self.gate, self.up, self.down = linear(width, mlp), linear(width, mlp), linear(mlp, width)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        h = self.norm(x)
        q, k, v = (made.view(batch, length, -1, self.size).transpose(1, 2) for made in (self.q(h), self.k(h), self.v(h)))
        mixed = functional.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True,
                                                        enable_gqa=self.heads != self.key_heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Llama(nn.Module):
    def __init__(self, layers, width, heads, key_heads, mlp, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, key_heads, mlp) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        self.size = width // heads

    def forward(self, ids):
        x = self.embed(ids)
        places = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        rates = 500000.0 ** (-torch.arange(0, self.size, 2, device=ids.device, dtype=torch.float32) / self.size)
        angles = torch.outer(places, rates).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def flops_of(model, layers, width, batch, seq):
    """Of a step: 6 a parameter and token (the embedding is the head, whose product is one), and causal attention."""
    parameters = sum(one.numel() for one in model.parameters() if one.dim() == 2)
    return 6 * parameters * batch * seq + 6 * layers * batch * seq * seq * width


def measure(name, runner, seconds):
    *shape, batch, seq = MODELS[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(*shape).bfloat16()
        data = [torch.randint(shape[-1], (batch, seq)) for _ in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if runner == "compile" else model
    times, losses = [], []
    begin = time.monotonic()
    while len(times) < MOST_STEPS and (len(times) < WARM_STEPS + 3 or sum(times[WARM_STEPS:]) < seconds):
        torch.cuda.synchronize()
        if len(times) == WARM_STEPS:
            torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        loss = forward(data[len(times) % len(data)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
        if len(times) == 2:
            second = time.monotonic() - begin
        losses.append(loss.item())
    step = statistics.median(times[WARM_STEPS:])
    return dict(device=torch.cuda.get_device_name(), model=name, runner=runner, batch=batch, seq=seq,
                parameters=sum(one.numel() for one in model.parameters()), step_ms=1e3 * step, steps=len(times) - WARM_STEPS,
                spread=(max(times[WARM_STEPS:]) - min(times[WARM_STEPS:])) / step, tokens_per_s=batch * seq / step,
                tflops=flops_of(model, shape[0], shape[1], batch, seq) / step / 1e12,
                peak_gb=torch.cuda.max_memory_allocated() / 1e9, reserved_gb=torch.cuda.max_memory_reserved() / 1e9,
                second_step_s=second, loss=losses[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--runners", default=",".join(RUNNERS))
    parser.add_argument("--seconds", type=float, default=4, help="of measured steps a row")
    parser.add_argument("--json", help="where to write the rows")
    parser.add_argument("--row", nargs=2, metavar=("MODEL", "RUNNER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(*options.row, options.seconds)))
        return
    if not torch.cuda.is_available():
        sys.exit("gpu_peers.py: no CUDA device")
    rows = []
    for name in options.models.split(","):
        for runner in options.runners.split(","):
            command = [sys.executable, __file__, "--seconds", str(options.seconds), "--row", name, runner]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                sys.exit(f"gpu_peers.py: {name} {runner}: {result.stderr.strip().splitlines()[-1]}")
            row = json.loads(result.stdout.splitlines()[-1])
            rows.append(row)
            print("{model:11} {runner:8} {batch} x {seq}  {step_ms:8.2f} ms  {tokens_per_s:9.0f} tokens/s  {tflops:5.0f} TFLOP/s  "
                  "peak {peak_gb:6.2f} GB  2nd step {second_step_s:5.1f} s  loss {loss:.3f}  {steps} steps, spread "
                  "{spread:.1%}".format(**row), flush=True)
    if rows:
        print(rows[0]["device"])
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
