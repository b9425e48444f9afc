"""The tables of docs/techniques.md: for one situation after another, the best mesh of each kind, as `stepc plan` finds it.

    .venv/bin/python benchmarks/technique_tables.py [--only long-rows] > tables.md
"""

import argparse

from plans import ROOT, llama, search

KINDS = {
    "`dp_replicate`": lambda way: way["dp_replicate"] > 1 and way["dp_shard"] == way["cp"] == way["tp"] == way["pp"] == 1,
    "`dp_shard`, zero 1 or 2": lambda way: way["dp_shard"] > 1 and way["zero"] < 3 and way["cp"] == way["tp"] == way["pp"] == 1,
    "`dp_shard`, zero 3": lambda way: way["dp_shard"] > 1 and way["zero"] == 3 and way["cp"] == way["tp"] == way["pp"] == 1,
    "`tp` among the axes": lambda way: way["tp"] > 1 and way["pp"] == 1,
    "`cp` among the axes": lambda way: way["cp"] > 1 and way["pp"] == 1,
    "`pp` among the axes": lambda way: way["pp"] > 1,
}
SMALL = llama(layers=12, hidden=768, heads=12, ffn=2048, vocab=32000, positions=4096)
SLOW = """name = "slow-network"
nodes = 8
devices_per_node = 8
target = "h100"
[[links]]
name = "nvlink"
devices = 8
bytes_per_second = 360e9
latency_seconds = 3e-6
[[links]]
name = "ethernet"
devices = 64
bytes_per_second = 3e9
latency_seconds = 3e-5
"""
# name: title, recipe or config, cluster, tokens of a row, rows, further arguments
SITUATIONS = {
    "small": ("134 M parameters on 8 H100, 64 rows of 2048 tokens", SMALL, "h100x8", 2048, 64, []),
    "eight-cards": ("Llama 3.1 8B on 8 H100, 128 rows of 8192 tokens", "llama-3.1-8b", "h100x8", 8192, 128, []),
    "small-cards": ("the same with 40 GiB a card", "llama-3.1-8b", "h100x8", 8192, 128, ["--budget", "40GiB"]),
    "long-rows": ("Llama 3.1 8B on 32 H100, 8 rows of 131072 tokens", "llama-3.1-8b", "h100x32", 131072, 8, []),
    "large": ("Llama 3.1 70B on 256 H100, 512 rows of 8192 tokens", "llama-3.1-70b", "h100x256", 8192, 512, ["--pin", "cp=1"]),
    "slow-network": ("Llama 3.1 8B on 8 nodes of 8 H100 with 25 Gbit/s for each card, 512 rows of 8192 tokens", "llama-3.1-8b",
                     SLOW, 8192, 512, ["--pin", "cp=1"]),
}


def text_of(way):
    axes = ", ".join(f"{axis} {way[axis]}" for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp") if way[axis] > 1)
    zero = f", zero {way['zero']}" if way["dp_shard"] > 1 else ""
    batches = f"{way['micro_batches']} micro-batch{'es' if way['micro_batches'] > 1 else ''}"
    return f"{axes or 'one device'}{zero}, {batches}" + (", recomputes" if way.get("recomputes") else "")


def row_of(kind, way, best):
    if way["verdict"] == "planned":
        memory = (way["state_bytes"] + way["step_bytes"]) / 2**30
        exposed, waits = way["exposed_seconds"] / way["seconds"], way["waiting_seconds"] / way["seconds"]
        return (f"| {kind} | {text_of(way)} | {way['seconds']:.2f} s | {way['seconds'] / best - 1:+.0%} | {exposed:.0%} | "
                f"{waits:.0%} | {memory:.0f} GiB |")
    if way["verdict"] == "not faster":
        return f"| {kind} | {text_of(way)} | at least {way['least_seconds']:.2f} s | | | | |"
    missing = way.get("why", way["verdict"])
    return f"| {kind} | {text_of(way)} | | | | | {missing} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SITUATIONS)
    only = parser.parse_args().only
    for name, (title, config, cluster, tokens, rows, more) in SITUATIONS.items():
        if only not in (None, name):
            continue
        model = ROOT / "examples/recipes" / config if isinstance(config, str) else config
        found, why = search(model, cluster, tokens, rows, more=more)
        if found is None:
            raise SystemExit(f"{name}: {why}")
        ways = found["outcomes"]
        best = ways[0]["seconds"] if ways[0]["verdict"] == "planned" else float("nan")
        print(f"### {title}\n\n| kind | its best | a step | | exposed | waits | memory |\n|---|---|---|---|---|---|---|")
        for kind, is_of in KINDS.items():
            first = next((way for way in ways if is_of(way)), None)
            if first is not None:
                print(row_of(kind, first, best))
        print(f"\n{len(ways)} ways, searched in {found['search_seconds']:.0f} s.\n", flush=True)


if __name__ == "__main__":
    main()
