"""CONTRIBUTING's recipe for an op of the Graph, carried out in a copy of the sources: the lines that it names, each below
the row of an op like it, and nothing else. What is compiled is what they touch; the rest is the build's."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 4
OP, LIKE = "exp2", "exp"
TRACE = """\
stepc.trace 1
storage s0 bytes=32 external
storage s1 bytes=32 escapes
%0: f32[8] @s0 = batch "0"
call 0 %1: f32[8] @s1 = aten::exp2(%0) | forward ""
return %1
numbers 0
ticks 1
"""


def lines_of_the_recipe():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    recipe = page[page.index("**An op of the Graph.**"):]
    recipe = recipe[:recipe.index("\n**")]
    assert len(recipe.strip().splitlines()) <= 15
    found = re.findall(r"^    (src/\S+) +(.*)$", recipe, re.MULTILINE)
    assert f"For `{OP}`, below the lines of `{LIKE}`" in recipe and f'"{OP}"' in found[0][1]
    return found


def add_below(path, line):
    """Below the row of the op like it, which is the line that begins as the new one does."""
    begin = line[: line.index(f'"{OP}"')] + f'"{LIKE}"'
    lines = path.read_text().splitlines(keepends=True)
    rows = [n for n, text in enumerate(lines) if text.strip().startswith(begin)]
    assert len(rows) == 1, f"{path}: {len(rows)} lines begin with {begin}"
    lines.insert(rows[0] + 1, line + "\n")
    path.write_text("".join(lines))


class Tree:
    def __init__(self, root, build):
        self.root, self.build = root, build
        shutil.copytree(ROOT / "src", root / "src")
        (root / "docs").mkdir()
        shutil.copy(ROOT / "docs/ops.md", root / "docs")
        self.commands = json.loads((build / "compile_commands.json").read_text())

    def changed(self):
        files = [path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file() and path.suffix != ".o"]
        return [str(path) for path in files if path.read_bytes() != (ROOT / path).read_bytes()]

    def compile(self, source, *, only_check=False):
        """With the options of the build; gives the object."""
        def holds(file):
            named = f'#include "{source.removeprefix("src/")}"'  # by a group of files that are compiled as one
            return file == ROOT / source or (file.parent.name == "groups" and named in file.read_text())
        command = next(shlex.split(one["command"]) for one in self.commands if holds(Path(one["file"])))
        command = command[: command.index("-o")]
        command = [f"-I{self.root}/src" if word == f"-I{ROOT}/src" else word for word in command]
        made = self.root / (Path(source).stem + ".o")
        how = ["-fsyntax-only"] if only_check else ["-c", "-o", str(made)]
        subprocess.run([*command, *how, str(self.root / source)], cwd=self.build, check=True)
        return made

    def link(self, program, objects):
        """As the build does, with these objects in place of those of its libraries. Files that are compiled in groups have
        their definitions there too: the first counts."""
        commands = subprocess.run(["ninja", "-t", "commands", program], cwd=self.build, check=True, capture_output=True,
                                  text=True).stdout.splitlines()
        words = shlex.split(commands[-1])
        words = words[words.index("&&") + 1 : len(words) - 1 - words[::-1].index("&&")]
        place = words.index("-o")
        made = self.root / Path(program).name
        subprocess.run([*words[:place], "-Wl,--allow-multiple-definition", *map(str, objects), "-o", str(made),
                        *words[place + 2:]], cwd=self.build, check=True)
        return made


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def tree(tmp_path, build_dir):
    return Tree(tmp_path, build_dir)


def test_an_op_takes_no_more_files_than_its_rows(tree, tmp_path, build_dir):
    (tmp_path / "step.trace").write_text(TRACE)
    assert "aten::exp2" in run(build_dir / "tools/irtool", "--opaque", tmp_path / "step.trace"), "the op is there already"
    (tmp_path / "step.trace").unlink()
    recipe = lines_of_the_recipe()
    for path, line in recipe:
        add_below(tmp_path / path, line)
    objects = [tree.compile(path) for path, _ in recipe if path.startswith("src/ops/")]
    for path, _ in recipe:
        if path.startswith("src/runtime/"):
            tree.compile(path, only_check=True)
    irtool = tree.link("tools/irtool", objects)
    page = run(irtool, "--ops")
    (tmp_path / "docs/ops.md").write_text(page)
    irtool.unlink()
    assert f"| `{OP}` | 1 | 1 |" in page
    assert len(tree.changed()) <= MOST_FILES, tree.changed()
    run(ROOT / "tools/check_ops", "--root", tmp_path)

    (tmp_path / "step.trace").write_text(TRACE)
    irtool = tree.link("tools/irtool", objects)
    assert f"= {OP}(%0)" in run(irtool, tmp_path / "step.trace")
    schedule = run(irtool, "--schedule", "--verify", tmp_path / "step.trace")
    assert ": generated " in schedule and "aten" not in schedule
    # Its meaning, its text, its sharding rule on virtual ranks: the tests that walk the table find it.
    tests = tree.link("tests/test_ops", objects)
    assert "PASSED" in run(tests, "--gtest_filter=OpTable.Every*:OpTable.Sharded*:OpTable.What*")
