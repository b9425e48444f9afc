"""Predicted beside published: step times of large models on clusters, planned on this machine, which needs no GPU.

    .venv/bin/python benchmarks/cluster_prediction_benchmark.py [--only llm-foundry] [--json FILE]

Each row of published_steps.csv has its source, and the mesh and micro-batches that were used there; `stepc plan` is told to
take these (--pin) and says what the step takes. The Targets' and clusters' numbers are those of cost/named_target.h and
cost/cluster.h; none comes from these rows. Beside the plain prediction stands the one with a single fitted constant, the part
of the predicted rate that a long job keeps (clocks under power limits, stragglers, host), fitted on all other families; and the
null model: a constant MFU, fitted in the same way. A framework that runs one operator after another (`kernels` is "eager") is
planned without the pass `fuse`: each operation is a kernel. Rows with full recomputation are left out, for a plan recomputes what the
memory asks for.
"""

import argparse
import csv
import json
import math
import pathlib
import statistics
import sys

from plans import best_plan, llama

HERE = pathlib.Path(__file__).parent


def config_of(row):
    """config.json: GPT as gpt2, Llama as llama."""
    number = {key: int(row[key]) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")}
    if row["model"].startswith("Llama"):
        return llama(number["layers"], number["hidden"], number["heads"], number["ffn"], number["vocab"], number["seq"],
                     number["kv_heads"])
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": number["hidden"],
        "n_layer": number["layers"],
        "n_head": number["heads"],
        "n_inner": number["ffn"],
        "n_positions": number["seq"],
        "vocab_size": number["vocab"],
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def flops_of(row):
    """Of a step, all pairs of attention counted, as Megatron-LM does (Narayanan et al., 2021, without recomputation)."""
    hidden, layers, tokens = int(row["hidden"]), int(row["layers"]), int(row["seq"])
    heads, kv_heads = int(row["heads"]), int(row["kv_heads"])
    of_mlp = (3 if row["model"].startswith("Llama") else 2) * int(row["ffn"]) / hidden
    matmuls = 2 * hidden * hidden * (2 + 2 * kv_heads / heads + of_mlp)  # of a token and layer, forward
    attention = 4 * tokens * hidden
    head = 2 * hidden * int(row["vocab"])
    return 3 * int(row["rows"]) * tokens * (layers * (matmuls + attention) + head)


def devices_of(row):
    return int(row["cluster"].rsplit("x", 1)[1])


def published_seconds(row):
    return float(row["seconds"] or flops_of(row) / devices_of(row) / (float(row["tflops"] or 0) * 1e12))


def plan(row):
    """What `stepc plan` says of the row's mesh, or why there is no plan."""
    pins = {"pp": row["pp"], "cp": row["cp"], "tp": row["tp"], "dp_shard": row["dp"], "zero": row["zero"]}
    if int(row["dp"]) == 1:
        pins.pop("zero")
    if row["micro_rows"]:
        pins["micro_batches"] = int(row["rows"]) // int(row["dp"]) // int(row["micro_rows"])
    more = ["--without=fuse"] if row["kernels"] == "eager" else []
    return best_plan(config_of(row), row["cluster"], row["seq"], row["rows"], pins, {"chunks": row["chunks"]}, more)


def error_of(predicted, published):
    return predicted / published - 1


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one family alone; nothing is fitted then")
    parser.add_argument("--json", help="where the rows are written")
    arguments = parser.parse_args()
    with open(HERE / "published_steps.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if arguments.only in (None, row["family"])]
    planned = []
    for row in rows:
        found, why = plan(row)
        if found is None:
            print(f"{row['name']}: no plan: {why}", file=sys.stderr)
            continue
        planned.append(row | {"predicted": found["seconds"], "published": published_seconds(row), "plan": found})
        print(f"{row['name']}: planned in {found['search_seconds']:.1f} s", file=sys.stderr)

    families = sorted({row["family"] for row in planned})
    kept, mfu = {}, {}
    for family in families:
        others = [row for row in planned if row["family"] != family]
        if others:
            kept[family] = geometric_mean(row["published"] / row["predicted"] for row in others)
            mfu[family] = geometric_mean(row["published"] / (flops_of(row) / devices_of(row)) for row in others)
    print(f"{'row':<36} {'cluster':>12} {'pp':>3} {'published':>10} {'predicted':>10} {'error':>7} {'one constant':>13} {'null':>7}")
    errors = {"plain": [], "one constant": [], "constant MFU": [], "one constant, without pp": [], "with pp": []}
    for row in planned:
        family, published = row["family"], row["published"]
        plain = error_of(row["predicted"], published)
        fitted = error_of(row["predicted"] * kept[family], published) if family in kept else math.nan
        null = error_of(flops_of(row) / devices_of(row) * mfu[family], published) if family in mfu else math.nan
        errors["plain"].append(abs(plain))
        errors["one constant"].append(abs(fitted))
        errors["constant MFU"].append(abs(null))
        errors["with pp" if int(row["pp"]) > 1 else "one constant, without pp"].append(abs(fitted))
        print(
            f"{row['name']:<36} {row['cluster']:>12} {row['pp']:>3} {published:>8.2f} s {row['predicted']:>8.2f} s "
            f"{plain:>+7.1%} {fitted:>+13.1%} {null:>+7.1%}"
        )
    for name, values in errors.items():
        if values:
            print(f"mean absolute error, {name}: {statistics.fmean(values):.1%} of {len(values)} rows")
    for family, value in kept.items():
        print(f"without {family}: a job takes {value:.3f} of the predicted time")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(planned, indent=1))


if __name__ == "__main__":
    main()
