"""Asks `stepc plan` how a model trains on a cluster: what the benchmarks that predict share."""

import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPC = ROOT / "build/release/src/stepc"


def llama(layers, hidden, heads, ffn, vocab, positions, kv_heads=None):
    """config.json of such a Llama."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }


def search(model, cluster, tokens, rows, pins=None, parallel=None, more=()):
    """All ways of `rows` rows of `tokens` tokens a step, as --json writes them, the best first; or None and why there is none.

    model: a directory with a config.json, or what such a file has. cluster: a name such as h100x8, or a cluster file's text.
    pins: what is not searched, by the names of --pin. parallel: keys of [parallel] beside them. more: further arguments."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if isinstance(model, dict):
            (folder / "config.json").write_text(json.dumps(model))
            model = folder
        if "\n" in cluster:
            (folder / "cluster.toml").write_text(cluster)
            cluster = folder / "cluster.toml"
        (folder / "run.toml").write_text(
            f'[model]\npath = "{model}"\ncompute = "bfloat16"\n[data]\ntrain = ["none.jsonl"]\nseq_len = {tokens}\n'
            f'[train]\nbatch_size = {rows}\n[output]\ndir = "{folder}/out"\n'
        )
        keys = [f"--parallel.{key}={value}" for key, value in ({"overlap": "true"} | (parallel or {})).items()]
        command = [STEPC, "plan", folder / "run.toml", "--cluster", cluster, "--json", folder / "ways.json", *keys, *more]
        for name, value in (pins or {}).items():
            command += ["--pin", f"{name}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not (folder / "ways.json").exists():
            return None, done.stderr.strip() or done.stdout.strip()
        return json.loads((folder / "ways.json").read_text()), None


def best_plan(*arguments, **keywords):
    """The best way alone, with how long the search took; or None and why."""
    found, why = search(*arguments, **keywords)
    if found is None:
        return None, why
    best = found["outcomes"][0]
    if best["verdict"] != "planned":
        return None, best.get("why", best["verdict"])
    return best | {"search_seconds": found["search_seconds"]}, None
