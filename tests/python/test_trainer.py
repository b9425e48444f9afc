"""An unmodified transformers `Trainer`, given an accelerated model and optimizer, trains bit-equal to the eager one."""

import os

import pytest
import torch
import transformers as hf
from torch.utils.data import Dataset

import stepc
from harness import Training, assert_replayed, assert_same, leaves, source_of, state_leaves
from models import MODELS, causal_batch

STEPS = 14


class Sentences(Dataset):
    def __init__(self, first, count):
        self.rows = []
        for number in range(first, first + count):
            batch = causal_batch(source_of(number), True)
            self.rows.append({key: value[1] for key, value in batch.items()})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def train(folder, accelerated, model_name="llama", resume=False, config=None, **arguments):
    """Trains as a Trainer does, and returns what it logged, what it left and the model that it was given."""
    torch.manual_seed(0)
    model = MODELS[model_name].build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    training = Training(None, [model], [optimizer])
    if accelerated:
        model, optimizer = stepc.accelerate(model, optimizer, config=config or stepc.Config(mode="exact"))
    scheduler = hf.get_linear_schedule_with_warmup(optimizer, 3, STEPS)
    training.schedulers = [scheduler]
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # what a Trainer before was asked for, which this one would take
    options = dict(output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=3, use_cpu=True, report_to=[],
                   logging_steps=1, save_strategy="no", disable_tqdm=True, seed=3)
    trainer = hf.Trainer(model=model, args=hf.TrainingArguments(**{**options, **arguments}),
                         train_dataset=Sentences(0, 40), eval_dataset=Sentences(100, 7),
                         optimizers=(optimizer, scheduler))
    trainer.train(resume_from_checkpoint=resume)
    timed = ("runtime", "per_second", "total_flos")
    history = [{key: value for key, value in entry.items() if not key.endswith(timed)}
               for entry in trainer.state.log_history]
    return history, training, model


def compare(tmp_path, replays=5, **arguments):
    expected, expected_training, _ = train(tmp_path / "eager", False, **arguments)
    history, training, model = train(tmp_path / "accelerated", True, **arguments)
    assert len(expected) >= STEPS
    assert_same(leaves(expected), leaves(history), "log")
    assert_same(state_leaves(expected_training), state_leaves(training), "state at the end")
    assert_replayed(stepc.stats(model), replays)


@pytest.mark.parametrize("arguments", [
    {},
    {"gradient_accumulation_steps": 2},
    {"max_grad_norm": 0.1},
    {"eval_strategy": "steps", "eval_steps": 4},
    {"bf16": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    {"label_smoothing_factor": 0.1},
], ids=lambda arguments: "-".join(arguments) or "plain")
def test_trainer_is_bit_equal(tmp_path, arguments):
    compare(tmp_path, **arguments)


def test_trainer_with_dropout(tmp_path):
    compare(tmp_path, model_name="gpt2")


def test_trainer_saves_and_resumes(tmp_path):
    """A checkpoint written by either kind of run goes on in the other."""
    saving = dict(save_strategy="steps", save_steps=6)
    expected, expected_training, _ = train(tmp_path / "eager", False, **saving)
    train(tmp_path / "accelerated", True, **saving)
    for folder in ("eager", "accelerated"):
        checkpoint = str(tmp_path / folder / "checkpoint-6")
        history, training, _ = train(tmp_path / "resumed", True, resume=checkpoint, **saving)
        assert_same(leaves(expected[-5:-1]), leaves(history[-5:-1]), f"log after resuming from {folder}")
        assert_same(state_leaves(expected_training), state_leaves(training), f"state after resuming from {folder}")
