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


def assert_refused(result, complaint):
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert complaint in result.stderr
    assert result.stderr.startswith("irtool: ") and result.stderr.count("\n") == 1, result.stderr


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
        (["--schedule", "--target", "step.graph", "step.graph"], "irtool: step.graph: target, line 1: not TOML"),
        (["--schedule", "--target", "h110", "step.graph"], 'target "h110": there is no such target'),
    ],
)
def test_mistakes_are_named(irtool, arguments, complaint):
    result = irtool(*arguments)
    assert_refused(result, complaint)


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


def test_a_gpus_schedule_is_priced_for_a_gpu_alone(irtool, tmp_path):
    schedule = irtool("--schedule", "--verify", "--target", "h100", "step.graph").stdout
    assert schedule.startswith("stepc.schedule 1\ndevice cuda sm_90\n"), schedule
    (tmp_path / "step.schedule").write_text(schedule)
    step = irtool("--simulate", "--target", "h100", "step.graph")
    assert re.match(r"predicted [0-9.]+ ms in \d+ instructions", step.stdout), step.stderr
    assert irtool("--simulate", "--target", "h100", "step.schedule").stdout == step.stdout
    assert_refused(irtool("--simulate", "step.schedule"), "planned for a GPU and cannot be priced for a CPU")


def test_a_damaged_schedule_has_no_price(irtool, tmp_path):
    schedule = irtool("--schedule", "step.graph").stdout
    (tmp_path / "cut.schedule").write_text(schedule[: schedule.index("operand")] + "operand")
    cut = irtool("--simulate", "cut.schedule")
    assert cut.returncode == 2 and "line" in cut.stderr and cut.stderr.count("\n") == 1
    (tmp_path / "small.schedule").write_text(re.sub(r"b0: input \d+", "b0: input 4", schedule))
    small = irtool("--simulate", "small.schedule")
    assert small.returncode == 2 and "small.schedule: no Schedule that can run: " in small.stderr


# ---- a step on a mesh

LAYERS = """\
stepc.graph 1
input %0: f32[6, 16] = batch "x"
input %1: f32[8, 16] = parameter "layers.0.up.weight"
input %2: f32[16, 8] = parameter "layers.0.down.weight"
input %3: f32[1, 16] = parameter "head.weight"
%4: f32[6, 8] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward "layers.0.up"
%5: f32[6, 8] = tanh(%4) | forward "layers.0"
%6: f32[6, 16] = matmul(%5, %2) {transpose_a=false, transpose_b=true} | forward "layers.0.down"
%7: f32[6, 1] = matmul(%6, %3) {transpose_a=false, transpose_b=true} | forward "head"
return %7
"""


@pytest.fixture
def layers(irtool, tmp_path):
    (tmp_path / "layers.graph").write_text(LAYERS)
    return lambda *arguments: irtool(*arguments, "layers.graph")


def test_the_step_of_one_rank(layers):
    rank = layers("--all", "--verify", "--mesh", "dp_shard=2,tp=2")
    assert rank.returncode == 0, rank.stderr
    assert rank.stdout.startswith("stepc.graph 1\nmesh dp_shard=2,tp=2\ninput %0: f32[3, 16] = batch \"x\" part of <6/dp_shard, 16>\n")
    assert "all_gather" in rank.stdout
    whole = layers("--all", "--mesh", "dp_shard=2,tp=2", "--zero", "0")
    assert whole.returncode == 0 and "all_reduce" in whole.stdout
    gathered = [line for line in whole.stdout.splitlines() if "all_gather" in line]
    assert len(gathered) == 1 and whole.stdout.splitlines()[-3] == gathered[0], "what the step returns, a value a row"
    assert layers("--all", "--mesh", "tp=1").stdout == layers("--all").stdout


def test_how_every_value_lies_and_why(layers):
    lines = layers("--shardings", "--mesh", "tp=2").stdout.splitlines()
    assert lines[0] == "mesh tp=2"
    up = next(line for line in lines if line.startswith("%1 "))
    assert up.split("  ")[1].strip() == "f32[8, 16]" and "<8/tp, 16>" in up and up.endswith("tp: as the matmuls that use it, or a rule")
    product = next(line for line in lines if "forward layers.0.down" in line and " matmul " in line)
    assert "sum(tp)" in product and "tp from operand" in product and "after a parameter" in product
    ruled = layers("--shardings", "--mesh", "tp=2", "--shard", "*.up.weight:1=tp")
    assert re.search(r"%1 .*<8, 16/tp>", ruled.stdout), ruled.stdout


def test_what_a_rank_sends_and_what_is_padded(layers):
    sent = layers("--communication", "--mesh", "tp=2", "--no-sequence-parallel")
    assert sent.returncode == 0, sent.stderr
    assert re.search(r"^one rank sends +along +count +bytes\n  all_reduce +tp +1 +384 B$", sent.stdout,
                     re.MULTILINE), sent.stdout
    uneven = layers("--communication", "--mesh", "dp_shard=4")
    assert "padded: batch 'x', dimension 0: 6 over 4 ranks are 2 on each\n" in uneven.stdout


def test_what_no_axis_splits(layers):
    whole = layers("--whole", "--mesh", "tp=2", "--no-sequence-parallel")
    assert re.search(r"^  matmul +forward head +\d+\.\d % +[\d.]+ B +tp +no operand is split$", whole.stdout,
                     re.MULTILINE), whole.stdout
    assert layers("--whole", "--mesh", "dp_shard=2").stdout == "every matmul, attention and opaque call is split\n"


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--all", "--mesh", "tpp=2"], "no axis of a mesh is named 'tpp' (did you mean 'tp'?); there are pp, dp_replicate"),
        (["--all", "--mesh", "dp=2"], "no axis of a mesh is named 'dp' (did you mean 'dp_replicate'?)"),
        (["--all", "--mesh", ""], "--mesh is empty; write dp_shard=2,tp=4"),
        (["--all", "--mesh", "=2"], "no axis of a mesh is named ''; there are pp, dp_replicate"),
        (["--all", "--mesh", "tp=-2"], "the mesh has -2 along 'tp'; the least is 1"),
        (["--all", "--mesh", "tp=2x"], "'2x' is no size of the axis 'tp'; write a number of ranks, as in tp=2"),
        (["--all", "--mesh", "tp=2,tp=2"], "the mesh has the axis 'tp' twice; give it once"),
        (["--all", "--mesh", "dp_shard=1048576,tp=2"],
         "2 ranks along 'tp' make a mesh of more than 1048576 ranks; that is the most"),
        (["--on-ranks", "--mesh", "dp_shard=8192"],
         "--on-ranks runs every rank on this machine, and --mesh dp_shard=8192 has 8192; 4096 can be run"),
        (["--all", "--communication", "--mesh", "tp=2"], "--all excludes --communication"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:0=tp,1=tp"],
         "the rule '*.up.weight' splits dimensions 0 and 1 along 'tp'; an axis splits one of them"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:0=tp,0=tp"],
         "--shard '*.up.weight:0=tp,0=tp' splits dimension 0 twice; give it one axis"),
        (["--all", "--mesh", "tp"], "'tp' is no axis of a mesh; write dp_shard=2,tp=4"),
        (["--mesh", "tp=2"], "--mesh spreads a whole step: give --all, --schedule, --shardings"),
        (["--pass", "simplify", "--mesh", "tp=2"], "--mesh spreads a whole step: give --all"),
        (["--all", "--zero", "2"], "--zero requires --mesh"),
        (["--shardings"], "--shardings requires --mesh"),
        (["--all", "--mesh", "tp=2", "--zero", "4"], "4 not in range"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight"], "write a parameter and what splits its dimensions, as"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:x=tp"], "--shard '*.up.weight:x=tp': write a parameter"),
        (["--all", "--mesh", "tp=2", "--shard", "*.upp.weight:0=tp"],
         "the rule '*.upp.weight' matches no parameter; did you mean '*.up.weight'?"),
        (["--all", "--mesh", "tp=2", "--shard", "up.weight:0=tp"], "did you mean '*.up.weight'?"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:2=tp"],
         "splits dimension 2 of 'layers.0.up.weight', which has 2 dimensions, from 0 on"),
        (["--all", "--mesh", "tp=2", "--shard", "head.weight:0=tp"],
         "splits dimension 0 of 'head.weight' over 2 ranks along 'tp', and it has 1 elements"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:0=cp"], "along 'cp', and the mesh tp=2 has no more than one rank there"),
        (["--all", "--mesh", "tp=2", "--shard", "*.up.weight:0=ttp"],
         "the rule '*.up.weight' splits dimension 0 along 'ttp', which is no axis of a mesh; did you mean 'tp'?"),
    ],
)
def test_mistakes_with_meshes_are_named(layers, arguments, complaint):
    result = layers(*arguments)
    assert_refused(result, complaint)


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
    told = result.stdout[result.stdout.index("each of 4 ranks sends  along ") :].splitlines()[1:]
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
