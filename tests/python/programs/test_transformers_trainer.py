"""transformers' Trainer: evaluation, label smoothing, early stopping and gradient checkpointing at once."""

import pytest
import torch
import transformers as hf
from torch.utils.data import Dataset

from harness import Training, source_of
from programs.program import check

VOCABULARY, LENGTH = 48, 12


class Sentences(Dataset):
    def __init__(self, first, count):
        self.rows = [torch.randint(3, VOCABULARY, (LENGTH,), generator=source_of(first + i)) for i in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Looks(hf.TrainerCallback):
    def __init__(self, run):
        self.run = run

    def on_log(self, args, state, control, logs, **kwargs):
        self.logs = {key: value for key, value in logs.items() if not key.endswith(("runtime", "per_second"))}
        if "loss" in logs:
            self.run.saw(self.logs)


def trainer(run):
    config = hf.LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
    model = hf.LlamaForCausalLM(config)
    run.started(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    looked_at = Training(None, [model], [optimizer])
    model, optimizer = run.accelerate(model, optimizer)
    scheduler = hf.get_cosine_schedule_with_warmup(optimizer, 4, 200)
    options = hf.TrainingArguments(
        output_dir=str(run.folder), max_steps=200, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        logging_steps=1, eval_strategy="steps", eval_steps=6, save_strategy="steps", save_steps=6, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", label_smoothing_factor=0.1,
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, disable_tqdm=True, seed=3)
    one = hf.Trainer(model=model, args=options, train_dataset=Sentences(0, 24), eval_dataset=Sentences(100, 6),
                     optimizers=(optimizer, scheduler),
                     callbacks=[Looks(run), hf.EarlyStoppingCallback(early_stopping_patience=4)])
    one.train()
    assert one.state.global_step < 100, "it should have stopped early"
    looked_at.schedulers = [scheduler]
    looked_at.watch = [one.state.best_metric, one.state.global_step]
    return looked_at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_trainer(mode, tmp_path):
    check(trainer, mode, tmp_path)
