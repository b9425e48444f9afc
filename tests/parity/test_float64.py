"""`stepc train` in float64 against transformers and torch.optim: what is left is the order of sums.

transformers computes norms in float32 whatever the model, and stepc those of float64 models in float64, so its norm is
put right here. Both make the angles of the rotation in float32.

    pytest tests/parity/test_float64.py
"""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

STEPS, LENGTH, RATE = 5, 32, 1e-2


class Norm(torch.nn.Module):
    """LlamaRMSNorm in its own dtype."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@pytest.fixture
def model(stepc):
    """A tied Llama in place of the workspace's model, and a text of one window, which every step then sees."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.1, rope_theta=10000.0)
    model = LlamaForCausalLM(config).double()
    for file in ["model.safetensors", "config.json", "generation_config.json"]:
        (stepc.path / "model" / file).unlink()
    model.save_pretrained(stepc.path / "model")
    model.model.norm = Norm(model.model.norm)
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = map(
            Norm, [layer.input_layernorm, layer.post_attention_layernorm])
    text = (stepc.path / "text.txt").read_text()[:LENGTH + 1]
    (stepc.path / "text.txt").write_text(text)
    stepc.ids = AutoTokenizer.from_pretrained(stepc.path / "model")(text, return_tensors="pt")["input_ids"]
    assert stepc.ids.shape == (1, LENGTH + 1)
    return model


def train(model, ids):
    """The losses of transformers' steps."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_five_steps_are_those_of_transformers(stepc, model, mode):
    done = stepc("train", "run.toml", "--model.compute=float64", f"--train.steps={STEPS}", f"--optim.lr={RATE}",
                 "--optim.schedule=constant", "--optim.warmup_steps=0", f"--data.seq_len={LENGTH}", "--data.eval_fraction=0",
                 f"--train.mode={mode}")
    assert done.returncode == 0, done.stderr
    expected = train(model, stepc.ids)
    lines = [json.loads(line) for line in (stepc.path / "out/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == STEPS and max(abs(a - b) for a, b in zip(losses, expected)) < 1e-12, (losses, expected)
    ours = load_file(stepc.path / "out/model/model.safetensors")
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            assert (ours[name] - weight).abs().max() < 1e-12, name
