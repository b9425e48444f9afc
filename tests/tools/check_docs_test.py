"""tools/check_docs finds pages that name what is not there."""
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_docs"


def run(root, page):
    (root / "docs").mkdir()
    (root / "tools").mkdir()
    (root / "tools" / "setup").touch()
    (root / "Makefile").write_text("build: setup ## build\n\techo\n")
    (root / "README.md").write_text(page)
    return subprocess.run([sys.executable, CHECK, "--root", root], capture_output=True, text=True)


@pytest.mark.parametrize(
    "page",
    [
        "See [tools](tools/setup), `tools/setup`, `make build` and [elsewhere](https://example.org).",
        "    auto step = [&](const at::Tensor& batch) {",
        "```\n[link](missing.md)\n```\n",
        "the lambda `[&](batch)`",
        "| `tools/later` | not yet | planned |",
    ],
)
def test_right_pages_pass(tmp_path, page):
    result = run(tmp_path, page)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("[page](docs/missing.md)", "link to docs/missing.md"),
        ("`src/missing.h`", "names src/missing.h"),
        ("`make coffee`", "names `make coffee`"),
    ],
)
def test_a_missing_thing_is_named(tmp_path, line, complaint):
    result = run(tmp_path, "# Title\n\n" + line + "\n")
    assert result.returncode == 1
    assert f"README.md:3: {complaint}" in result.stderr
