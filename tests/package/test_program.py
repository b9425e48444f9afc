"""The stepc command of the pip package: what the wheel's entry point names finds and runs the program."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULE, FUNCTION = PROJECT["project"]["scripts"]["stepc"].split(":")
START = f"import sys; sys.argv[0] = 'stepc'; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"
SERIES = ".".join(torch.__version__.split(".")[:2])  # what the build is for
REFUSAL = f"this stepc is built for torch {SERIES}, here is torch {{}}: pip install 'torch=={SERIES}.*'"
WANTED = "pip install 'torch>=2.11,<2.16' first"


def dependencies():
    """What pip's build is told, by the provider that pyproject.toml names."""
    provider = PROJECT["tool"]["scikit-build"]["metadata"]["dependencies"]
    return runpy.run_path(ROOT / provider["provider-path"] / f"{provider['provider']}.py")["dynamic_metadata"]("dependencies", {})


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


def install_the_entry_point(site, path):
    (path / "stepc").mkdir(exist_ok=True)
    for file in (f"{MODULE}.py", "stepc/built_for.py"):
        (path / file).write_text((site / file).read_text())


def made_up_torch(path, version):
    (path / "torch").mkdir()
    (path / "torch/__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (path / "torch/version.py").write_text(f"__version__ = '{version}'\n")


def test_the_libraries_are_those_of_the_installed_torch(site, tmp_path):
    """The run path that the linker wrote names the torch of the build, which may be gone or another."""
    program = tmp_path / "stepc/bin/stepc"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\n")
    program.chmod(0o755)
    install_the_entry_point(site, tmp_path)
    made_up_torch(tmp_path, f"{SERIES}.5+cpu")
    paths = start(tmp_path, LD_LIBRARY_PATH="/of/the/user").stdout.strip().split(":")
    assert (paths[0], paths[-1]) == (str(tmp_path / "torch/lib"), "/of/the/user")


def test_without_torch_it_says_what_to_install(site):
    ran = start(site, "--help", isolated=True)  # -S: no site-packages
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"stepc: torch is not installed beside this package: pip install 'torch=={SERIES}.*'\n"


def test_another_minor_version_of_torch_is_refused(site, tmp_path):
    install_the_entry_point(site, tmp_path)
    made_up_torch(tmp_path, "2.10.0a0+nv25.12")
    ran = start(tmp_path, "--help")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"stepc: {REFUSAL.format('2.10.0a0+nv25.12')}\n"


def test_the_module_refuses_it_too(build_dir, tmp_path):
    made_up_torch(tmp_path, "2.1.2")
    (tmp_path / "torch/__init__.py").write_text("__version__ = '2.1.2'\n")
    ran = subprocess.run([sys.executable, "-c", "import stepc"], env={"PYTHONPATH": f"{tmp_path}:{build_dir / 'python'}"},
                         text=True, capture_output=True)
    assert ran.stderr.splitlines()[-1] == f"ImportError: {REFUSAL.format('2.1.2')}"


@pytest.mark.parametrize(("version", "required"), [("2.11.0+cpu", "torch==2.11.*"), ("2.12.0a0+nv", "torch==2.12.*"),
                                                   ("2.15.0+cu132", "torch==2.15.*")])
def test_the_wheel_requires_the_minor_version_that_it_is_built_for(tmp_path, monkeypatch, version, required):
    made_up_torch(tmp_path, version)
    monkeypatch.setenv("STEPC_TORCH_DIR", str(tmp_path / "torch"))
    assert dependencies() == [required, "numpy"]


def test_a_build_without_torch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPC_TORCH_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as refused:
        dependencies()
    assert str(refused.value) == f"stepc is built against the torch that is installed, and {tmp_path} is none: {WANTED}"


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0a0+nv27.01", "3.0.0"])
def test_a_torch_that_no_build_is_for_is_refused(tmp_path, monkeypatch, version):
    made_up_torch(tmp_path, version)
    folder = tmp_path / "torch"
    monkeypatch.setenv("STEPC_TORCH_DIR", str(folder))
    with pytest.raises(SystemExit) as refused:
        dependencies()
    assert str(refused.value) == f"stepc is built against torch 2.11 to 2.15, and {folder} is {version}: {WANTED}"

    # CMake by itself, which parses the version in its own way.
    (folder / "lib").mkdir()
    for name in ("libtorch_cpu.so", "libc10.so"):
        (folder / "lib" / name).touch()
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject(p NONE)\n"
                                             f"include({ROOT}/cmake/FindTorchWheel.cmake)\n")
    ran = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DSTEPC_TORCH_DIR={folder}"], text=True,
                         capture_output=True)
    number = re.match("[0-9.]+", version)[0]
    assert ran.returncode == 1
    assert f"stepc is built against torch 2.11 to 2.15, found {number} in {folder}" in " ".join(ran.stderr.split())


def test_a_package_without_its_program_says_so(site, tmp_path):
    install_the_entry_point(site, tmp_path)
    ran = start(tmp_path, "--help")
    assert ran.returncode == 1
    program = tmp_path / "stepc/bin/stepc"
    assert ran.stderr == f"stepc: cannot run {program}: No such file or directory; install the package again\n"


def test_the_build_makes_what_is_installed():
    assert {"stepc", "stepc_python"} <= set(PROJECT["tool"]["scikit-build"]["build"]["targets"])
