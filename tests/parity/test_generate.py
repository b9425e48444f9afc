"""`stepc generate` against transformers: the same greedy continuation, token by token, of prompts short and long.

    pytest tests/parity/test_generate.py
"""

import json
import random
import subprocess

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from test_families import FAMILIES, attention_of

WORDS = "light and the deep was upon face of waters earth heaven void".split()
NAMES = ["llama", "qwen2_window", "qwen3", "olmo2", "glm", "gemma2", "gpt2", "bloom"]
# What a post-processor puts around a text.
AROUND = {"glm": ["<s>", "</s>", "$A"], "gemma2": ["<s>", "$A"], "gpt2": ["$A", "<s>"]}


def text_of(count, seed=0):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def build_tokenizer(around):
    """Of letters and some words, so that whatever a model says is text that can be read back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text_of(500)], trainers.BpeTrainer(
        vocab_size=60, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(around), special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                   model_input_names=["input_ids", "attention_mask"])


def save_model(path, family):
    row = {**FAMILIES[family], "vocab_size": 60, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 59,
           "pad_token_id": None}
    sizes = {"n_layer": 2, "n_head": 4, "n_positions": 900} if row["model_type"] in ("gpt2", "bloom") else \
        {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(**{**row, **sizes})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config)).eval()
    model.save_pretrained(path)
    build_tokenizer(AROUND.get(family, ["<s>", "$A"])).save_pretrained(path)
    return model


def new_ids(model, tokenizer, prompt, count):
    ids = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        return model.generate(**ids, max_new_tokens=count, do_sample=False)[0, ids["input_ids"].shape[1]:].tolist()


def continuation(model, tokenizer, prompt, count):
    out = new_ids(model, tokenizer, prompt, count)
    if out and out[-1] == model.config.eos_token_id:
        out.pop()
    return tokenizer.decode(out)


@pytest.mark.parametrize("family", NAMES)
def test_greedy_is_that_of_transformers(stepc, family):
    model = save_model(stepc.path / family, family)
    tokenizer = AutoTokenizer.from_pretrained(stepc.path / family)
    for prompt in [text_of(1), text_of(480, seed=3)]:
        done = stepc("generate", family, "--prompt", prompt, "--temperature", "0", "--tokens", "40")
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert done.stdout == prompt + continuation(model, tokenizer, prompt, 40) + "\n"
    assert len(tokenizer(prompt)["input_ids"]) > 700


def tokenizer_of_bytes(kind):
    """Whose tokens are bytes: in GPT-2's alphabet, or as "<0x00>"."""
    if kind == "byte level":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"])


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_a_pipe_gets_the_bytes_of_transformers(stepc, kind):
    """Control characters, and U+FFFD where the model says bytes that are no character, as often as there."""
    tokenizer = tokenizer_of_bytes(kind)
    tokenizer.save_pretrained(stepc.path / "bytes")
    size = len(tokenizer)
    config = AutoConfig.for_model("llama", vocab_size=size, hidden_size=260, intermediate_size=16, num_hidden_layers=1,
                                  num_attention_heads=2, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # a token's successor is the next of the vocabulary, so that all are said
        model.model.embed_tokens.weight.copy_(torch.eye(size, 260))
        model.lm_head.weight.copy_(torch.eye(size, 260).roll(1, 0))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
    model.save_pretrained(stepc.path / "bytes")
    expected = tokenizer.decode(new_ids(model, tokenizer, "the", 250))
    done = subprocess.run([stepc.binary, "generate", "bytes", "--prompt", "the", "--temperature", "0", "--tokens", "250"],
                          cwd=stepc.path, capture_output=True)
    assert done.returncode == 0 and done.stdout == ("the" + expected + "\n").encode(), done
    assert "\ufffd" in expected and "\x1b" in expected and "\x00" in expected


def test_the_end_token_is_the_one_that_transformers_takes(stepc):
    model = save_model(stepc.path / "llama", "llama")
    tokenizer = AutoTokenizer.from_pretrained(stepc.path / "llama")
    said = new_ids(model, tokenizer, "light", 8)
    path = stepc.path / "llama/generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [58, said[5]]}))
    stopped = AutoModelForCausalLM.from_pretrained(stepc.path / "llama")
    *out, end = new_ids(stopped, tokenizer, "light", 8)
    assert len(out) <= 5 and end == said[5]
    done = stepc("generate", "llama", "--prompt", "light", "--temperature", "0", "--tokens", "8")
    assert done.stdout == "light" + tokenizer.decode(out) + "\n", done


def test_a_stop_ends_the_text_before_it(stepc):
    save_model(stepc.path / "llama", "llama")
    arguments = ["generate", "llama", "--prompt", "the deep", "--tokens", "60", "--temperature", "2"]
    whole = stepc(*arguments).stdout[len("the deep"):-1]
    assert len(whole) > 60
    first, second = whole[20:23], whole[30:32]
    done = stepc(*arguments, "--stop", second, "--stop", first)
    assert done.stdout == "the deep" + whole[:min(whole.find(first), whole.find(second))] + "\n"
    done = stepc(*arguments, "--stop", "")
    assert done.returncode == 2 and done.stderr == "stepc: --stop is empty: give the text to stop at\n"


def test_a_chat_is_in_the_template_and_ends_with_the_turn(stepc):
    """The answer of the text that transformers makes of the chat, up to the mark that ends a turn."""
    chat = [{"role": "user", "content": "the deep"}]
    path = stepc.path / "model/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% if m.role == 'assistant' %}|end|{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")}))
    text = AutoTokenizer.from_pretrained(stepc.path / "model").apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True)
    assert text == "user: the deep\nassistant: "
    options = ["--temperature", "0", "--tokens", "12"]
    whole = stepc("generate", "model", "--prompt", text, *options).stdout[len(text):]
    assert stepc("generate", "model", "--chat", "model", "--prompt", "the deep", *options).stdout == whole
    done = stepc("generate", "model", "--chat", "nobody", "--prompt", "the deep")
    assert done.returncode == 2 and "unknown chat template \"nobody\"" in done.stderr


def test_what_the_model_does_not_see_is_said(stepc):
    path = stepc.path / "model/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 32}))
    done = stepc("generate", "model", "--prompt", "a" * 40, "--tokens", "1")
    assert done.returncode == 0 and done.stderr == \
        "stepc: the prompt has 40 tokens and the model sees 32: its beginning was left out\n"
    done = stepc("generate", "model", "--prompt", "a" * 30, "--tokens", "9")
    assert done.returncode == 0 and done.stderr.startswith("stepc: the text outgrew the 32 tokens that the model sees")
    assert not stepc("generate", "model", "--prompt", "a" * 30, "--tokens", "3").stderr
