"""Writes training steps of the parity models as fused Graphs, whose groups the tests of GPU kernels compile.

    PYTHONPATH=build/release/python:tests/python .venv/bin/python tests/codegen/model_graphs.py FOLDER [--wide]

Without --wide every model of tests/python/models.py, in float32, bfloat16 and under autocast. With it the four of
tests/codegen/models, one layer deep and as wide as they are trained, of small batches: rows are what kernels are made
for, not their number. Nothing is run: the steps are captured virtually.
"""

import argparse
import pathlib
import subprocess
import tempfile

import torch
import transformers as hf

import stepc
from models import MODELS, cast
from harness import source_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDE = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=8, use_cache=False)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, use_cache=False)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=1)),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=1, num_labels=1000, image_size=64)),
}


def wide_batch(name):
    if name == "vit":
        return {"pixel_values": torch.zeros(2, 3, 64, 64), "labels": torch.zeros(2, dtype=torch.long)}
    ids = torch.zeros(2, 16, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}


def step_of(module, loss_of, precision):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def step(batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            loss = loss_of(module, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def write(folder, name, step, batch):
    with tempfile.TemporaryDirectory() as directory:
        trace = pathlib.Path(directory) / "step.trace"
        stepc.plan(step, batch).save_graph(trace)
        run = subprocess.run([ROOT / "build/release/tools/irtool", "--all", "--matmuls", "bf16", trace],
                             capture_output=True, text=True)
    if run.returncode != 0:  # shapes that follow from data are known in a run only
        print(f"{name} is left out: {run.stderr.strip()}")
        return
    (folder / f"{name}.ir").write_text(run.stdout)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--wide", action="store_true")
    given = arguments.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.wide:
        for name, build in WIDE.items():
            with stepc.virtual():
                module = build().train()
                batch = wide_batch(name)
            step = step_of(module, lambda module, batch: module(**batch).loss, "autocast")
            write(given.folder, name, step, batch)
        return
    for name, model in MODELS.items():
        for precision in ("float32", "bfloat16", "autocast"):
            dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
            module = model.build().train().to(dtype)
            batch = cast(model.batch(source_of(0), False), dtype)
            write(given.folder, f"{name}_{precision}", step_of(module, model.loss_of, precision), batch)


main()
