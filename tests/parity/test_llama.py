"""The C++ Llama against transformers: logits, loss, gradients, weights and the config written back."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

RELATIVE = 1e-5

VARIANTS = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "multi_query_wide_heads": {"num_key_value_heads": 1, "head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "rope_eps_pad": {"rope_theta": 500000.0, "rms_norm_eps": 1e-3, "pad_token_id": 0},
}


def build_model(**fields):
    torch.manual_seed(0)
    shape = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(**{**shape, "attention_dropout": 0.0, "initializer_range": 0.15, **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases away from one and zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def build_batch():
    ids = torch.randint(0, 96, (3, 40), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    labels[1, 5:20] = -100
    return ids, labels


def run_cpp(build_dir, model, ids, labels, tmp_path):
    model.save_pretrained(tmp_path / "model")
    save_file({"ids": ids, "labels": labels}, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    command = [build_dir / "tests/llama_parity", tmp_path / "model", tmp_path / "in.safetensors", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(out), json.loads((tmp_path / "out.safetensors.config.json").read_text())


def run_transformers(model, ids, labels):
    out = model(input_ids=ids, shift_labels=labels, labels=labels, use_cache=False)
    out.loss.backward()
    return out.logits.detach(), out.loss.detach()


def assert_close(actual, expected, name, relative=RELATIVE):
    """Relative to the largest value: single entries of a sum near zero carry its rounding error."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
    error = (actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    assert error < relative, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_equals_transformers(build_dir, tmp_path, variant):
    model = build_model(**VARIANTS[variant])
    ids, labels = build_batch()
    cpp, _ = run_cpp(build_dir, model, ids, labels, tmp_path)
    logits, loss = run_transformers(model, ids, labels)

    assert_close(cpp["logits"], logits, "logits")
    assert_close(cpp["loss"], loss, "loss")
    parameters = dict(model.named_parameters())
    assert {name.removeprefix("grad.") for name in cpp if name.startswith("grad.")} == set(parameters)
    for name, parameter in parameters.items():
        assert torch.equal(cpp[f"weight.{name}"], parameter), name
        assert_close(cpp[f"grad.{name}"], parameter.grad, name)


def test_bfloat16_equals_transformers(build_dir, tmp_path):
    """The same kernels in the same order, so bfloat16 has no rounding of its own to add."""
    build_model().to(torch.bfloat16).save_pretrained(tmp_path / "start")
    # Loaded, not cast: .to(bfloat16) would round the rotary frequencies too, which from_pretrained keeps in float32.
    model = LlamaForCausalLM.from_pretrained(tmp_path / "start", dtype=torch.bfloat16)
    ids, labels = build_batch()
    cpp, config = run_cpp(build_dir, model, ids, labels, tmp_path)
    logits, loss = run_transformers(model, ids, labels)
    assert config["dtype"] == "bfloat16"
    assert_close(cpp["logits"], logits, "logits")
    assert_close(cpp["loss"], loss, "loss")
    for name, parameter in model.named_parameters():
        assert torch.equal(cpp[f"weight.{name}"], parameter), name
        assert_close(cpp[f"grad.{name}"], parameter.grad, name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_config_written_back_means_the_same(build_dir, tmp_path, variant):
    model = build_model(**VARIANTS[variant])
    _, config = run_cpp(build_dir, model, *build_batch(), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert LlamaConfig.from_pretrained(tmp_path).to_dict() == LlamaConfig.from_pretrained(tmp_path / "model").to_dict()
