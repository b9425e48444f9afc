"""An unmodified transformers model, its training step accelerated whole: eager and stepc timed side by side.

    PYTHONPATH=build/release/python .venv/bin/python examples/train_step.py [--steps 60] [--threads 2]

Two copies of the same small Llama train on the same random text, one eagerly, one through `stepc.accelerate`. At the end
their losses are compared bit by bit and stepc's report of the plan is printed. Under a minute on two cores.
"""

import argparse
import logging
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import stepc

VOCABULARY, BATCH, LENGTH = 4096, 4, 128


def build():
    """A model, and the step that trains it: ordinary PyTorch, written without a thought of stepc."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352,
                                         num_hidden_layers=4, num_attention_heads=4, use_cache=False)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)

    def train_step(batch):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step, scheduler


def make_batch(number):
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(number))
    return {"input_ids": ids, "labels": ids}


def timed(step, scheduler, batch):
    begin = time.perf_counter()
    loss = step(batch)
    seconds = time.perf_counter() - begin
    scheduler.step()
    return loss.detach(), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mode", choices=["fast", "exact"], default="fast")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("stepc").setLevel(logging.INFO)
    torch.set_num_threads(arguments.threads)

    eager_step, eager_scheduler = build()
    train_step, scheduler = build()
    step = stepc.accelerate(train_step, config=stepc.Config(mode=arguments.mode))

    eager, replayed, apart = [], [], 0.0
    for number in range(arguments.steps):  # in turn, so that a busy machine is busy for both
        batch = make_batch(number)
        expected, seconds = timed(eager_step, eager_scheduler, batch)
        eager.append(seconds)
        loss, seconds = timed(step, scheduler, batch)
        replayed.append(seconds)
        apart = max(apart, abs(loss.item() / expected.item() - 1))
        if arguments.mode == "exact" and not torch.equal(loss, expected):
            raise SystemExit(f"step {number}: loss {loss.item()!r}, eagerly {expected.item()!r}")

    warm_up = min(5, arguments.steps - 1)  # recorded, planned, verified
    eager_ms, replayed_ms = (1e3 * statistics.median(seconds[warm_up:]) for seconds in (eager, replayed))
    how_close = "bit-equal to eager" if arguments.mode == "exact" else f"within {apart:.1e} of eager"
    print(f"\n{arguments.steps} steps, every loss {how_close}; the last is {loss.item():.4f}")
    print(f"eager {eager_ms:.1f} ms, stepc {replayed_ms:.1f} ms a step: {eager_ms / replayed_ms:.2f}x\n")
    print(step.report())


if __name__ == "__main__":
    main()
