"""irtool: passes on the text of a Graph, the way its head says to call it."""

import subprocess

import pytest

GRAPH = """\
stepc.graph 1
input %0: f32[4, 16] = batch "x"
input %1: f32[8, 16] = parameter "w"
input %2: f32[8] = parameter "b"
%3: f32[4, 8] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward ""
%4: f32[4, 8] = add(%3, %2) | forward ""
%5: f32[4, 8] = neg(%4) | forward ""
return %4
"""


@pytest.fixture
def irtool(build_dir, tmp_path):
    (tmp_path / "step.graph").write_text(GRAPH)

    def run(*arguments):
        return subprocess.run([build_dir / "tools/irtool", *arguments], cwd=tmp_path, capture_output=True, text=True)

    return run


def test_without_passes_it_reads_and_prints(irtool):
    result = irtool("step.graph")
    assert (result.returncode, result.stdout, result.stderr) == (0, GRAPH, "")


def test_passes_may_stand_before_the_file(irtool):
    result = irtool("--pass", "simplify,dead_code", "step.graph")
    assert result.returncode == 0, result.stderr
    assert result.stdout == GRAPH.replace('%5: f32[4, 8] = neg(%4) | forward ""\n', "")
    assert irtool("step.graph", "--pass=simplify", "--pass", "dead_code").stdout == result.stdout


def test_the_whole_pipeline_for_a_machine_with_blocked_products(irtool):
    plain = irtool("--all", "--verify", "--times", "step.graph")
    assert plain.returncode == 0, plain.stderr
    assert "fuse" in plain.stderr and plain.stdout.count("group") == 1
    blocked = irtool("--all", "--products", "f32", "--verify", "step.graph")
    assert blocked.stdout.count("group 0") == 2, "the product and its bias"


def test_dumps_go_to_stderr(irtool):
    result = irtool("--all", "--without", "fuse,order", "--dump-after", "dead_code", "step.graph")
    assert result.stderr.startswith("# after dead_code\nstepc.graph 1\n")
    assert "group" not in result.stdout


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "irtool: no file is given; see irtool --help"),
        (["--pass", "simplfy", "step.graph"], "irtool: no pass is named 'simplfy'; did you mean 'simplify'?"),
        (["missing.graph"], "missing.graph"),
        (["--all", "--products", "f64", "step.graph"], "f64 not in {bf16,f32}"),
    ],
)
def test_mistakes_are_named(irtool, arguments, complaint):
    result = irtool(*arguments)
    assert result.returncode != 0 and complaint in result.stderr
    assert result.stdout == ""
