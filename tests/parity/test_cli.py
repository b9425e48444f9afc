"""What `stepc train` leaves behind, in the hands of transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("preset, parameters", [("llama-2m", "1.8 M"), ("qwen3-10m", "10.0 M"), ("olmo2-10m", "10.4 M"),
                                                ("gpt2-10m", "10.3 M")])
def test_a_preset_of_each_kind_loads(stepc, preset, parameters):
    result = stepc("init", "fresh", "--preset", preset)
    assert result.returncode == 0 and f"{preset} with {parameters} parameters" in result.stdout, result
    model, info = AutoModelForCausalLM.from_pretrained(stepc.path / "fresh", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert f"{model.num_parameters() / 1e6:.1f} M" == parameters
    result = stepc("train", "run.toml", "--model.path=fresh", "--train.steps=3", "--model.compute=bfloat16")
    assert result.returncode == 0, result.stderr


def test_a_fresh_model_loads(stepc):
    model, tokenizer = load(stepc.path / "model")
    text = "In the beginning, naïve café — 雨 \t\n  end"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == model.config.eos_token_id == 256
    assert len(tokenizer) <= model.config.vocab_size


def test_a_trained_model_loads(stepc):
    result = stepc("train", "run.toml", "--train.steps=6", "--output.save_every=3", "--model.compute=bfloat16")
    assert result.returncode == 0, result.stderr
    for path in [stepc.path / "out/model", stepc.path / "out/checkpoint-000006"]:
        model, tokenizer = load(path)
        ids = tokenizer("the deep was upon the face", return_tensors="pt")["input_ids"]
        assert ids.shape[1] == 26
        assert model.generate(**tokenizer("the deep", return_tensors="pt"), max_new_tokens=3).shape[1] > 8
        with torch.no_grad():
            assert model(ids).logits.isfinite().all()
    fresh, trained = (load_file(stepc.path / name / "model.safetensors") for name in ["model", "out/model"])
    assert fresh.keys() == trained.keys()
    assert all(not torch.equal(fresh[name], trained[name]) for name in fresh)
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}  # the master weights, not their rounding


def test_held_out_loss_is_that_of_transformers(stepc):
    """The same windows, the same weights: `stepc eval` says what transformers computes."""
    result = stepc("eval", "run.toml", "--data.eval_windows=1000")
    assert result.returncode == 0, result.stderr
    model, tokenizer = load(stepc.path / "model")
    ids = tokenizer((stepc.path / "text.txt").read_text())["input_ids"] + [tokenizer.eos_token_id]
    held_out = torch.tensor(ids[len(ids) - round(len(ids) * 0.1):])
    windows = torch.stack([held_out[i * 32:i * 32 + 33] for i in range((len(held_out) - 1) // 32)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    said = float(result.stdout.split("held-out loss ")[1].split()[0])
    assert abs(said - expected) < 2e-3, result.stdout


def test_metrics_are_json_lines(stepc):
    assert stepc("train", "run.toml", "--output.eval_every=2").returncode == 0
    lines = [json.loads(line) for line in (stepc.path / "out/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "loss" in line) for line in lines] == \
        [(0, False), (1, True), (2, True), (2, False), (3, True), (4, True), (4, False)]
    for line in lines:
        keys = {"loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu"} if "loss" in line \
            else {"held_out_loss", "held_out_nats_per_byte"}
        assert keys <= line.keys()


def test_generate_continues_the_prompt(stepc):
    results = [stepc("generate", "model", "--prompt", "the deep", "--tokens", "8", "--seed", seed) for seed in "112"]
    assert all(result.returncode == 0 and result.stdout.startswith("the deep") for result in results)
    assert results[0].stdout == results[1].stdout != results[2].stdout
