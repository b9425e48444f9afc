"""Low-rank adapters against the peft package: its files in, the same step, files that it loads out."""

import json
import subprocess

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_families import RELATIVE, assert_close, build_batch, build_model, config_of, run_cpp, run_transformers
from transformers import AutoModelForCausalLM

ADAPTERS = {
    "llama": ("llama_grouped", {"target_modules": ["q_proj", "v_proj"]}),
    "llama_rank_stabilized": ("llama", {"target_modules": ["down_proj"], "use_rslora": True, "r": 3, "lora_alpha": 7}),
    "qwen3_all": ("qwen3", {"target_modules": "all-linear"}),
    "glm4": ("glm4", {"target_modules": ["gate_up_proj", "o_proj"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True}),
    "bloom": ("bloom", {"target_modules": ["query_key_value"]}),
}


def build_adapted(directory, family, options, dtype=torch.float32):
    """A base model and an adapter with nothing at zero, both saved by their own packages."""
    build_model(config_of(family)).to(dtype).save_pretrained(directory / "model")
    base = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=dtype).eval()
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.2)
    model.save_pretrained(directory / "adapter")
    return model


def grads_of(model):
    return {name.removeprefix("base_model.model.").removesuffix(".default.weight"): parameter.grad
            for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_step_equals_that_of_peft(build_dir, tmp_path, adapter):
    model = build_adapted(tmp_path, *ADAPTERS[adapter])
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path, "--adapter", tmp_path / "adapter")
    for name, value in run_transformers(model, ids, labels).items():
        assert_close(cpp[name], value, name, RELATIVE)
    expected = grads_of(model)
    assert {name.removeprefix("grad.") for name in cpp if name.startswith("grad.")} == set(expected)
    for name, grad in expected.items():
        assert_close(cpp[f"grad.{name}"], grad, name, RELATIVE)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_peft_loads_what_is_written(build_dir, tmp_path, adapter):
    model = build_adapted(tmp_path, *ADAPTERS[adapter])
    ids, labels = build_batch()
    run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path, "--adapter", tmp_path / "adapter")
    written = tmp_path / "out.safetensors.adapter"
    before, after = (load_file(path / "adapter_model.safetensors") for path in (tmp_path / "adapter", written))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval(), written).eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_adapters_of_a_bfloat16_model_are_float32(build_dir, tmp_path):
    model = build_adapted(tmp_path, "llama", {"target_modules": ["q_proj", "up_proj"]}, torch.bfloat16)
    ids, labels = build_batch()
    cpp = run_cpp(build_dir, tmp_path / "model", ids, labels, tmp_path, "--adapter", tmp_path / "adapter")
    for name, value in run_transformers(model, ids, labels).items():
        assert_close(cpp[name], value, name, RELATIVE)
    for name, grad in grads_of(model).items():
        assert grad.dtype == torch.float32
        assert_close(cpp[f"grad.{name}"], grad, name, RELATIVE)


@pytest.mark.parametrize("field, value, message", [
    ("use_dora", True, "use_dora is true"),
    ("bias", "all", 'bias is "all"'),
    ("peft_type", "IA3", 'peft_type is "IA3"'),
    ("rank_pattern", {"q_proj": 4}, "rank_pattern is an object"),
    ("modules_to_save", ["lm_head"], "modules_to_save is a list"),
    ("target_modules", ".*q_proj", 'target_modules is ".*q_proj"'),
    ("target_modules", ["W_pack"], 'target module "W_pack" names no matrix of the model\'s layers'),
    ("r", 4, "lora_A.weight is Float (8, 64) in the adapter; expected floating-point numbers (4, 64)"),
])
def test_what_is_not_plain_lora_is_refused(build_dir, tmp_path, field, value, message):
    build_adapted(tmp_path, "llama", {"target_modules": ["q_proj"]})
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    ids, labels = build_batch()
    save_file({"ids": ids, "labels": labels}, tmp_path / "in.safetensors")
    done = subprocess.run([build_dir / "tests/decoder_parity", tmp_path / "model", tmp_path / "in.safetensors",
                           tmp_path / "out.safetensors", "--adapter", tmp_path / "adapter"],
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr
