"""Parquet files: the tokens of the same documents as .jsonl, whatever wrote them how, and one line for what is not read.

    pytest tests/parity/test_parquet.py
"""

import json
import os
import random
import shlex
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

WORDS = "light waters naïve 中文 🙂 e\u0301 \x00 \\ \" the of".split(" ") + ["\n", "\r\n"]


def documents(count, seed=0):
    choose = random.Random(seed)
    texts = [" ".join(choose.choices(WORDS, k=choose.randrange(60))) for _ in range(count)]
    return texts + ["", "long " * 20_000]


def chats(count, seed=0):
    choose = random.Random(seed)
    return [[{"role": role, "content": choose.choice(WORDS) * choose.randrange(1, 9)} for role in ("user", "assistant")]
            for _ in range(count)]


@pytest.fixture
def tokenize(build_dir, tmp_path):
    """Tokens of a file, as the bytes of its shards; errors are the line that was printed."""
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
                                     merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))

    def run(file, *arguments):
        cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        done = subprocess.run([build_dir / "src/stepc", "data", "tokenize", "model", file, "--cache", cache, *arguments],
                              cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ | run.variables)
        if done.returncode != 0:
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            return done.stderr
        assert done.stderr == ""
        return sorted(shard_parts(shard) for shard in cache.glob("*.tokens"))

    run.path, run.variables = tmp_path, {}
    return run


def shard_parts(path):
    """Tokens, ends of documents and what is learned, without the header."""
    return path.read_bytes()[64:]


def write_lines(path, field, values):
    path.write_text("".join(json.dumps({field: value}) + "\n" for value in values))


@pytest.mark.parametrize("kind, compression", [
    *((pa.string(), compression) for compression in ("none", "snappy", "zstd", "gzip", "brotli", "lz4")),
    (pa.large_string(), "zstd"), (pa.dictionary(pa.int32(), pa.string()), "snappy"),
    (pa.dictionary(pa.int8(), pa.large_string()), "zstd"), (pa.string_view(), "none"),
], ids=str)
def test_texts_are_those_of_the_lines(tokenize, kind, compression):
    texts = documents(100)
    write_lines(tokenize.path / "a.jsonl", "text", texts)
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, kind), "score": [0.5] * len(texts)})
    pq.write_table(table, tokenize.path / "a.parquet", compression=compression, row_group_size=20)
    assert pq.ParquetFile(tokenize.path / "a.parquet").num_row_groups == 6
    assert tokenize("a.parquet") == tokenize("a.jsonl")


@pytest.mark.parametrize("options", [
    {"use_dictionary": False}, {"data_page_version": "2.0"}, {"data_page_size": 100}, {"store_schema": False},
    {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}, {"write_page_checksum": True},
    {"write_statistics": False, "version": "1.0"}, {"write_page_index": True},
], ids=str)
def test_what_writers_do_otherwise_changes_nothing(tokenize, options):
    texts = documents(150, seed=1)
    write_lines(tokenize.path / "a.jsonl", "body", texts)
    pq.write_table(pa.table({"body": texts}), tokenize.path / "a.parquet", row_group_size=70, **options)
    assert tokenize("a.parquet", "--field", "body") == tokenize("a.jsonl", "--field", "body")


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list], ids=["list", "large_list"])
def test_chats_are_those_of_the_lines(tokenize, kind):
    messages = chats(200)
    write_lines(tokenize.path / "a.jsonl", "messages", messages)
    record = pa.struct([("role", pa.dictionary(pa.int8(), pa.string())), ("content", pa.string()),
                        ("weight", pa.float64()), ("calls", pa.list_(pa.int64()))])
    column = pa.array(messages, kind(record))
    pq.write_table(pa.table({"messages": column}), tokenize.path / "a.parquet", row_group_size=64)
    expected = tokenize("a.jsonl", "--chat", "chatml")
    assert tokenize("a.parquet", "--chat", "chatml") == expected and expected[0]


def test_a_shard_is_made_of_whole_row_groups(tokenize):
    choose = random.Random(0)
    texts = [choose.choice("abcdefgh") * 10_000 for _ in range(4000)]
    pq.write_table(pa.table({"text": texts}), tokenize.path / "a.parquet", row_group_size=500, compression="none",
                   use_dictionary=False)
    shards = tokenize("a.parquet", "--threads", "2")
    assert len(shards) == 2  # of four groups each: a shard is made of about 16 MiB
    one = tokenize.path / "one"
    one.mkdir()
    pq.write_table(pa.table({"text": texts[:2000]}), one / "a.parquet")
    pq.write_table(pa.table({"text": texts[2000:]}), one / "b.parquet")
    assert shards == sorted(tokenize(f"one/{name}.parquet")[0] for name in "ab")


def test_a_run_reads_texts_and_chats(stepc):
    texts = [(stepc.path / "text.txt").read_text()[i:i + 500] for i in range(0, 20_000, 500)]
    messages = [[{"role": "user", "content": text[:40]}, {"role": "assistant", "content": text[40:]}] for text in texts]
    (stepc.path / "data").mkdir()
    pq.write_table(pa.table({"text": texts}), stepc.path / "data/a.parquet")
    pq.write_table(pa.table({"messages": messages}), stepc.path / "data/b.parquet")
    losses = []
    for source in ("data", "lines"):
        done = stepc("train", "run.toml", f"--data.train=['{source}']", "--data.chat=chatml", f"--output.dir=out-{source}")
        assert done.returncode == 0, done.stderr
        metrics = [json.loads(line) for line in (stepc.path / f"out-{source}/metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in metrics if "loss" in line])
        (stepc.path / "lines").mkdir(exist_ok=True)
        write_lines(stepc.path / "lines/a.jsonl", "text", texts)
        write_lines(stepc.path / "lines/b.jsonl", "messages", messages)
    assert losses[0] == losses[1] and losses[0]


def test_errors_are_one_line(tokenize):
    def said(table, message, *arguments, **options):
        pq.write_table(table, tokenize.path / "bad.parquet", **options)
        error = tokenize("bad.parquet", *arguments)
        assert isinstance(error, str) and message in error, error

    texts = pa.table({"id": [1, 2, 3], "body": ["a", "b", "c"]})
    said(texts, 'bad.parquet: no column "text"; its columns: "id", "body"')
    said(texts, 'bad.parquet: column "id" is int64, neither text nor chat messages', "--field", "id")
    said(pa.table({"text": [b"a"]}), 'column "text" is binary')
    said(pa.table({"text": [{"a\nb" * 200: 1}]}), 'column "text" is struct<a, neither')
    said(pa.table({"text": ["a", "b", None, "c"]}), 'bad.parquet: row 3: "text" must be text, found null', row_group_size=2)
    said(pa.table({"messages": chats(3)}), '"messages" must be text, found a list', "--field", "messages")
    said(pa.table({"messages": ["a"]}), '"messages" must be a list, found "a"', "--chat", "chatml")
    said(pa.table({"messages": [chats(1)[0], [{"role": "user", "content": None}]]}), "row 2: message 1", "--chat", "chatml")
    said(pa.table({"messages": [[{"role": b"user"}]]}), "row 1: a value of type bytes is not read", "--chat", "chatml")
    said(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), 'two columns are named "text"')
    invalid = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    said(pa.table({"text": invalid}), "bad.parquet: a row from 1 to 1 is damaged: In column 0: Invalid: Invalid UTF8")


def test_damage_is_one_line(tokenize):
    pq.write_table(pa.table({"text": documents(200)[:200]}), tokenize.path / "good.parquet", row_group_size=50)
    good = (tokenize.path / "good.parquet").read_bytes()
    bad = tokenize.path / "bad.parquet"
    choose = random.Random(0)

    def refused(content, message="bad.parquet: "):
        bad.write_bytes(content)
        error = tokenize("bad.parquet")
        assert isinstance(error, str) and message in error, error

    refused(b"", "bad.parquet is empty")
    refused(b"PAR1", "bad.parquet: not readable as Parquet: it has 4 bytes, the least is 12")
    refused(b"hello world " * 40, "bad.parquet: not readable as Parquet: ")
    refused(b"PAR1" + choose.randbytes(1000) + b"PAR1", "bad.parquet: not readable as Parquet: ")
    refused(b"PAR1" + choose.randbytes(1000) + (500).to_bytes(4, "little") + b"PAR1", "not readable as Parquet: ")
    for size in (8, 100, len(good) // 2, len(good) - 1):
        refused(good[:size], "bad.parquet: not readable as Parquet: ")
    refused(b"PAR1" + good[-3000:], "bad.parquet: ")  # the rows are cut out, the footer is whole
    for _ in range(5):  # some of it is not seen, as a text with other letters is none
        content = bytearray(good)
        for _ in range(choose.randrange(1, 6)):
            content[choose.randrange(4, len(content) - 8)] = choose.randrange(256)
        bad.write_bytes(content)
        tokenize("bad.parquet")


def test_a_python_without_pyarrow_is_told_what_to_install(tokenize):
    pq.write_table(pa.table({"text": ["a"]}), tokenize.path / "a.parquet")
    for python, why in [("/none/python", "No such file or directory"), ("/bin/true", "is no Python"),
                        ("bare", "No module named 'pyarrow'")]:
        (tokenize.path / "bare").write_text(f"#!/bin/sh\nexec {sys.executable} -S -I \"$@\"\n")  # without site-packages
        (tokenize.path / "bare").chmod(0o755)
        python = str(tokenize.path / python) if python == "bare" else python
        tokenize.variables = {"STEPC_PYTHON": python}
        assert tokenize("a.parquet") == (
            f"stepc: a.parquet: Parquet is read by a Python that has pyarrow, and there is none ({python}: {why}); `pip "
            "install pyarrow` for one of them, name another in STEPC_PYTHON, or convert the column to .jsonl\n")


LAYOUT = 'i{"columns": [["text", "text", "string"]], "groups": [[2, [[4, 10]]]]}'


@pytest.mark.parametrize("answers, message", [
    ([], "not readable as Parquet: the Python that reads it has ended"),
    (["nonsense"], 'not readable as Parquet: its reader said "nonsense"'),
    (["i["], "a.parquet: not valid JSON"),
    (['i{"columns": 1}'], "columns"),
    (['i{"columns": [["text", "text", "string"]], "groups": [[2, [[4, 1000000]]]]}'], "lies outside of the file"),
    (['i{"columns": [["text", "text", "string"]], "groups": [[-2, []]]}'], "row group 0 has -2 rows"),
    ([LAYOUT, "."], "row group 0 has 0 rows, and its footer says 2"),
    ([LAYOUT, "s1\nas1\nbs1\nc."], "row group 0 has more than its 2 rows"),
    ([LAYOUT, "s300000000000"], "a row of 279.4 GiB, at most 256.0 MiB are read"),
    ([LAYOUT, "s-1"], 'its reader said "-1"'),
    ([LAYOUT, "s10\nabc"], "the Python that reads it has ended"),
    ([LAYOUT, "v{"], "a.parquet: row 1: not valid JSON"),
    ([LAYOUT, "e\x1b[2J"], "not readable as Parquet: ?[2J"),
    ([LAYOUT, "d5"], "a row from 6 to 5 is damaged"),
], ids=lambda value: None if isinstance(value, str) else repr(value)[:40])
def test_a_reader_is_not_trusted(tokenize, answers, message):
    pq.write_table(pa.table({"text": ["a", "b"]}), tokenize.path / "a.parquet")
    reader = tokenize.path / "reader"
    said = "".join(f"read line; printf '%s\\n' {shlex.quote(answer)}\n" for answer in answers)
    reader.write_text(f"#!/bin/sh\necho r\n{said}")
    reader.chmod(0o755)
    tokenize.variables = {"STEPC_PYTHON": str(reader)}
    error = tokenize("a.parquet")
    assert isinstance(error, str) and error.startswith("stepc: a.parquet: ") and message in error, error
