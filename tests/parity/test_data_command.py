"""`stepc data`: shards and samples from the command line, with the tokens of the `tokenizers` package.

    pytest tests/parity/test_data_command.py
"""

import json
import subprocess

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHATS = [[{"role": "user", "content": f"What is {i}+{i}?"}, {"role": "assistant", "content": f"It is {2 * i}."}]
         for i in range(40)]


@pytest.fixture
def data(build_dir, tmp_path):
    """The command `stepc data` in a directory with a tokenizer, a text and chats."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "".join(f"Line {i} says that {i * i} is a square.\n" for i in range(500))
    tokenizer.train_from_iterator(text.splitlines(), trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))

    def run(*arguments):
        return subprocess.run([build_dir / "src/stepc", "data", *arguments], cwd=tmp_path, capture_output=True, text=True,
                              timeout=60)

    run.path, run.tokenizer = tmp_path, tokenizer
    return run


def test_tokenize_makes_shards_once(data):
    first = data("tokenize", "model", "a.txt", "chats.jsonl", "--field", "none")
    assert first.returncode == 2 and 'chats.jsonl:1: "none" is missing' in first.stderr
    first = data("tokenize", "model", "a.txt")
    count = len(data.tokenizer.encode((data.path / "a.txt").read_text()).ids) + 1
    assert first.returncode == 0 and first.stdout.startswith(f"{count / 1000:.1f} k tokens of 1 document"), first.stdout
    assert "1 new shard in token-cache" in first.stdout
    assert "0 new shards" in data("tokenize", "model", "a.txt").stdout


def test_tokenize_makes_the_stream_of_a_run(stepc):
    """Where the tokenizer has no <|endoftext|>, the model's own end of text ends a document in both."""
    path = stepc.path / "model/tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<eos>"))
    config = stepc.path / "model/tokenizer_config.json"
    config.write_text(config.read_text().replace("<|endoftext|>", "<eos>"))
    assert stepc("train", "run.toml", "--train.steps=1", "--output.sample_tokens=0").returncode == 0
    for tokenizer in ["model", "model/tokenizer.json"]:
        done = stepc("data", "tokenize", tokenizer, "text.txt", "--cache", "out/tokens")
        assert done.returncode == 0 and "; 0 new shards in out/tokens" in done.stdout, done
    done = stepc("data", "inspect", "model", "text.txt", "--cache", "out/tokens", "--separator", "<|endoftext|>")
    assert done.returncode == 2 and done.stderr == \
        'stepc: --separator "<|endoftext|>": the tokenizer has no such added token; "" for none\n'


def test_inspect_shows_the_assistants_turns_as_learned(data):
    done = data("inspect", "model", "chats.jsonl", "--chat", "chatml", "--seq-len", "200", "--sample", "1")
    assert done.returncode == 0, done.stderr
    head, *runs = done.stdout.splitlines()
    learned = [run.split(": ", 1)[1] for run in runs if " not learned" not in run]
    assert head.startswith("sample 1: window") and len(learned) > 3
    assert all(text.startswith("It is ") and text.endswith(".<|im_end|>⏎") for text in learned[1:-1])
    coloured = data("inspect", "model", "chats.jsonl", "--chat", "chatml", "--seq-len", "200", "--color").stdout
    assert "\x1b[2;36m" in coloured and "\x1b[36m" in coloured and "\x1b[33m" in coloured


@pytest.mark.parametrize("arguments, message", [
    (["tokenize", "nowhere", "a.txt"], "nowhere"),
    (["tokenize", ".", "a.txt"], "neither tokenizer.json nor tokenizer.model is there"),
    (["tokenize", "model", "none.txt"], "none.txt: No such file"),
    (["tokenize", "model", "a.arrow"], "Arrow files are not read"),
    (["tokenize", "model", "chats.jsonl", "--chat", "nobody"], "unknown chat template"),
    (["tokenize", "model", "chats.jsonl", "--chat", "model"], "tokenizer_config.json"),
    (["inspect", "model", "a.txt", "--seq-len", "1000000"], "one sequence of length 1000000 needs 1000001"),
])
def test_errors_are_one_line(data, arguments, message):
    done = data(*arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_line_that_is_too_long(data):
    """Refused by file and line, with nothing half made; or left out."""
    with open(data.path / "long.jsonl", "wb") as file:
        file.write(b'{"text": "one"}\n{"text": "')
        file.seek(300 << 20)  # no bytes on the disk
        file.write(b'"}\n{"text": "three"}\n')
    done = data("tokenize", "model", "long.jsonl")
    assert (done.returncode, done.stderr) == (
        2, "stepc: long.jsonl:2: a line of 300.0 MiB, at most 256.0 MiB are read; --skip-unusable leaves out what cannot be "
        "used\n")
    assert not list((data.path / "token-cache").glob("*.tmp-*"))  # what is there is the whole shard of another part
    done = data("tokenize", "model", "long.jsonl", "--skip-unusable")
    assert done.returncode == 0 and " of 2 documents" in done.stdout, done
    assert done.stderr == "stepc: 1 line or row was left out, of which no document can be made; the first: long.jsonl:2: a " \
        "line of 300.0 MiB, at most 256.0 MiB are read\n"


def test_odd_chats_are_named_or_left_out(stepc):
    lines = [{"messages": chat} for chat in CHATS]
    lines[3] = {"messages": [{"role": "assistant", "content": "I speak first."}]}
    lines[7] = {"text": "no chat"}
    text = "no JSON\n" + "".join(json.dumps(line) + "\n" for line in lines)
    (stepc.path / "odd.jsonl").write_text(text)
    how = ["train", "run.toml", "--data.train=odd.jsonl", "--data.chat=chatml", "--train.steps=1"]
    done = stepc(*how)
    assert done.returncode == 2 and done.stderr.startswith("stepc: odd.jsonl:1: not valid JSON"), done.stderr
    assert done.stderr.endswith("; data.skip_unusable = true leaves out what cannot be used\n")
    done = stepc(*how, "--data.skip_unusable=true")
    assert done.returncode == 0 and "38 documents" in done.stdout, done
    assert "warning: 3 lines or rows were left out, of which no document can be made; the first: odd.jsonl:1: not valid" \
        in done.stdout
