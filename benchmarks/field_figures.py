"""The simulated figures of docs/figures.md: what TorchTitan, TorchAcc and Megatron-LM publish of a technique's gain or of
scaling, beside what `stepc plan` says for the same model, cards and mesh. Asynchronous tensor parallelism and interleaved
stages are in torchtitan_stacks.py.

    .venv/bin/python benchmarks/field_figures.py [--only zero-bubble] > figures.md
"""

import argparse
import sys

from plans import ROOT, best_plan, llama

RECIPES = ROOT / "examples/recipes"
LLAMA_7B = llama(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, positions=4096)


def recipe(size, cluster, rows, order=None, chunks=None, precision=None, without=None, **pins):
    """One plan; the arguments of best_plan. without: a pass that is left out."""
    parallel = {key: value for key, value in {"order": order, "chunks": chunks}.items() if value}
    more = [f"--{key}={value}" for key, value in {"precision": precision, "without": without}.items() if value]
    return (RECIPES / f"llama-3.1-{size}", cluster, 8192, rows, pins, parallel, more)


def shard(ranks):
    return {"dp_shard": ranks, "zero": 3, "pp": 1, "tp": 1, "cp": 1}


TITAN_405B = {"dp_shard": 8, "zero": 2, "tp": 8, "cp": 1, "pp": 8, "micro_batches": 32}

# name: the claim, its published ratio, its source, and the plan before and after. Time before / time after of a step.
RATIOS = {
    "8-to-128": (
        "Llama 3.1 8B, FSDP, from 8 to 128 H100-96, 2 rows of 8192 tokens a card, bf16, compiled: of the rate of a card",
        6514 / 6667,
        "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md",
        recipe("8b", "h100-96x8", 16, micro_batches=1, **shard(8)),
        recipe("8b", "h100-96x128", 256, micro_batches=1, **shard(128)),
    ),
    "dgx-scaling": (
        "Llama 3.1 8B, cp 2, from 8 to 128 H100, 16 rows of 8192 tokens a card, bf16: of the rate of a card",
        12.27 / 12.33,
        "NVIDIA dgxc-benchmarking v25.04.02",
        recipe("8b", "h100x8", 128, dp_shard=4, zero=1, cp=2, tp=1, pp=1, micro_batches=32),
        recipe("8b", "h100x128", 2048, dp_shard=64, zero=1, cp=2, tp=1, pp=1, micro_batches=32),
    ),
    "a100-scaling": (
        "Llama 7B, FSDP, from 8 to 128 A100, 2 rows of 2048 tokens a card: times 16, of linear scaling",
        15.6 / 16,
        "PAI-TorchAcc's description (the model is one of its LLaMA series; rows are assumed)",
        (LLAMA_7B, "a100x8", 2048, 16, shard(8) | {"micro_batches": 1}),
        (LLAMA_7B, "a100x128", 2048, 256, shard(128) | {"micro_batches": 1}),
    ),
    "zero-bubble": (
        "Llama 3.1 405B, FSDP 8 x TP 8 x PP 8, 512 H100-96, 32 rows a group: ZB-H1 for 1F1B",
        None,
        "-",
        recipe("405b", "h100-96x512", 256, **TITAN_405B),
        recipe("405b", "h100-96x512", 256, order="zb-h1", **TITAN_405B),
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RATIOS)
    only = parser.parse_args().only
    print("| claim | published | simulated | a step before, after | exposed before, after | waits before, after | source |\n"
          "|---|---|---|---|---|---|---|")
    known = {}
    for name, (claim, published, source, *sides) in RATIOS.items():
        if only not in (None, name):
            continue
        plans = []
        for side in sides:
            if repr(side) not in known:
                known[repr(side)] = best_plan(*side)
            plan, why = known[repr(side)]
            if plan is None:
                print(f"{name}: {why}", file=sys.stderr)
            plans.append(plan)
        if None in plans:
            continue
        seconds = [plan["seconds"] for plan in plans]
        exposed = ", ".join(f"{plan['exposed_seconds'] / plan['seconds']:.1%}" for plan in plans)
        waits = ", ".join(f"{plan['waiting_seconds'] / plan['seconds']:.1%}" for plan in plans)
        said = "-" if published is None else f"{published:.3f}"
        print(f"| {claim} | {said} | {seconds[0] / seconds[1]:.3f} | {seconds[0]:.2f} s, {seconds[1]:.2f} s | {exposed} | {waits} | "
              f"{source} |", flush=True)


if __name__ == "__main__":
    main()
