"""The C++ decoder against transformers, family by family: logits, loss, every gradient, and what is written back.

Needs the program decoder_parity: `ninja -C build/release decoder_parity && pytest tests/parity/test_families.py`.
"""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import sdpa_attention

RELATIVE = 1e-5

SHAPE = dict(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
             initializer_range=0.15)
TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)
GPT = dict(vocab_size=96, n_layer=3, n_head=4, initializer_range=0.15, bos_token_id=1, eos_token_id=2)
GPT2 = {**GPT, "model_type": "gpt2", "n_embd": 64, "n_positions": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
GLM = dict(model_type="glm", num_key_value_heads=2, head_dim=16, pad_token_id=0, eos_token_id=[2, 3])
QWEN_WINDOW = dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)

# One row a family, and one for each switch that its rows of switches can have in two positions.
FAMILIES = {
    "llama": dict(model_type="llama"),
    "llama_grouped": dict(model_type="llama", num_key_value_heads=2),
    "llama_multi_query_wide_heads": dict(model_type="llama", num_key_value_heads=1, head_dim=24),
    "llama_tied": dict(model_type="llama", tie_word_embeddings=True),
    "llama_biases": dict(model_type="llama", attention_bias=True, mlp_bias=True),
    "llama_rope_eps_pad": dict(model_type="llama", rope_theta=500000.0, rms_norm_eps=1e-3, pad_token_id=0),
    "llama3.1": dict(model_type="llama", rope_theta=500000.0, rope_scaling=LLAMA3, num_key_value_heads=2),
    "llama_linear": dict(model_type="llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "mistral": dict(model_type="mistral", num_key_value_heads=2, sliding_window=7),
    "mistral_no_window": dict(model_type="mistral", num_key_value_heads=2, sliding_window=None),
    "mistral_long_window": dict(model_type="mistral", num_key_value_heads=2, sliding_window=40),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=2),
    "qwen2_window": dict(model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True, **QWEN_WINDOW),
    "qwen2_all_layers_slide": dict(model_type="qwen2", num_key_value_heads=2,
                                   **{**QWEN_WINDOW, "max_window_layers": 0}),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=24),
    "qwen3_window_bias": dict(model_type="qwen3", num_key_value_heads=2, head_dim=16, attention_bias=True,
                              **QWEN_WINDOW),
    "olmo": dict(model_type="olmo"),
    "olmo_clip": dict(model_type="olmo", num_key_value_heads=2, clip_qkv=0.7),
    "olmo2": dict(model_type="olmo2", num_key_value_heads=2),
    "olmo2_linear": dict(model_type="olmo2", rope_scaling={"type": "linear", "factor": 4.0}),
    "olmo2_dynamic": dict(model_type="olmo2", max_position_embeddings=16,
                          rope_scaling={"type": "dynamic", "factor": 4.0}),
    "glm": GLM,
    "glm4": {**GLM, "model_type": "glm4"},
    "gemma2": dict(model_type="gemma2", num_key_value_heads=2, head_dim=16, sliding_window=7, query_pre_attn_scalar=20,
                   attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gpt2": GPT2,
    "gpt2_untied_inner": {**GPT2, "n_inner": 80, "tie_word_embeddings": False, "activation_function": "gelu"},
    "bloom": dict(**GPT, model_type="bloom", hidden_size=64),
    "bloom_odd_heads": dict(**{**GPT, "n_head": 6}, model_type="bloom", hidden_size=48,
                            apply_residual_connection_post_layernorm=True),
}


def config_of(family):
    row = FAMILIES[family]
    shape = {} if row["model_type"] in ("gpt2", "bloom") else {**SHAPE, **TOKENS}
    return AutoConfig.for_model(**{**shape, **row})


def attention_of(config):
    """Soft-capping of scores and ALiBi are what transformers has in its eager attention alone."""
    return "eager" if config.model_type in ("gemma2", "bloom") else "sdpa"


def build_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases away from one and zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(autouse=True)
def repeated_heads(monkeypatch):
    """Grouped heads as here and in transformers 4: transformers 5 leaves them to the kernel, which sums gradients in another
    order."""
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)


def build_batch():
    ids = torch.randint(0, 96, (3, 40), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    labels[1, 5:20] = -100
    return ids, labels


def run_cpp(build_dir, model_dir, ids, labels, tmp_path, *arguments):
    save_file({"ids": ids, "labels": labels}, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    command = [build_dir / "tests/decoder_parity", model_dir, tmp_path / "in.safetensors", out, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def run_transformers(model, ids, labels):
    out = model(input_ids=ids, use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits.float().flatten(0, 1), labels.flatten())
    loss.backward()
    return {"logits": out.logits.detach(), "loss": loss.detach()}


def assert_close(actual, expected, name, relative=RELATIVE):
    """Relative to the largest value: single entries of a sum near zero carry its rounding error."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
    error = (actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    assert error <= relative, f"{name}: relative error {error:.2e}"


def assert_same_step(cpp, expected, model, relative):
    for name, value in expected.items():
        assert_close(cpp[name], value, name, relative)
    parameters = dict(model.named_parameters())
    assert {name.removeprefix("grad.") for name in cpp if name.startswith("grad.")} == set(parameters)
    for name, parameter in parameters.items():
        assert_close(cpp[f"grad.{name}"], parameter.grad, name, relative)


def assert_same_files(written, original):
    configs = [AutoConfig.from_pretrained(path).to_dict() | {"_name_or_path": ""} for path in (written, original)]
    assert configs[0] == configs[1]
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (written, original))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype and torch.equal(tensor, ours[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_equals_transformers(build_dir, tmp_path, family):
    model = build_model(config_of(family))
    model.save_pretrained(tmp_path / "model")
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path)
    exact = family.startswith("llama")  # operation by operation
    assert_same_step(cpp, run_transformers(model, ids, labels), model, 0.0 if exact else RELATIVE)
    assert_same_files(tmp_path / "out.safetensors.model", tmp_path / "model")
    before, after = (load_file(tmp_path / path / "model.safetensors") for path in ("model", "out.safetensors.model"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "glm", "glm4", "gemma2"])
def test_bfloat16_equals_transformers(build_dir, tmp_path, family):
    """The same kernels in the same order, so bfloat16 has no rounding of its own to add."""
    build_model(config_of(family)).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    # Loaded, not cast: .to(bfloat16) would round the rotary frequencies too, which from_pretrained keeps in float32.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16,
                                                 attn_implementation=attention_of(config_of(family)))
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path)
    assert_same_step(cpp, run_transformers(model, ids, labels), model, 0.0 if family == "llama" else RELATIVE)
    assert_same_files(tmp_path / "out.safetensors.model", tmp_path / "model")


@pytest.mark.parametrize("family", ["mistral", "qwen3", "olmo2", "glm4", "gemma2", "gpt2", "bloom"])
def test_a_model_of_several_files(build_dir, tmp_path, family):
    """Read, and written again with every tensor in the file where transformers has it."""
    model = build_model(config_of(family))
    model.save_pretrained(tmp_path / "model", max_shard_size=60_000)
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path, "--max-shard", "60000")
    assert_same_step(cpp, run_transformers(model, ids, labels), model, RELATIVE)
    assert_same_files(tmp_path / "out.safetensors.model", tmp_path / "model")
    ours, theirs = (json.loads((tmp_path / path / "model.safetensors.index.json").read_text())
                    for path in ("out.safetensors.model", "model"))
    assert ours == theirs


def test_dropout_draws_the_numbers_of_transformers(build_dir, tmp_path):
    """The same draws in the same order from the same seed."""
    model = build_model(config_of("gpt2"))
    model.save_pretrained(tmp_path / "model")
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path, "--train", "5")
    model.train()
    torch.manual_seed(5)
    expected = run_transformers(model, ids, labels)
    assert_same_step(cpp, {"loss": expected["loss"]}, model, RELATIVE)


def test_a_bare_gpt2_file_with_tables(build_dir, tmp_path):
    """As the first GPT-2 files are: names without "transformer.", causal masks among the weights."""
    model = build_model(config_of("gpt2"))
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    bare |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(3)}
    save_file(bare, path, {"format": "pt"})
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path)
    assert_same_step(cpp, run_transformers(model, ids, labels), model, RELATIVE)


def test_rope_parameters_of_transformers_5_are_written_back(build_dir, tmp_path):
    model = build_model(config_of("llama"))
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text()) | {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
    config.pop("rope_theta", None)  # which transformers 4 has written
    path.write_text(json.dumps(config))
    run_cpp(build_dir, tmp_path / "model", *build_batch(), tmp_path)
    assert json.loads((tmp_path / "out.safetensors.model/config.json").read_text()) == config
