"""The examples of docs/python.md run as they stand, one after the other."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what a calibration beside other tests finds is nobody's
    torch.manual_seed(0)
    names = {"__name__": "docs"}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    for file in ("trace.json", "step.trace"):
        assert (tmp_path / file).stat().st_size > 0
