"""trl's SFTTrainer: chats through a template, loss on the completion alone, token accuracy and entropy logged."""

import pytest
import torch
import transformers as hf
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from harness import Training
from programs.program import check

WORDS = "red green blue one two three four add take give the to from and is was".split()


def tokenizer():
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "user", "bot", ":", *WORDS]
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                      unk_token="<unk>")


def prompts():
    pick = torch.Generator().manual_seed(0)
    words = lambda n: " ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (n,), generator=pick))
    return Dataset.from_list([{"prompt": f"user : {words(4)}", "completion": f" bot : {words(5)}"} for _ in range(40)])


class Looks(hf.TrainerCallback):
    def __init__(self, run):
        self.run = run

    def on_log(self, args, state, control, logs, **kwargs):
        if "loss" in logs:
            self.run.saw({key: value for key, value in logs.items() if not key.endswith(("runtime", "per_second"))})


def sft(run):
    words = tokenizer()
    config = hf.LlamaConfig(vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                            pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = hf.LlamaForCausalLM(config)
    run.started(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    looked_at = Training(None, [model], [optimizer])
    model, optimizer = run.accelerate(model, optimizer)
    scheduler = hf.get_cosine_schedule_with_warmup(optimizer, 3, 30)
    options = trl.SFTConfig(output_dir=str(run.folder), max_steps=30, per_device_train_batch_size=4, use_cpu=True,
                            report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True, seed=3, bf16=False,
                            gradient_checkpointing=False, max_length=32)
    trl.SFTTrainer(model=model, args=options, train_dataset=prompts(), processing_class=words,
                   optimizers=(optimizer, scheduler), callbacks=[Looks(run)]).train()
    looked_at.schedulers = [scheduler]
    return looked_at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_sft(mode, tmp_path):
    check(sft, mode, tmp_path)
