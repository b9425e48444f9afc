"""irtool: passes on the text of a Graph, the way its head says to call it."""

import json
import os
import re
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


def test_the_whole_pipeline_for_a_machine_with_blocked_matmuls(irtool):
    plain = irtool("--all", "--verify", "--times", "step.graph")
    assert plain.returncode == 0, plain.stderr
    assert "fuse" in plain.stderr and plain.stdout.count("group") == 1
    blocked = irtool("--all", "--matmuls", "f32", "--verify", "step.graph")
    assert blocked.stdout.count("group 0") == 2, "the matmul and its bias"


def test_dumps_go_to_stderr(irtool):
    result = irtool("--all", "--without", "fuse,order", "--dump-after", "dead_code", "step.graph")
    assert result.stderr.startswith("# after dead_code\nstepc.graph 1\n")
    assert "group" not in result.stdout


# ---- Schedules

TARGET = 'threads = 3\nfeatures = ["bf16", "f32", "avx512"]\n'


def test_the_schedule_of_a_machine_that_is_elsewhere(irtool, tmp_path):
    (tmp_path / "big.toml").write_text(TARGET)
    (tmp_path / "small.toml").write_text("threads = 1\nfeatures = []\n")
    big = irtool("--schedule", "--verify", "--target", "big.toml", "step.graph")
    assert (big.returncode, big.stderr) == (0, "")
    assert big.stdout.startswith("stepc.schedule 1\nfeatures bf16, f32, avx512\nthreads 3\n")
    assert ": matmul " in big.stdout and 'input 2: parameter "b"' in big.stdout
    small = irtool("--schedule", "--verify", "--target", "small.toml", "step.graph")
    assert small.stdout.startswith("stepc.schedule 1\nfeatures none\nthreads 1\n")
    assert ": matmul " not in small.stdout and ": op matmul " in small.stdout
    hashes = [irtool("--schedule", "--target", name, "--hash", "step.graph").stdout
              for name in ("big.toml", "small.toml")]
    assert all(re.fullmatch("[0-9a-f]{16}\n", text) for text in hashes) and hashes[0] != hashes[1]


def test_without_a_target_it_is_this_machine(irtool):
    here = irtool("--schedule", "step.graph")
    assert here.returncode == 0, here.stderr
    threads = int(re.search(r"^threads (\d+)$", here.stdout, re.MULTILINE)[1])
    assert 1 <= threads <= os.cpu_count()
    flags = re.search(r"^flags.*$", open("/proc/cpuinfo").read(), re.MULTILINE)[0]
    assert ("avx512" in here.stdout.splitlines()[1]) == ("avx512_bf16" in flags)
    help = irtool("--help").stdout
    assert "micro-kernels are taken to be there" in " ".join(help.split())


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "irtool: no file is given; see irtool --help"),
        (["--pass", "simplfy", "step.graph"], "irtool: no pass is named 'simplfy'; did you mean 'simplify'?"),
        (["missing.graph"], "missing.graph"),
        (["--all", "--matmuls", "f64", "step.graph"], "f64 not in {bf16,f32}"),
        (["--hash", "step.graph"], "--hash requires --schedule"),
        (["--target", "big.toml", "step.graph"], "irtool: --target requires --schedule or --simulate"),
        (["--timeline", "t.json", "step.graph"], "--timeline requires --simulate"),
        (["--simulate", "--schedule", "step.graph"], "--schedule"),
        (["--schedule", "--all", "step.graph"], "--all"),
        (["--schedule", "--exact", "step.graph"], "irtool: step.graph: --exact plans recorded calls; this is a Graph"),
        (["--schedule", "--target", "nowhere.toml", "step.graph"], "nowhere.toml"),
        (["--schedule", "--target", "step.graph", "step.graph"], "irtool: target, line 1: not TOML"),
    ],
)
def test_mistakes_are_named(irtool, arguments, complaint):
    result = irtool(*arguments)
    assert result.returncode != 0 and complaint in result.stderr
    assert result.stdout == ""


def test_a_schedules_text_is_priced_like_its_step(irtool, tmp_path):
    (tmp_path / "big.toml").write_text(TARGET)
    step = irtool("--simulate", "--target", "big.toml", "--timeline", "step.json", "step.graph")
    assert step.returncode == 0, step.stderr
    assert re.match(r"predicted [0-9.]+ ms in \d+ instructions, at most .* live\n  matmul \(blocked\) +1 ", step.stdout)
    spans = [event for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert [span["args"]["class"] for span in spans] == ["matmul (blocked)"]
    schedule = irtool("--schedule", "--target", "big.toml", "step.graph").stdout
    (tmp_path / "step.schedule").write_text(schedule)
    assert irtool("--simulate", "--target", "big.toml", "step.schedule").stdout == step.stdout
    (tmp_path / "fast.toml").write_text(TARGET + '[rates]\ninstruction_seconds = 1e-3\n')
    assert irtool("--simulate", "--target", "fast.toml", "step.schedule").stdout != step.stdout


def test_a_damaged_schedule_has_no_price(irtool, tmp_path):
    schedule = irtool("--schedule", "step.graph").stdout
    (tmp_path / "cut.schedule").write_text(schedule[: schedule.index("operand")] + "operand")
    cut = irtool("--simulate", "cut.schedule")
    assert cut.returncode == 1 and "line" in cut.stderr and cut.stderr.count("\n") == 1
    (tmp_path / "small.schedule").write_text(re.sub(r"b0: input \d+", "b0: input 4", schedule))
    small = irtool("--simulate", "small.schedule")
    assert small.returncode == 1 and "small.schedule: no Schedule that can run: " in small.stderr


# One rank's step, as the partitioner leaves it.
RANKS = """\
stepc.graph 1
mesh dp_shard=4
input %0: f32[4, 16] = parameter "w" part of <16/dp_shard, 16>
%1: f32[4, 4, 16] = all_gather(%0) {axes=[0], ranks=4} | forward ""
%2: f32[4, 4, 16] = all_reduce(%1) {axes=[0], ranks=4, reduce="sum"} | backward ""
%3: f32[4, 16] = reduce_scatter(%2) {axes=[0], ranks=4, reduce="sum"} | backward ""
update %0 = %3 part of <16/dp_shard, 16>
"""


def test_what_ranks_send_is_priced_and_told(irtool, tmp_path):
    (tmp_path / "rank.graph").write_text(RANKS)
    (tmp_path / "links.toml").write_text(
        TARGET + "[rates]\nlink_latency_seconds = 1e-3\nlink_bytes_per_second = 1e6\n"
    )
    schedule = irtool("--schedule", "--verify", "rank.graph")
    assert schedule.returncode == 0, schedule.stderr
    assert "\nmesh dp_shard=4\n" in schedule.stdout and schedule.stdout.count(": collective ") == 3
    result = irtool("--simulate", "--target", "links.toml", "--timeline", "step.json", "rank.graph")
    assert result.returncode == 0, result.stderr
    assert re.search(r"\n  collective +3 ", result.stdout), result.stdout
    told = result.stdout[result.stdout.index("each of 4 ranks sends\n") :].splitlines()[1:]
    rows = [line.split() for line in told]
    assert [row[:3] for row in rows] == [
        ["all_gather", "dp_shard", "1"],
        ["all_reduce", "dp_shard", "1"],
        ["reduce_scatter", "dp_shard", "1"],
    ]
    # 3 hops and 768 bytes; 6 and 1536; 3 and 768.
    assert [float(row[-2]) for row in rows] == [3.768, 7.536, 3.768]
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["args"]["axes"] for event in events if event.get("cat") == "collective"] == ["dp_shard"] * 3
