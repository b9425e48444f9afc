"""tools/check_ops finds every form of naming an op outside its rows: each case puts one into a small made-up tree."""
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_ops"
FILES = {
    "docs/ops.md": "## reduce\n\n| `sum` | 1 |\n| `take` | 2 |\n| `bitwise_and` | 2 |\n| `attention` | 3 |\n",
    "src/ops/rows/reduce.cpp": 'const OpDef kSum = {"sum"};\n',
    "src/ops/aten_map/aten_reduce.cpp": 'const Row kRow = {"sum", sum};\n',
    "src/ops/op_def.h": "inline bool has(const Node& node, Trait trait) { return op_def(node.op).has(trait); }\n",
    "src/passes/fusion/fuse.cpp": 'if (has(node, Trait::kReduction)) b.add("sum", {x});  // node.op == "sum"\n',
    "src/passes/from_trace/windows.cpp": 'b.add_all(\n    "take", {x, i});\nnode.op = "sum";\n',
    "src/kernels/matmul_call.cpp": 'throw UserError("sum of nothing", str("sums"));\n',
    "src/train/report/report.cpp": 'if (column == "sum") row.op.starts_with("bitwise");\n',
    "src/ir/trace.cpp": 'return "sum";\n',
}


def run(root, changes):
    for path, text in {**FILES, **changes}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return subprocess.run([sys.executable, CHECK, "--root", root], capture_output=True, text=True)


def test_a_tree_that_asks_for_traits_passes(tmp_path):
    result = run(tmp_path, {})
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "code, what",
    [
        ('if (node.op == "sum") return;', 'the op "sum"'),
        ('if ("sum" != node->op) return;', 'the op "sum"'),
        ('const std::set<std::string_view> kOps = {"max", "take"};', 'the op "take"'),
        ('return is(node, "attention");', 'the op "attention"'),
        ('return &op_def("sum") == &op_def(node.op);', 'the op "sum"'),
        ('constexpr char kSum[] = "sum";', 'the op "sum"'),
        ('switch (hash(op)) { case hash("sum"): break; }', 'the op "sum"'),
        ('if (node.op.starts_with("bitwise")) return;', 'the ops whose names starts_with "bitwise"'),
        ('if (node.op.ends_with("_and")) return;', 'the ops whose names ends_with "_and"'),
        ('if (node.op.find("wise") != npos) return;', 'the ops whose names find "wise"'),
        ('if (op_def(node.op).family == kFamily) return;', "an op's family"),
        ("if (row->kernel == OwnKernel::kAttention) return;", "the op of OwnKernel::kAttention"),
        ("if (is_attention(node)) return;", None),  # a helper of that name is declared nowhere
        ("bool is_attention(const Node& node);", "an op by the helper is_attention()"),
    ],
)
def test_every_form_is_found(tmp_path, code, what):
    result = run(tmp_path, {"src/loops/lower/lower.cpp": "// Lowering.\n" + code + "\n"})
    if what is None:
        assert (result.returncode, result.stderr) == (0, "")
        return
    assert result.returncode == 1
    assert result.stderr.startswith(f"src/loops/lower/lower.cpp:2: names {what};")


def test_every_call_of_a_helper_is_a_place(tmp_path):
    helper = 'inline bool is_product(const Node& node) { return node.op == "take"; }\n'
    uses = "if (is_product(node)) return;\nstd::ranges::all_of(nodes, is_product);\n"
    result = run(tmp_path, {"src/ops/rules/matmul_rule.h": helper, "src/passes/order.cpp": uses})
    places = [line.split(";")[0] for line in result.stderr.splitlines()]
    assert places == [
        "src/ops/rules/matmul_rule.h:1: names an op by the helper is_product()",
        'src/ops/rules/matmul_rule.h:1: names the op "take"',
        "src/passes/order.cpp:1: names an op by the helper is_product()",
        "src/passes/order.cpp:2: names an op by the helper is_product()",
    ]


def test_a_listed_place_may_name_them_while_it_does(tmp_path):
    path = "src/passes/fusion/fuse_losses.cpp"
    assert run(tmp_path, {path: 'if (is(node, "sum")) return;\n'}).returncode == 0
    result = run(tmp_path, {path: "return;\n"})
    assert result.returncode == 1
    assert f"{path}: names no op any more" in result.stderr


def test_this_tree_passes():
    result = subprocess.run([sys.executable, CHECK, "--all"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) <= 8
