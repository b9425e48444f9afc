"""How much memory whole training steps need as the product plans them, on the models of ROAM's published results.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/planning_benchmark.py [--models vgg,bert] [--tool FILE]

Models of torchvision and transformers with Adam are captured without being run, once with Adam as single tensor
operations (as in the publication) and once fused. build/release/benchmarks/planning_benchmark plans them by
engine/compile.h, with the passes, the order and the kernels of a step that runs. All numbers are MiB of weights and
planned tensors; optimizer moments and the batch are not counted, as in the publication. Its GPT2-XL has no dropout: with
the masks of one, attention alone would keep twice what it states.

    program        program order of the fused graph under the best of our layouts, without kernels' workspaces
    LESCEA+LLFB    list scheduling by least increase, long-lived-first best fit, of the same
    ours, bound    the order that runs, of the same, and what no order of this graph can go below
    planned        the arena of the step as it runs, and what it leaves: kernels' workspaces are in it
    workspaces     of that, at the peak
    published      ROAM-SS of arXiv 2310.19295, on the graph that its PyTorch captured; only beside Adam as there

A line below a row that is above what was published says what allocates most at the peak. The exit status is 1 when the
order is above a baseline or more than 1 % above the bound, or planning takes over 10 s.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision
import transformers

import stepc

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
WITHIN = 1.01
MOST_SECONDS = 10.0
BOTH = "decomposed", "fused"

# name, builder's name, {batch size: published MiB}
VISION = (
    ("alexnet", "alexnet", {1: 665.1, 32: 665.1}),
    ("vgg", "vgg11", {1: 1682.8, 32: 2044.7}),
    ("mnasnet", "mnasnet0_5", {1: 34.4, 32: 790.9}),
    ("mobilenet", "mobilenet_v2", {1: 69.2, 32: 1670.2}),
    ("efficientnet", "efficientnet_b0", {1: 108.5, 32: 2722.5}),
    ("vit", "vit_b_16", {1: 483.0, 32: 4670.3}),
)
LANGUAGE = (
    ("bert", 4, {1: 915.0, 32: 915.4}),
    ("GPT2-XL", 1024, {1: 19242.7, 2: 32468.3, 4: 58994.8}),
)


def language_model(name):
    if name == "bert":
        config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, attn_implementation="eager")
        return transformers.RobertaForMaskedLM(config)
    config = transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25, use_cache=False, attn_implementation="eager",
                                     attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def capture(build, make_batch, loss_of, adam, path):
    """Writes the step's Trace."""
    with stepc.virtual():
        model = build().train()
    fused = {"fused": True} if adam == "fused" else {"foreach": False}
    optimizer = torch.optim.Adam(model.parameters(), **fused)

    def train_step(inputs, labels):
        loss = loss_of(model, inputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan = stepc.plan(train_step, *make_batch())
    if plan.obstacle:
        raise RuntimeError(plan.obstacle)
    plan.save_graph(path)


def steps():
    """Name, batch size, published MiB, and the arguments of capture() for a step."""
    for name, builder, sizes in VISION:
        for size, published in sizes.items():
            yield name, size, published, (
                getattr(torchvision.models, builder),
                lambda size=size: (torch.zeros(size, 3, 224, 224), torch.zeros(size, dtype=torch.int64)),
                lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y),
            )
    for name, length, sizes in LANGUAGE:
        for size, published in sizes.items():
            yield name, size, published, (
                lambda name=name: language_model(name),
                lambda size=size, length=length: (torch.ones(size, length, dtype=torch.int64),) * 2,
                lambda model, x, y: model(input_ids=x, labels=y).loss,
            )


def row(name, size, adam, published, planned):
    """The row as text, what is wrong with it, and whether it is above what was published."""
    total = {key: (planned["parameters"] + planned[key]) / MIB for key in ("live", "bound", "planned")}
    program = (planned["parameters"] + planned["program_order"]["best_layout"]) / MIB
    lescea = (planned["parameters"] + planned["least_increase"]["long_lived_first"]) / MIB
    text = f"{name:<13}{size:>3} {adam:<11}{planned['nodes']:>7}{program:>10.1f}{lescea:>12.1f}"
    text += f"{total['live']:>10.1f}{total['bound']:>10.1f}{total['live'] / total['bound'] - 1:>8.2%}"
    text += f"{total['planned']:>10.1f}{planned['workspaces'] / MIB:>11.1f}"
    text += f"{published:>11.1f}" if adam == "decomposed" else " " * 11
    text += f"{planned['seconds']:>7.2f}"
    problems = []
    if planned["live"] > min(planned[order]["live"] for order in ("program_order", "least_increase")):
        problems.append("above a baseline")
    if total["live"] > WITHIN * total["bound"]:
        problems.append("more than 1 % above the bound")
    if planned["seconds"] > MOST_SECONDS:
        problems.append(f"planning takes {planned['seconds']:.0f} s")
    return text, problems, adam == "decomposed" and total["planned"] > published


def main():
    parser = argparse.ArgumentParser(description="Planned memory of whole training steps, beside published results")
    parser.add_argument("--models", default="", help="names, separated by commas; all unless given")
    parser.add_argument("--tool", default=ROOT / "build" / "release" / "benchmarks" / "planning_benchmark")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.models.split(",")))
    transformers.logging.set_verbosity_error()
    header = f"{'model':<13}{'bs':>3} {'Adam':<11}{'nodes':>7}{'program':>10}{'LESCEA+LLFB':>12}{'ours':>10}{'bound':>10}"
    print(header + f"{'over':>8}{'planned':>10}{'workspaces':>11}{'published':>11}{'s':>7}", flush=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.trace")
        for name, size, published, arguments_of_step in steps():
            if only and name not in only:
                continue
            for adam in BOTH:
                capture(*arguments_of_step, adam, path)
                result = subprocess.run([arguments.tool, path], check=True, capture_output=True, text=True)
                planned = json.loads(result.stdout)
                text, problems, larger = row(name, size, adam, published, planned)
                print(text + "".join(f"  FAILED: {problem}" for problem in problems), flush=True)
                if larger:
                    print(f"{'':<17}at the peak: {planned['allocated']}", flush=True)
                failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
