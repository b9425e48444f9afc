"""The examples of docs/python.md and docs/gpu.md run as they stand, one after the other."""

import re
from pathlib import Path

import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_examples(page):
    names = {"__name__": "docs"}
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return names, len(blocks)


def test_every_example_of_gpus_runs():
    names, blocks = run_examples(DOCS / "gpu.md")
    assert blocks >= 1 and names["text"].startswith("stepc.schedule 1\ndevice cuda sm_90\n")


def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what a calibration beside other tests finds is nobody's
    torch.manual_seed(0)
    assert run_examples(DOCS / "python.md")[1] >= 6
    for file in ("trace.json", "step.trace"):
        assert (tmp_path / file).stat().st_size > 0
