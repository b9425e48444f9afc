"""The C++ Baichuan, which transformers does not have, against a reference written here from its published formulas:
Llama's layers over one matrix for query, key and value; the 7B with rotary positions, the 13B with ALiBi
(https://arxiv.org/abs/2108.12409), the second generation with an output matrix of unit rows.
"""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_families import assert_close, build_batch, run_cpp
from torch.nn import functional as F

RELATIVE = 1e-5
LAYERS, HIDDEN, INNER, VOCAB = 3, 60, 112, 96
CONFIG = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "hidden_size": HIDDEN,
          "intermediate_size": INNER, "num_hidden_layers": LAYERS, "hidden_act": "silu", "rms_norm_eps": 1e-6,
          "initializer_range": 0.02, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
          "tie_word_embeddings": False, "torch_dtype": "float32", "_from_model_config": True}
SIZES = {
    "7b": {"num_attention_heads": 6, "max_position_embeddings": 64, "vocab_size": VOCAB},
    "13b": {"num_attention_heads": 6, "model_max_length": 64, "vocab_size": VOCAB},
    "13b_power_of_two": {"num_attention_heads": 4, "model_max_length": 64, "vocab_size": VOCAB},
    "second_7b": {"num_attention_heads": 6, "max_position_embeddings": 64, "vocab_size": 125696},
}


def random_weights(vocab):
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (vocab, HIDDEN)}
    for i in range(LAYERS):
        layer = {"self_attn.W_pack": (3 * HIDDEN, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                 "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
                 "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {name: (torch.randn(shape, generator=generator) * 0.15 + (len(shape) == 1)).requires_grad_()
            for name, shape in shapes.items()}


def slopes(heads):
    """2^(-8/n), 2^(-16/n), ... for a power of two; else those of the power below, then every second of the one above."""
    def of_power(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]
    below = 2 ** math.floor(math.log2(heads))
    return torch.tensor(of_power(below) + of_power(2 * below)[0::2][:heads - below])


def rotated(x):
    half = x.shape[-1] // 2
    inverse = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * inverse
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def rms_norm(x, weight):
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def reference(w, ids, config):
    heads = config["num_attention_heads"]
    seq = ids.shape[1]
    distance = torch.arange(seq)[:, None] - torch.arange(seq)[None, :]
    bias = torch.zeros(1, seq, seq) if "max_position_embeddings" in config else -slopes(heads)[:, None, None] * distance
    bias = bias.masked_fill(distance < 0, -math.inf)
    x = F.embedding(ids, w["model.embed_tokens.weight"], padding_idx=0)
    for i in range(LAYERS):
        layer = {name.removeprefix(f"model.layers.{i}."): value for name, value in w.items()}
        h = rms_norm(x, layer["input_layernorm.weight"]) @ layer["self_attn.W_pack.weight"].T
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in h.chunk(3, -1))
        if "max_position_embeddings" in config:
            q, k = rotated(q), rotated(k)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
        x = x + (scores @ v).transpose(1, 2).flatten(-2) @ layer["self_attn.o_proj.weight"].T
        h = rms_norm(x, layer["post_attention_layernorm.weight"])
        h = F.silu(h @ layer["mlp.gate_proj.weight"].T) * (h @ layer["mlp.up_proj.weight"].T)
        x = x + h @ layer["mlp.down_proj.weight"].T
    head = w["lm_head.weight"]
    if config["vocab_size"] == 125696:
        head = head / head.norm(dim=1, keepdim=True)
    return rms_norm(x, w["model.norm.weight"]) @ head.T


@pytest.mark.parametrize("size", SIZES)
def test_baichuan_follows_the_formulas(build_dir, tmp_path, size):
    config = CONFIG | SIZES[size]
    weights = random_weights(config["vocab_size"])
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    save_file({name: value.detach() for name, value in weights.items()}, model / "model.safetensors")
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, model, ids, labels, tmp_path)

    logits = reference(weights, ids, config)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    assert_close(cpp["logits"], logits.detach(), "logits", RELATIVE)
    assert_close(cpp["loss"], loss.detach(), "loss", RELATIVE)
    assert {name.removeprefix("grad.") for name in cpp if name.startswith("grad.")} == set(weights)
    for name, weight in weights.items():
        assert_close(cpp[f"grad.{name}"], weight.grad, name, RELATIVE)

    back = tmp_path / "out.safetensors.model"
    assert json.loads((back / "config.json").read_text()) == config
    written = load_file(back / "model.safetensors")
    assert all(torch.equal(written[name], weight) for name, weight in weights.items())
