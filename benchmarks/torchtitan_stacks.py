"""TorchTitan's techniques one on top of another: what each is published to gain, beside what `stepc plan` says it gains.

    .venv/bin/python benchmarks/torchtitan_stacks.py [--only 70b-256] > stacks.md

What is published is in tokens a second and card: benchmarks/llama3_h100_202412_torchtitan.md and
asyncTP_llama3_h100_2025-06_torchtitan.md of its repository, H100 of 96 GB at 500 W. The plans have the same model, cards,
mesh and rows. A step without `torch.compile` is one without the pass `fuse`: each operation is a kernel. One without
asynchronous tensor parallelism is one without `cut_exchanges`. Recomputation is not the same: TorchTitan recomputes what its
setting says, a plan what its memory asks for. No plan multiplies in float8 in micro-batches, so the 405B is planned in bf16.
"""

import argparse

from field_figures import TITAN_405B, recipe, shard
from plans import best_plan

TOKENS = 8192
TITAN_70B = {"dp_shard": 32, "zero": 3, "tp": 8, "cp": 1, "pp": 1, "micro_batches": 1}
SMALL_TP = {"dp_shard": 8, "zero": 3, "tp": 8, "cp": 1, "pp": 1, "micro_batches": 1}


def fsdp(cards, published):
    """FSDP, with torch.compile, with float8 too; two rows a card."""
    eager, compiled, fp8 = published
    cluster, rows, pins = f"h100-96x{cards}", 2 * cards, shard(cards) | {"micro_batches": 1}
    return cards, rows, [
        ("FSDP", eager, recipe("8b", cluster, rows, without="fuse", **pins)),
        ("+ `torch.compile`", compiled, recipe("8b", cluster, rows, **pins)),
        ("+ float8", fp8, recipe("8b", cluster, rows, precision="fp8", **pins)),
    ]


def asynchronous(size, cards, rows, precision, pins, published):
    """FSDP and tensor parallelism, its exchanges beside the matmuls too."""
    plain, beside = published
    cluster = f"h100-96x{cards}"
    return cards, rows, [
        ("FSDP and TP", plain, recipe(size, cluster, rows, precision=precision, without="cut_exchanges", **pins)),
        ("+ asynchronous TP", beside, recipe(size, cluster, rows, precision=precision, **pins)),
    ]


# name: title; cards, rows, and one after another the technique, its published rate, its plan.
STACKS = {
    "8b-8": ("Llama 3.1 8B, 8 cards", fsdp(8, (5762, 6667, 8532))),
    "8b-128": ("Llama 3.1 8B, 128 cards", fsdp(128, (5605, 6514, 8380))),
    "8b-64": ("Llama 3.1 8B, 64 cards, FSDP 8 x TP 8, bf16", asynchronous("8b", 64, 96, None, SMALL_TP, (4378, 4809.4))),
    "8b-64-fp8": ("the same in float8", asynchronous("8b", 64, 96, "fp8", SMALL_TP, (5078.1, 5570.1))),
    "70b-256": ("Llama 3.1 70B, 256 cards, FSDP 32 x TP 8, bf16", asynchronous("70b", 256, 512, None, TITAN_70B, (597.3, 652.4))),
    "70b-256-fp8": ("the same in float8", asynchronous("70b", 256, 512, "fp8", TITAN_70B, (829, 876))),
    "405b-512": ("Llama 3.1 405B, 512 cards, FSDP 8 x TP 8 x PP 8, published in float8, simulated in bf16", (512, 256, [
        ("1F1B", 100, recipe("405b", "h100-96x512", 256, **TITAN_405B)),
        ("interleaved 1F1B", 128, recipe("405b", "h100-96x512", 256, chunks=2, **TITAN_405B)),
    ])),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STACKS)
    only = parser.parse_args().only
    print("| model, cards | technique | published | gain | simulated | gain | exposed | waits | recomputes |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for name, (title, (cards, rows, stack)) in STACKS.items():
        if only not in (None, name):
            continue
        before = None
        for technique, published, arguments in stack:
            plan, why = best_plan(*arguments)
            if plan is None:
                print(f"| {title} | {technique} | {published} | | {why} | | | | |", flush=True)
                continue
            rate = rows * TOKENS / cards / plan["seconds"]
            gains = ["", ""] if before is None else [f"{now / then - 1:+.1%}" for now, then in zip((published, rate), before)]
            before = (published, rate)
            exposed, waits = (plan[key] / plan["seconds"] for key in ("exposed_seconds", "waiting_seconds"))
            print(f"| {title} | {technique} | {published:.0f} | {gains[0]} | {rate:.0f} | {gains[1]} | {exposed:.0%} | {waits:.0%} | "
                  f"{'yes' if plan['recomputes'] else 'no'} |", flush=True)
            title = ""


if __name__ == "__main__":
    main()
