"""A run of milliseconds, and all that it leaves."""

import json
import shutil

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, VOCABULARY = 16, 32, 257
RUN = ["train", "run.toml", "--output.sample_tokens=0"]


def write_tiny_model(path, tokenizer, hidden=HIDDEN, inner=INNER, layers=1):
    """A Llama, by default of one layer: a step takes a millisecond, a checkpoint 80 KB."""
    draw = np.random.default_rng(0)
    matrix = lambda *shape: (0.1 * draw.standard_normal(shape)).astype(np.float32)
    ones = np.ones(hidden, np.float32)
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, hidden), "model.norm.weight": ones}
    for layer in (f"model.layers.{index}." for index in range(layers)):
        weights |= {layer + "input_layernorm.weight": ones, layer + "post_attention_layernorm.weight": ones,
                    layer + "mlp.gate_proj.weight": matrix(inner, hidden),
                    layer + "mlp.up_proj.weight": matrix(inner, hidden),
                    layer + "mlp.down_proj.weight": matrix(hidden, inner)}
        weights |= {f"{layer}self_attn.{name}_proj.weight": matrix(hidden, hidden) for name in "qkvo"}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "intermediate_size": inner, "vocab_size": VOCABULARY, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "bos_token_id": 256, "eos_token_id": 256, "torch_dtype": "float32"}))
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        if tokenizer != path:
            shutil.copy(tokenizer / name, path / name)


def outcome(path):
    """Every byte that a run leaves, but how long its steps took."""
    metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        for key in ["time", "step_seconds", "tokens_per_second", "mfu"]:
            line.pop(key, None)
    newest = max(path.glob("checkpoint-*"))
    files = {file.relative_to(path): file.read_bytes() for folder in [path / "model", newest]
             for file in folder.iterdir()}
    names = {file.name for file in files}
    assert {"model.safetensors", "trainer_state.json"} <= names and any("optimizer" in name for name in names)
    return metrics, files
