"""tools/build says how far it is, passes on what compilers say, and ends as they do. cmake is a stub."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/build"


@pytest.fixture
def project(tmp_path):
    """Configured already; what cmake prints is in a file, and what it ends with."""
    for folder in ("tools", "build/release", "bin", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tools/build").write_text(SCRIPT.read_text())
    (tmp_path / "CMakePresets.json").write_text("{}")
    (tmp_path / "build/release/build.ninja").write_text("")
    stub = tmp_path / "bin/cmake"
    stub.write_text('#!/bin/sh\necho "$@" "$NINJA_STATUS" > asked\ncat printed\nexit "$(cat status)"\n')
    stub.chmod(0o755)
    (tmp_path / "status").write_text("0")
    return tmp_path


def run(project, *arguments, **how):
    environment = os.environ | {"PATH": f"{project}/bin:{os.environ['PATH']}", "CCACHE_DIR": str(project / "cache")}
    return subprocess.run(["bash", project / "tools/build", *arguments], cwd=project, env=environment, text=True, **how)


def build(project, printed, *arguments):
    (project / "printed").write_text(printed)
    return run(project, *arguments, capture_output=True)


def test_it_says_how_far_it_is(project):
    seconds = [5, 12, 20, 45, 61, 100]
    lines = "".join(f"@{k + 1} 6 {at}.250@ Building CXX object {k}.cpp.o\n" for k, at in enumerate(seconds))
    ran = build(project, lines, "release", "stepc", "irtool")
    assert ran.returncode == 0 and not ran.stderr
    first, *rest = ran.stdout.splitlines()
    assert first.startswith("build: build/release stepc irtool, ")
    assert rest == ["build: 2 of 6 done in 12 s, about 24 s left", "build: 4 of 6 done in 45 s, about 22 s left",
                    "build: 6 of 6 done in 1 min 40 s"]
    assert (project / "asked").read_text().endswith("--target stepc irtool @%f %t %e@ \n")


def test_a_short_build_says_nothing_of_it(project):
    ran = build(project, "@1 2 0.100@ one\n@2 2 0.200@ two\n", "release")
    assert len(ran.stdout.splitlines()) == 1


def test_what_compilers_say_and_how_it_ends(project):
    (project / "status").write_text("3")
    failure = "FAILED: a.cpp.o\na.cpp:1: error: 'x' @1 2 3@\n  in colour\nninja: build stopped: subcommand failed.\n"
    ran = build(project, "@1 2 15.000@ one\n" + failure, "release")
    assert ran.returncode == 3
    assert ran.stdout.endswith("build: 1 of 2 done in 15 s, about 15 s left\n" + failure)


def test_on_a_terminal_one_line_changes(project):
    (project / "printed").write_text("@1 2 1.000@ one\na warning\n@2 2 2.000@ two\n")
    terminal, end = pty.openpty()
    assert run(project, "release", stdout=end).returncode == 0
    os.close(end)
    said = os.read(terminal, 10000).decode().replace("\r\n", "\n")
    os.close(terminal)
    assert said.endswith("\r\x1b[Kbuild: 1 of 2 done in 1 s\na warning\n\r\x1b[Kbuild: 2 of 2 done in 2 s\n"), said
