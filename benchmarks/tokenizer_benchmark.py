"""The tokenizer beside the `tokenizers` package, in one run: the text of the demo, a byte-level BPE trained on it, one
thread each, rounds taken in turn. Prints MB/s and the ratio, and checks that the ids are the same.

    .venv/bin/python benchmarks/tokenizer_benchmark.py [--build-dir build/release] [--text runs/demo/text.txt]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(split, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if split == "gpt2" else \
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def main():
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, default=root / "build/release")
    parser.add_argument("--text", type=Path, default=root / "runs/demo/text.txt")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    text = arguments.text.read_text()
    lines = text.splitlines(keepends=True)  # `tokenizers` is faster by line than on a long text
    megabytes = len(text.encode()) / 1e6
    print(f"{arguments.text}: {megabytes:.1f} MB, best of {arguments.rounds} rounds, one thread")
    print(f"{'split':8} {'stepc MB/s':>11} {'tokenizers MB/s':>16} {'ratio':>6}  {'tokens':>9}")
    with tempfile.TemporaryDirectory() as directory:
        for split in ["gpt2", "llama3"]:
            tokenizer = train(split, text)
            path = Path(directory) / "tokenizer.json"
            tokenizer.save(str(path))
            expected = len(tokenizer.encode_batch_fast([text])[0].ids)
            ours, theirs = [], []
            for _ in range(arguments.rounds):
                command = [arguments.build_dir / "benchmarks/tokenizer_benchmark", path, arguments.text, "1"]
                said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                ours += said["seconds"]
                begin = time.perf_counter()
                tokenizer.encode_batch_fast(lines)
                theirs.append(time.perf_counter() - begin)
                if said["tokens"] != expected:
                    sys.exit(f"{split}: {said['tokens']} tokens, tokenizers gives {expected}")
            print(f"{split:8} {megabytes / min(ours):11.1f} {megabytes / min(theirs):16.1f} "
                  f"{min(theirs) / min(ours):6.1f}  {said['tokens']:9}")


if __name__ == "__main__":
    main()
