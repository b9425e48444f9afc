"""Files of other people's formats: safetensors bit-equal both ways, tokenizer.json with the ids of `tokenizers`.

Needs the program format_parity: `ninja -C build/release format_parity && pytest tests/parity/test_formats.py`.
"""

import json
import random
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
DTYPES += ["float8_e4m3fn", "float8_e5m2"]
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)]


def random_tensor(dtype, shape, generator):
    """Any bits, NaN and denormals included."""
    dtype = getattr(torch, dtype)
    size = torch.empty((), dtype=dtype).element_size()
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    count = torch.Size(shape).numel()
    raw = torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def random_text(rng):
    """From few symbols, so that words, spaces and special tokens meet in all ways, or from all of Unicode."""
    few = ["a", "the", "The", " ", "  ", "\n", "\r\n", "\t", "1", "23", "'s", "'LL", "'", "!?", "é", "中文", "🙂",
           "\u00a0", "\u0085", "\u180e", "\u3000", "<|endoftext|>", "<|end", "|>", "<tool>", "\u0301"]
    if rng.random() < 0.6:
        return "".join(rng.choice(few) for _ in range(rng.randrange(40)))
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000)]
    return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.randrange(60)))


def bpe_tokenizer():
    """A byte-level BPE in the manner of GPT-2, trained on the spot."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(1)
    words = ["the", "there", "then", "theory", "straße", "été", "étude", "中文字", "中国", "12", "2024", "don't", "we'll"]
    corpus = [" ".join(rng.choices(words, k=30)) + rng.choice(["\n", "  \n", " !?\n"]) for _ in range(300)]
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    return tokenizer


@pytest.fixture(scope="module")
def directory(build_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("formats")
    generator = torch.Generator().manual_seed(0)
    tensors = {f"{d}.{i}": random_tensor(d, s, generator) for d in DTYPES for i, s in enumerate(SHAPES)}
    save_file(tensors, directory / "all.safetensors", {"format": "pt"})
    save_file({}, directory / "empty.safetensors")
    save_file({'odd "name"\n\u4e2d': torch.ones(3)}, directory / "odd.safetensors")

    rng = random.Random(0)
    texts = [random_text(rng) for _ in range(1500)]
    for name in ("byte", "bpe"):
        (directory / name).mkdir()
        (directory / name / "texts.json").write_text(json.dumps(texts))
    bpe_tokenizer().save(str(directory / "bpe/tokenizer.json"))
    done = subprocess.run([build_dir / "tests/format_parity", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("name", ["all", "empty", "odd"])
def test_safetensors_are_byte_equal(directory, name):
    theirs, ours = directory / f"{name}.safetensors", directory / f"ours/{name}.safetensors"
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(ours).keys() == load_file(theirs).keys()


@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_tokenizer_gives_the_same_ids_and_text(directory, name):
    theirs = Tokenizer.from_file(str(directory / name / "tokenizer.json"))
    ours = json.loads((directory / name / "ours.json").read_text())
    texts = json.loads((directory / name / "texts.json").read_text())
    for text, ids, decoded in zip(texts, ours["ids"], ours["decoded"], strict=True):
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert decoded == text == theirs.decode(ids, skip_special_tokens=False)


def test_transformers_loads_the_byte_tokenizer(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory / "byte")
    assert len(tokenizer) == 257 and tokenizer.eos_token_id == 256
    ours = json.loads((directory / "byte/ours.json").read_text())
    texts = json.loads((directory / "byte/texts.json").read_text())
    for text, ids in zip(texts, ours["ids"], strict=True):
        assert ids == tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
