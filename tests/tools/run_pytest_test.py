"""tools/run_pytest: every test is run once, by whichever process, and the end reads as pytest's own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGGED = "import os, pathlib, pytest\ndef log(what):\n    with open(pathlib.Path(__file__).parent / 'ran', 'a') as f:\n        f.write(f'{what} {os.getpid()}\\n')\n"


@pytest.fixture
def run(tmp_path):
    def start(**files):
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(LOGGED + text)
        command = [sys.executable, ROOT / "tools/run_pytest", "--processes", "3", "-q", "-p", "no:cacheprovider",
                   "-c", "/dev/null", "--rootdir", tmp_path, *sorted(tmp_path.glob("test_*.py"))]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return start


def test_every_test_is_run_by_one_of_the_processes(run, tmp_path):
    many = "import time\n@pytest.mark.parametrize('i', range(40))\ndef test_many(i):\n    log(i)\n    time.sleep(0.05)\n"
    ran = run(a=many, b="def test_one():\n    log('one')\n@pytest.mark.skip\ndef test_not(): pass\n")
    lines = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(name for name, _ in lines) == sorted([*map(str, range(40)), "one"])
    assert len({process for _, process in lines}) >= 2
    assert re.fullmatch(r"41 passed, 1 skipped in [\d.]+s", ran.stdout.splitlines()[-1]), ran.stdout
    assert ran.returncode == 0


def test_a_file_that_is_for_one_process(run, tmp_path):
    text = "import time\npytestmark = pytest.mark.one_process\n"
    for name in "abcdef":
        text += f"@pytest.mark.parametrize('i', range(10))\ndef test_{name}(i):\n    log(i)\n    time.sleep(0.02)\n"
    ran = run(a=text, b="def test_one(): pass\n")
    assert len({line.split()[1] for line in (tmp_path / "ran").read_text().splitlines()}) == 1
    assert re.fullmatch(r"61 passed.* in [\d.]+s", ran.stdout.splitlines()[-1]), ran.stdout


def test_what_changes_a_process_for_good_has_one_of_its_own(run, tmp_path):
    apart = "pytestmark = pytest.mark.process_apart\ndef test_a():\n    log('a')\ndef test_b():\n    log('b')\n"
    other = "@pytest.mark.parametrize('i', range(20))\ndef test_c(i):\n    log(i)\n"
    ran = run(a=apart, b=other, c="@pytest.mark.process_apart\ndef test_d():\n    log('d')\n")
    processes = {}
    for name, process in (line.split() for line in (tmp_path / "ran").read_text().splitlines()):
        processes.setdefault("apart" if name in "abd" else "other", set()).add(process)
    assert len(processes["apart"]) == 1 and not processes["apart"] & processes["other"]
    assert re.fullmatch(r"23 passed.* in [\d.]+s", ran.stdout.splitlines()[-1]), ran.stdout


def test_a_failure_and_a_broken_fixture_are_shown_and_counted(run):
    broken = "@pytest.fixture\ndef broken(): raise ValueError('no such thing')\ndef test_c(broken): pass\n"
    ran = run(a="def test_a(): assert 1 == 2\ndef test_b(): pass\n", b=broken)
    assert "assert 1 == 2" in ran.stdout and "no such thing" in ran.stdout
    assert re.fullmatch(r"1 failed, 1 passed, 1 error in [\d.]+s", ran.stdout.splitlines()[-1]), ran.stdout
    assert ran.returncode == 1


def test_a_file_that_cannot_be_imported_fails_the_run(run):
    ran = run(a="def test_a(): pass\n", b="import no_such_module\n")
    assert "no_such_module" in ran.stdout
    assert ran.returncode != 0


def test_a_process_that_dies_fails_the_run(run):
    ran = run(a="def test_a():\n    os._exit(0)\n", b="def test_b(): pass\n")
    assert "run_pytest: a process ended without its answer" in ran.stdout
    assert ran.returncode != 0
