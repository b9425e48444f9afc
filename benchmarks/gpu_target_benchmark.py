"""Measures a GPU, and writes what plans for it go by as a Target file: `stepc memory run.toml --target FILE`.

    python benchmarks/gpu_target_benchmark.py --like h100 --out gpu-target.toml [--seconds 60]

Of the known card that it is most like (docs/gpu.md) it takes what nothing here measures: links, and rows that are left out for
want of time. Measured are the copy rate, matmuls and attention of the rows that this card's table has, each in the library that
PyTorch takes.
"""

import argparse
import json
import re
import statistics
import time

import torch

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
HEADS = 16


def seconds_of(call, rounds=7):
    """Of one call: the median of rounds that are long beside what an event costs."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 5e3)
    return statistics.median(times)


def copy_rate():
    source, target = (torch.ones(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source))


def matmul_rate(row):
    dtype = DTYPES[row["dtype"]]
    rows, columns, inner = (int(row[name]) for name in ("rows", "columns", "inner"))
    one, other = torch.randn(rows, inner, device="cuda", dtype=dtype), torch.randn(inner, columns, device="cuda", dtype=dtype)
    return 2 * rows * columns * inner / seconds_of(lambda: one @ other)


def attention_rate(row):
    """Causal, of which half of the pairs count; a backward pass has five products for the forward pass's two."""
    length, width, dtype = int(row["length"]), int(row["width"]), DTYPES[row["dtype"]]
    batch = max(1, 16384 // length)
    q, k, v = (torch.randn(batch, HEADS, length, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    work = 4 * batch * HEADS * length * length * width / 2

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if row["pass"] == "forward":
        with torch.no_grad():
            return work / seconds_of(forward)
    out = forward()
    gradient = torch.randn_like(out)
    return 2.5 * work / seconds_of(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))


def known(card):
    """The Target of a card that stepc knows, as text."""
    import stepc

    plan = stepc.plan(lambda x: x * 2, torch.zeros(4))
    lines = plan.plan_for(card).schedule_text().split("# with\n")[1].splitlines()
    return "".join(line.removeprefix("#").removeprefix(" ") + "\n" for line in lines)


def tables(text):
    """The text's parts: what stands before the first table, and each table with its name and keys."""
    head, *rest = re.split(r"^(?=\[\[)", text, flags=re.MULTILINE)
    made = []
    for one in rest:
        name = re.match(r"\[\[(\w+)\]\]", one)[1]
        made.append((name, dict(re.findall(r'^(\w+) = "?([^"\n]+)"?$', one, flags=re.MULTILINE)), one))
    return head, made


def measured(text, seconds, measure=None, card=None, says=lambda row: None):
    """`text`, the Target of a card, with what was measured within the time in the place of its rates."""
    measure = measure or {"copy": copy_rate, "matmuls": matmul_rate, "attentions": attention_rate}
    card = card or torch.cuda.get_device_properties(0)
    begin = time.monotonic()
    head, rows = tables(text)
    facts = {"name": f'"{card.name}"', "sm": card.major * 10 + card.minor, "multiprocessors": card.multi_processor_count,
             "l2_bytes": card.L2_cache_size, "memory_bytes": card.total_memory, "bytes_per_second": f"{measure['copy']():.4g}"}
    says({"copy": facts["bytes_per_second"]})
    for key, value in facts.items():
        head, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", head, flags=re.MULTILINE)
        assert count == 1, key
    out = [head]
    for name, row, one in rows:
        if time.monotonic() - begin < seconds:
            rate = measure[name](row)
            says({"table": name, **row, "flops_per_second": rate})
            one = re.sub(r"^flops_per_second = .*$", f"flops_per_second = {rate:.4g}", one, flags=re.MULTILINE)
        out.append(one)
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--like", default="h100")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    made = measured(known(given.like), given.seconds, says=lambda row: print(json.dumps(row), flush=True))
    with open(given.out, "w") as out:
        out.write(made)


if __name__ == "__main__":
    main()
