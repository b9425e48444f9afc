"""tools/wheels makes the matrix of a release, goes on where one fails, and says what came of each. tools/wheel and tools/try_wheel
are stubs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = """#!/bin/bash
echo "$TORCH $1" >> made
version=$("$1" -c version)
if [[ "$TORCH $version" == "$(cat fails 2> /dev/null)" ]]; then echo "wheel: no compiler" >&2; exit 1; fi
folder=dist${TORCH:+/torch-${TORCH%.*}}
mkdir -p $folder
truncate -s 19500000 $folder/stepc-$version.whl
echo "wheel: $folder/stepc-$version.whl, 19 MB"
"""
TRY = '#!/bin/bash\necho "$@" >> tried\nif [[ -f broken ]]; then echo "try_wheel: it crashes"; exit 1; fi\n'


@pytest.fixture
def project(tmp_path):
    for folder in ("tools", "bin", "home"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "tools/wheels", tmp_path / "tools")
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    stubs = {"tools/wheel": WHEEL, "tools/try_wheel": TRY}
    stubs |= {f"bin/python3.{minor}": f"#!/bin/sh\necho 3.{minor}\n" for minor in (10, 12, 13)}
    for name, text in stubs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(project, *arguments):
    environment = {"PATH": f"{project}/bin:/usr/bin:/bin", "HOME": str(project / "home")}
    # Of this machine only what the script calls: none of its interpreters.
    for version in ("3.11", "3.14"):
        (project / f"bin/python{version}").write_text("#!/bin/sh\nexit 1\n")
        os.chmod(project / f"bin/python{version}", 0o755)
    return subprocess.run([project / "tools/wheels", *arguments], env=environment, capture_output=True, text=True)


def lines(project, name):
    path = project / name
    return path.read_text().splitlines() if path.exists() else []


NEWEST = (ROOT / "requirements.txt").read_text().partition("torch==")[2].split()[0]


def test_all_that_can_be_made_here(project):
    ran = run(project)
    assert ran.returncode == 0, ran.stderr
    said = [line.removeprefix("wheels: ") for line in ran.stdout.splitlines() if line.startswith("wheels: ")]
    assert lines(project, "made") == ["2.11.0 python3.10", "2.11.0 python3.12", "2.11.0 python3.13", " python3.12", " python3.13"]
    assert lines(project, "tried") == ["dist/torch-2.11/stepc-3.10.whl python3.10", "dist/torch-2.11/stepc-3.13.whl python3.13",
                                       "dist/stepc-3.12.whl python3.12", "dist/stepc-3.13.whl python3.13"]
    assert "torch 2.11.0, CPython 3.10: dist/torch-2.11/stepc-3.10.whl, 19 MB, works in a fresh environment" in said
    assert "torch 2.11.0, CPython 3.12: dist/torch-2.11/stepc-3.12.whl, 19 MB" in said
    assert f"torch {NEWEST}, CPython 3.14: no such interpreter here, not made" in said
    assert len(said) == 9  # 3.10 has no wheel of the newest torch


@pytest.mark.parametrize(("which", "count"), [("none", 0), ("all", 5)])
def test_which_are_tried(project, which, count):
    assert run(project, "--try", which).returncode == 0
    assert len(lines(project, "tried")) == count


def test_one_that_fails_leaves_the_others(project):
    (project / "fails").write_text("2.11.0 3.10")
    ran = run(project, "--try", "none")
    assert ran.returncode == 1
    assert len(lines(project, "made")) == 5
    assert "wheels: torch 2.11.0, CPython 3.10: not made: wheel: no compiler" in ran.stdout


def test_one_that_does_not_work(project):
    (project / "broken").touch()
    ran = run(project)
    assert ran.returncode == 1
    assert ran.stdout.count("DOES NOT WORK in a fresh environment: try_wheel: it crashes") == 4


def test_interpreters_that_are_named(project):
    assert run(project, "--try", "none", "bin/python3.12").returncode == 0
    assert lines(project, "made") == ["2.11.0 bin/python3.12", " bin/python3.12"]


@pytest.mark.parametrize(("arguments", "message"), [(("--try", "some"), "--try is 'some'; one of: corners, all, none"),
                                                    (("bin/none",), "'bin/none' is no Python")])
def test_bad_arguments(project, arguments, message):
    ran = run(project, *arguments)
    assert ran.returncode == 2 and ran.stderr == f"wheels: {message}\n"
    assert not lines(project, "made")


def test_no_interpreter_at_all(project):
    for minor in (10, 12, 13):
        (project / f"bin/python3.{minor}").unlink()
        (project / f"bin/python3.{minor}").symlink_to("/bin/false")
    ran = run(project)
    assert ran.returncode == 2 and "no CPython 3.10 to 3.14 here" in ran.stderr
