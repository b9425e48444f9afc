"""A transformers `Trainer`, unmodified, over an accelerated model and optimizer.

    PYTHONPATH=build/release/python .venv/bin/python examples/trainer.py [--steps 40] [--eager]

The two lines with `stepc` are all that is added to an ordinary program. With --eager they are left out: the losses are
the same to the last bit. Needs the `accelerate` package that every Trainer needs.
"""

import argparse
import logging
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, get_cosine_schedule_with_warmup

import stepc

VOCABULARY, LENGTH = 512, 64


class CountingText(Dataset):
    """Rows of numbers that go on by a step of their own: a model soon learns to count."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        ids = (index + torch.arange(LENGTH) * (1 + index % 7)) % VOCABULARY
        return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--eager", action="store_true", help="the same program without stepc")
    arguments = parser.parse_args()
    logging.getLogger("stepc").setLevel(logging.INFO)

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=128, n_layer=4, n_head=4, n_positions=LENGTH,
                                       bos_token_id=0, eos_token_id=0, use_cache=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if not arguments.eager:
        model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))

    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=8,
                                    max_grad_norm=1.0, logging_steps=10, save_strategy="no", report_to=[], use_cpu=True,
                                    disable_tqdm=True, seed=0)
        scheduler = get_cosine_schedule_with_warmup(optimizer, 5, arguments.steps)
        Trainer(model=model, args=options, train_dataset=CountingText(), optimizers=(optimizer, scheduler)).train()
    if not arguments.eager:
        print(stepc.report(model))


if __name__ == "__main__":
    main()
