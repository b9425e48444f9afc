#!/usr/bin/env python3
"""A step in two stages beside torch.distributed.pipelining's, over Gloo on loopback, one thread a rank, in turn.

    benchmarks/pipeline_benchmark.py [--preset NAME] [--batch N] [--micro-batches N] [--seq N] [--rounds N]

Both take 1F1B with an unmodified Hugging Face Llama in float32, clipping and AdamW; torch's stages are modules of their own that
hold its layers. stepc takes ZB-H1 too, and says how long ranks wait beside what was predicted.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys

from ranks_benchmark import BUILD, ROOT, Team, medians_of

KINDS = {"stepc": "1f1b", "stepc_zb": "zb-h1", "torch": "1f1b"}


def rank_main(kind, config_json, rows, micro_batches, seq):
    """One rank of a team: `run N` on stdin takes N steps; rank 0 answers with their seconds, and how long ranks waited."""
    import os

    import torch
    import torch.distributed
    from torch_runner import answer_rounds, config_of
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    config = config_of(config_json)
    model = LlamaForCausalLM(config).train()
    ids = torch.randint(config.vocab_size, (rows, seq))
    rank = int(os.environ["RANK"])
    step, waits = (stepc_step if kind.startswith("stepc") else torch_step)(model, ids, micro_batches, KINDS[kind], rank)
    answer_rounds(kind, step, waits)
    torch.distributed.destroy_process_group()


def stepc_step(model, ids, micro_batches, order, _rank):
    sys.path.insert(0, str(ROOT / "build" / "release" / "python"))
    import stepc
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(ids):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    config = stepc.Config(parallel={"pp": 2, "order": order}, micro_batches=micro_batches)
    accelerated = stepc.accelerate(step, config=config)

    def waits():
        found = re.search(r"waits for others (\d+) %, predicted (\d+) %", accelerated.report())
        own = torch.tensor([float(found[1]), float(found[2])]) / 100
        torch.distributed.all_reduce(own)
        measured, predicted = (own / 2).tolist()
        return {f"{order} bubble": [measured], f"{order} bubble predicted": [predicted]}

    return (lambda: accelerated(ids)), waits


def torch_step(model, ids, micro_batches, _order, rank):
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    half = len(model.model.layers) // 2

    class Stage(torch.nn.Module):
        """The model's first half with its embedding, or its second half with its head."""

        def __init__(self):
            super().__init__()
            inner = model.model
            self.embed = inner.embed_tokens if rank == 0 else None
            self.layers = torch.nn.ModuleList(inner.layers[:half] if rank == 0 else inner.layers[half:])
            self.rotary = inner.rotary_emb
            self.norm, self.head = (None, None) if rank == 0 else (inner.norm, model.lm_head)

        def forward(self, x):
            if self.embed is not None:
                x = self.embed(x)
            places = torch.arange(x.shape[1])[None]
            turns = self.rotary(x, places)
            for layer in self.layers:
                made = layer(x, attention_mask=None, position_ids=places, position_embeddings=turns)
                x = made[0] if isinstance(made, tuple) else made
            return x if self.head is None else self.head(self.norm(x))

    stage = Stage()
    parameters = list(stage.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

    def loss_of(logits, ids):
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    schedule = Schedule1F1B(PipelineStage(stage, rank, 2, torch.device("cpu")), micro_batches, loss_fn=loss_of)

    def step():
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=ids, losses=[])
        norm = torch.nn.utils.get_total_norm([one.grad for one in parameters]) ** 2
        torch.distributed.all_reduce(norm)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm.sqrt())
        optimizer.step()
        optimizer.zero_grad()

    return step, dict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"preset": "bench-10m", "batch": 8, "micro-batches": 4, "seq": 256, "rounds": 7, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    config = subprocess.run([BUILD / "stepc_runner", "config", options.preset], check=True, capture_output=True,
                            text=True).stdout
    sizes = [options.batch, options.micro_batches, options.seq]
    teams = [Team([sys.executable, pathlib.Path(__file__).resolve(), "rank", kind, config, *sizes], 2) for kind in KINDS]
    measured = medians_of(teams, options.rounds, options.steps)
    print(f"{options.preset}, float32, {options.batch} x {options.seq} tokens in {options.micro_batches} micro-batches, two stages; "
          f"median of {options.rounds} rounds")
    for name, values in measured.items():
        value = statistics.median(values)
        print(f"  {name:24}" + (f"{100 * value:9.1f} %" if "bubble" in name else f"{1e3 * value:9.1f} ms"))
    ratio = statistics.median(a / b for a, b in zip(measured["stepc"], measured["torch"]))
    print(f"  {'step / torch.distributed.pipelining':48}{ratio:6.2f}   wanted: at most 0.7")
    apart = abs(statistics.median(measured["1f1b bubble"]) - statistics.median(measured["1f1b bubble predicted"]))
    print(f"  {'bubble, measured less predicted':48}{apart:6.2f}   wanted: at most 0.05")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
