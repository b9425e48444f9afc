"""The stepc command of the pip package: what the wheel's entry point names finds and runs the program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULE, FUNCTION = PROJECT["project"]["scripts"]["stepc"].split(":")
START = f"import sys; sys.argv[0] = 'stepc'; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"


@pytest.fixture(scope="module")
def site(build_dir, tmp_path_factory):
    """What pip's build installs: the components that pyproject.toml names."""
    path = tmp_path_factory.mktemp("site")
    for component in PROJECT["tool"]["scikit-build"]["install"]["components"]:
        subprocess.run(["cmake", "--install", build_dir, "--prefix", path, "--component", component], check=True,
                       capture_output=True)
    return path


def start(site, *arguments, isolated=False, **environment):
    """The command with nothing but the installed package, and torch where it is installed."""
    options = ["-S"] if isolated else []
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), **environment}
    return subprocess.run([sys.executable, *options, "-c", START, *arguments], cwd=site, env=variables, text=True,
                          capture_output=True, timeout=120)


def test_the_command_is_the_built_program(site, build_dir):
    expected = subprocess.run([build_dir / "src/stepc", "--help"], capture_output=True, text=True, check=True)
    ran = start(site, "--help")
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", expected.stdout)


def test_arguments_and_exit_status_go_through(site):
    ran = start(site, "train", "no such file.toml")
    assert ran.returncode == 2
    assert "no such file.toml" in ran.stderr


def test_the_libraries_are_those_of_the_installed_torch(site, tmp_path):
    """The run path that the linker wrote names the torch of the build, which may be gone or another."""
    program = tmp_path / "stepc/bin/stepc"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\n")
    program.chmod(0o755)
    (tmp_path / f"{MODULE}.py").write_text((site / f"{MODULE}.py").read_text())
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('torch was imported')\n")
    paths = start(tmp_path, LD_LIBRARY_PATH="/of/the/user").stdout.strip().split(":")
    assert (paths[0], paths[-1]) == (str(tmp_path / "torch/lib"), "/of/the/user")


def test_without_torch_it_says_what_to_install(site):
    ran = start(site, "--help", isolated=True)  # -S: no site-packages
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "stepc: torch is not installed beside this package: pip install torch==2.11.0\n"


def test_a_package_without_its_program_says_so(site, tmp_path):
    (tmp_path / f"{MODULE}.py").write_text((site / f"{MODULE}.py").read_text())
    ran = start(tmp_path, "--help")
    assert ran.returncode == 1
    program = tmp_path / "stepc/bin/stepc"
    assert ran.stderr == f"stepc: cannot run {program}: No such file or directory; install the package again\n"


def test_the_build_makes_what_is_installed():
    assert {"stepc", "stepc_python"} <= set(PROJECT["tool"]["scikit-build"]["build"]["targets"])
