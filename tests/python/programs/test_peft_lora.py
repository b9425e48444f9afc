"""PEFT: a transformers model with LoRA adapters, two of them in turn, in the loop of PEFT's own examples."""

import peft
import pytest
import torch
import transformers as hf

from harness import Training, source_of
from programs.program import check

VOCABULARY, STEPS = 48, 30


def batches():
    for i in range(STEPS):
        ids = torch.randint(3, VOCABULARY, (4, 10), generator=source_of(i))
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def lora(run):
    config = hf.LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)
    options = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
    model = peft.get_peft_model(hf.LlamaForCausalLM(config), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    run.started(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = hf.get_linear_schedule_with_warmup(optimizer, 3, STEPS)
    looked_at = Training(None, [model], [optimizer], [scheduler])
    model, optimizer = run.accelerate(model, optimizer)
    model.train()
    for step, batch in enumerate(batches()):
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.saw(loss.detach(), outputs.logits.detach())
        if step % 10 == 5:
            model.eval()
            with torch.no_grad(), model.disable_adapter():
                run.saw(model(**batch).loss)
            model.train()
    merged = model.merge_and_unload()
    looked_at.watch = dict(merged.state_dict())
    return looked_at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_lora(mode, tmp_path):
    check(lora, mode, tmp_path)
