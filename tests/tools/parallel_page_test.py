"""The commands of docs/parallel.md run as they stand."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parallel.md"

# A layer with a gate, as the page's rules name it.
GRAPH = """\
stepc.graph 1
input %0: f32[8, 16] = batch "x"
input %1: f32[32, 16] = parameter "layers.0.mlp.up_proj.weight"
input %2: f32[16, 32] = parameter "layers.0.mlp.down_proj.weight"
%3: f32[8, 32] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward "layers.0.mlp.up_proj"
%4: f32[8, 32] = tanh(%3) | forward "layers.0.mlp"
%5: f32[8, 16] = matmul(%4, %2) {transpose_a=false, transpose_b=true} | forward "layers.0.mlp.down_proj"
return %5
"""


def test_every_command_runs(stepc, build_dir):
    (stepc.path / "step.graph").write_text(GRAPH)
    programs = {"stepc": stepc.binary, "irtool": build_dir / "tools/irtool"}
    commands = [shlex.split(line, comments=True)
                for line in re.findall(r"^    ((?:stepc|irtool) .*)$", PAGE.read_text(), re.MULTILINE)]
    assert len(commands) >= 10
    for program, *arguments in commands:
        shutil.rmtree(stepc.path / "out", ignore_errors=True)  # each is a run of its own
        done = subprocess.run([programs[program], *arguments], cwd=stepc.path, capture_output=True, text=True,
                              timeout=120)
        assert (done.returncode, done.stderr) == (0, ""), (program, arguments, done.stderr)
        assert done.stdout


def test_the_tables_of_the_page_are_a_config(stepc):
    """The keys that it shows stand in a run.toml, with rules for a model's parameters."""
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE)
    tables = [re.sub("^    ", "", block, flags=re.MULTILINE) for block in blocks if "[parallel]" in block or
              "[[parallel.shard]]" in block]
    assert len(tables) == 2
    config = stepc.path / "run.toml"
    config.write_text(config.read_text() + "\n" + "\n".join(tables))
    done = stepc("memory", "run.toml", "--train.batch_size=8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("one of 16 ranks (dp_replicate=2,dp_shard=4,tp=2), zero 3\n")
