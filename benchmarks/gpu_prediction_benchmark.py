"""Predicted beside published: eager steps on one NVIDIA H200, planned on this machine, which needs no GPU.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/gpu_prediction_benchmark.py [--target h200] [--json FILE]

The models of benchmarks/gpu_peers.py are captured on the CPU without being run, planned with eager's choices
(mode="exact": the recorded calls, each one kernel) for the target, and priced with its constants, which are printed. The
published rows are those of benchmarks/README.md. No constant is taken from them. Where eager's choice on a GPU is another
than on the CPU, it is made here: RMSNorm is one kernel there. Beside it, the step as stepc plans it in fast mode, for which
nobody has a measurement yet.
"""

import argparse
import json
import sys

import torch
from torch import nn

import stepc
from gpu_peers import MODELS, Llama, flops_of

# ms a step and peak GB of eager PyTorch on one H200 (benchmarks/README.md, "On a CUDA device")
PUBLISHED = {"llama-125m": (48.3, 12.7), "llama-1b": (151.5, 32.3), "llama-3b": (188.2, 37.9)}
WITHIN_TIME, WITHIN_MEMORY = 0.20, 0.10


@torch.library.custom_op("cuda_eager::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (x.float() * scale).to(x.dtype) * weight, scale


@torch.library.custom_op("cuda_eager::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, scaled = x.float() * scale, gradient.float() * weight.float()
    dx = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * scale
    return dx.to(x.dtype), (gradient.float() * normed).flatten(0, -2).sum(0).to(weight.dtype)


@rms_norm.register_fake
def _(x, weight, eps):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@rms_norm_backward.register_fake
def _(gradient, x, scale, weight):
    return torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output[1], inputs[1])


def _backward(ctx, gradient, _):
    return *torch.ops.cuda_eager.rms_norm_backward(gradient, *ctx.saved_tensors), None


rms_norm.register_autograd(_backward, setup_context=_keep)
stepc.op_rule("cuda_eager::rms_norm")
# Two kernels, each of which reads the gradient and x (ATen/native/cuda/layer_norm_kernel.cu).
stepc.op_rule("cuda_eager::rms_norm_backward", bytes=lambda gradient, x, scale, weight: 5 * x.nbytes)


def fused_norm(module):
    """RMSNorm as torch has it on a GPU."""
    module.forward = lambda x: torch.ops.cuda_eager.rms_norm(x, module.weight, module.eps)[0]


def captured(name):
    """The step of benchmarks/gpu_peers.py, and its FLOPs."""
    *shape, batch, seq = MODELS[name]
    with stepc.virtual():
        model = Llama(*shape).bfloat16()
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            fused_norm(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train_step(ids):
        loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan = stepc.plan(train_step, torch.randint(shape[-1], (batch, seq)))
    return plan, flops_of(model, shape[0], shape[1], batch, seq)


def row_of(name, target):
    plan, flops = captured(name)
    assert not plan.obstacle, plan.obstacle
    eager, fast = plan.plan_for(target, mode="exact"), plan.plan_for(target)
    ms, gb = PUBLISHED[name]
    row = {"model": name, "published_ms": ms, "published_gb": gb, "flops": flops}
    for kind, one in (("eager", eager), ("fast", fast)):
        row[f"{kind}_ms"], row[f"{kind}_gb"] = 1e3 * one.seconds, one.needed_bytes / 1e9
    row["classes"] = eager.report()
    return row, eager.target


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--target", default="h200", help="errors are those of the published rows, an H200's, all the same")
    parser.add_argument("--classes", action="store_true", help="what takes the time of each eager step")
    parser.add_argument("--json", help="where to write the rows")
    options = parser.parse_args()
    rows, misses, constants = [], [], ""
    for name in options.models.split(","):
        row, constants = row_of(name, options.target)
        rows.append(row)
    print(f"the constants of {options.target}, none of them from the rows below (src/cost/named_target.h has the sources):\n")
    print(constants)
    print(f"{'model':12}{'eager ms':>10}{'predicted':>11}{'error':>8}{'peak GB':>9}{'predicted':>11}{'error':>8}"
          f"{'   fast: ms':>12}{'GB':>7}")
    for row in rows:
        time, memory = (row[f"eager_{unit}"] / row[f"published_{unit}"] - 1 for unit in ("ms", "gb"))
        print(f"{row['model']:12}{row['published_ms']:10.1f}{row['eager_ms']:11.1f}{time:+8.1%}{row['published_gb']:9.1f}"
              f"{row['eager_gb']:11.2f}{memory:+8.1%}{row['fast_ms']:12.1f}{row['fast_gb']:7.2f}")
        if abs(time) > WITHIN_TIME or abs(memory) > WITHIN_MEMORY:
            misses.append(row["model"])
        if options.classes:
            print(row["classes"])
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    if misses and options.target == "h200":
        sys.exit(f"gpu_prediction_benchmark.py: beyond {WITHIN_TIME:.0%} of time or {WITHIN_MEMORY:.0%} of memory: "
                 + ", ".join(misses))


if __name__ == "__main__":
    main()
