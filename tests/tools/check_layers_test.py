"""tools/check_layers finds what it promises to find: each case breaks one rule of a small made-up tree."""
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers"
PAGE = """
| folder | holds | may include | LibTorch | state |
|---|---|---|---|---|
| `base` | text | - | - | built |
| `ir` | graphs | `base` | - | built |
| `capture` | recorder | `ir` | ATen | built |
| `models` | modules | `base` | torch/torch.h | built |
| `plan` | later | `ir` | - | planned |
"""
TARGETS = """
stepc_folder(base)
stepc_folder(ir DEPENDS base)  # a comment (with parentheses)
stepc_folder(capture TORCH PCH aten DEPENDS ir LIBRARIES fmt::fmt)
stepc_folder(models TORCH DEPENDS base)
"""
FILES = {
    "docs/architecture.md": PAGE,
    "src/CMakeLists.txt": TARGETS,
    "src/base/text.h": "// Text.\n#pragma once\n",
    "src/base/text.cpp": '#include "base/text.h"\n',
    "src/ir/graph.h": '// Graphs.\n#pragma once\n#include "base/text.h"\n',
    "src/ir/graph.cpp": '#include "ir/graph.h"\nstatic_assert(true);\n// assert(x) in a comment is fine\n',
    "src/capture/recorder.cpp": '#include <ATen/core/Tensor.h>\n#include "base/text.h"\n#include "ir/graph.h"\n',
    "src/models/llama.cpp": "#include <torch/torch.h>\n",
    "tests/ir/graph_test.cpp": '#include "ir/graph.h"\n#include "tests/ir/sample.h"\n',
    "tests/ir/sample.h": "// A sample graph.\n#pragma once\n",
}


def run(root, changes):
    for path, text in {**FILES, **changes}.items():
        if text is None:
            (root / path).unlink()
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return subprocess.run([sys.executable, CHECK, "--root", root], capture_output=True, text=True)


def test_a_right_tree_passes(tmp_path):
    result = run(tmp_path, {})
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "path, text, complaint",
    [
        ("src/base/text.cpp", '#include "ir/graph.h"\n', "src/base/text.cpp:1: base may not include ir/graph.h"),
        ("src/models/llama.cpp", '\n#include "ir/graph.h"\n', "src/models/llama.cpp:2: models may not include"),
        ("src/ir/graph.cpp", "#include <ATen/ATen.h>\n", "ir is torch-free but includes <ATen/ATen.h>"),
        ("src/ir/graph.cpp", "#include <c10/util/Exception.h>\n", "ir is torch-free"),
        ("src/capture/recorder.cpp", "#include <torch/torch.h>\n", "capture includes <torch/torch.h>"),
        ("src/ir/graph.cpp", '#include "../base/text.h"\n', "is not a path below src/"),
        ("src/ir/graph.cpp", '#include "ir/missing.h"\n', "is not a path below src/"),
        ("src/ir/graph.cpp", "void f() { assert(true); }\n", "assert()"),
        ("src/ir/graph.cpp", "void f() { TORCH_CHECK(true); }\n", "TORCH_CHECK"),
        ("src/capture/recorder.cpp", 'auto x = std::getenv("X");\n', "environment read"),
        ("src/ir/graph.h", "#pragma once\n", "opens with a comment"),
        ("src/ir/graph.h", "// Graphs.\n", "#pragma once"),
        ("src/ir/utils.cpp", "", "says nothing"),
        ("src/ir/graph_helpers.h", "// X.\n#pragma once\n", "says nothing"),
        ("src/other/thing.cpp", "", "folder without a row"),
        ("src/plan/search.cpp", "", "its row must say 'built'"),
        ("src/models/llama.cpp", None, "models is said to be built"),
        ("src/CMakeLists.txt", "stepc_folder(base)\nstepc_folder(ir DEPENDS models)\n", ":2: target ir may not depend on models"),
        ("src/CMakeLists.txt", "stepc_folder(ir TORCH DEPENDS base)\n", "its row says torch-free"),
        ("docs/architecture.md", PAGE.replace("| graphs | `base` |", "| graphs | `plan` |"), "not an earlier row"),
        ("docs/architecture.md", "nothing\n", "no folder table"),
    ],
)
def test_a_broken_rule_is_named(tmp_path, path, text, complaint):
    result = run(tmp_path, {path: text}) if text is not None else run_without(tmp_path, path)
    assert result.returncode == 1
    assert complaint in result.stderr


def run_without(root, path):
    run(root, {})
    return run(root, {path: None})


def test_this_tree_passes():
    result = subprocess.run([sys.executable, CHECK], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
