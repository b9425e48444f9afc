"""tools/setup on made-up machines: each lacks one thing, and setup says which in one line.

A machine is a folder of commands that is the whole PATH: links to the real ones, and stubs for what the case changes.
Nothing is installed and nothing is downloaded.
"""
import os
import pathlib
import shutil
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REAL = "bash cp env dirname cat sha256sum sed grep head tail cut mkdir rm sort tee wc".split()
ALL_INSTALLED = 'shift 3\nfor package in "$@"; do echo -n "ii :$package "; done\n'
PYTHON = (
    'if [ "$2" = venv ]; then rm -rf "$4"; mkdir -p "$4/bin"; echo home > "$4/pyvenv.cfg"; cp "$0" "$4/bin/python"; fi\n'
    'if [ "$2" = pip ]; then echo "$0" "$@" >> pip-calls; fi\n'
    'case "$2" in *%d.%d*) echo {} ;; esac\n'
)
STUBS = {
    "dpkg-query": ALL_INSTALLED,
    "id": "echo 1000\n",
    "df": "echo Avail; echo 99999999\n",
    "g++": 'if [ "$1" = --version ]; then echo "g++ (Debian) 12.2.0"; else echo 12.2.0; fi\n',
    "cmake": "echo cmake version 3.25.1\n",
    "python3": PYTHON.format("3.11"),
    "apt-get": 'echo "$@" >> apt-calls\n',
}


class Machine:
    def __init__(self, folder):
        self.project = folder / "project"
        self.bin = folder / "bin"
        (self.project / "tools").mkdir(parents=True)
        self.bin.mkdir()
        for path in (ROOT / "tools/setup", *ROOT.glob("requirements*.txt")):
            shutil.copy(path, self.project / path.relative_to(ROOT))
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name))
        for name, script in STUBS.items():
            self.stub(name, script)

    def stub(self, name, script):
        path = self.bin / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}")
        path.chmod(0o755)

    def run(self, part="build", **environment):
        return subprocess.run(
            [self.project / "tools/setup", part],
            env={"PATH": str(self.bin), "HOME": "/nonexistent", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, name):
        path = self.project / f"{name}-calls"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def assert_fails(result, *parts):
    assert result.returncode == 1, result
    assert result.stderr.count("\n") == 1, result.stderr  # one line
    for part in ("setup: ", *parts):
        assert part in result.stderr


def test_nothing_missing_needs_no_root_and_is_quick_the_second_time(machine):
    first = machine.run()
    assert first.returncode == 0, first.stderr
    assert "--no-deps -r requirements.txt" in machine.calls("pip")
    begin = time.monotonic()
    second = machine.run()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert time.monotonic() - begin < 1
    assert machine.calls("pip").count("\n") == 1
    assert machine.calls("apt") == ""


def test_changed_requirements_are_installed_again(machine):
    machine.run()
    (machine.project / "requirements.txt").write_text("torch==9.9.9\n")
    machine.run()
    assert machine.calls("pip").count("\n") == 2


def test_test_part_adds_the_comparison_packages(machine):
    assert machine.run("test").returncode == 0
    assert "-r requirements.txt -r requirements-test.txt" in machine.calls("pip")
    machine.run("build")  # which has all that a build needs
    assert machine.calls("pip").count("\n") == 1


def test_another_interpreter_gets_an_environment_of_its_own(machine):
    machine.stub("python3.12", PYTHON.format("3.12"))
    for python in ("python3.12", "python3.12", ".venv-3.12/bin/python"):
        result = machine.run("python", PYTHON=python)
        assert result.returncode == 0, result.stderr
    assert machine.calls("pip").startswith(".venv-3.12/bin/python -m pip install")
    assert "-r requirements-test.txt" in machine.calls("pip") and machine.calls("pip").count("\n") == 1
    assert not (machine.project / ".venv").exists()


def test_another_torch_gets_an_environment_of_its_own(machine):
    for version in ("2.13.0", "2.13.0", "2.13.1"):
        result = machine.run("torch", TORCH=version)
        assert result.returncode == 0, result.stderr
    first, second = machine.calls("pip").splitlines()  # another patch of it is installed in its place
    assert first.startswith(".venv-torch-2.13/bin/python -m pip install") and "torch==2.13.0 -r requirements-test.txt" in first
    assert "torch==2.13.1" in second
    assert not (machine.project / ".venv").exists()


def test_the_oldest_torch_has_the_libraries_of_its_time(machine):
    for version in ("2.11.0", "2.11.1"):
        assert machine.run("torch", TORCH=version).returncode == 0
        assert machine.calls("pip").endswith(f"torch=={version} -r requirements-oldest.txt\n")


def test_the_projects_own_torch_in_an_environment_of_its_own(machine):
    pinned = (machine.project / "requirements.txt").read_text().partition("torch==")[2].split()[0]
    assert machine.run("torch", TORCH=pinned).returncode == 0
    assert "-r requirements.txt -r requirements-test.txt" in machine.calls("pip")


def test_a_wheel_takes_libtorch_alone(machine):
    assert machine.run("wheel", TORCH="2.11.0").returncode == 0
    assert machine.run("wheel").returncode == 0
    of_torch, own = machine.calls("pip").splitlines()
    assert of_torch.startswith(".venv-torch-2.11/bin/python") and of_torch.endswith("--no-deps torch==2.11.0")
    assert own.startswith(".venv/bin/python") and own.endswith("--no-deps -r requirements.txt")


def test_an_environment_of_an_older_time_is_brought_up_to_date(machine):
    machine.run("test")
    for name in ("requirements.txt", "requirements-test.txt"):  # as a pull changes them
        (machine.project / name).write_text("torch==9.9.9\n")
    result = machine.run("build")
    assert result.returncode == 0, result.stderr
    assert "--no-deps -r requirements.txt" in machine.calls("pip").splitlines()[1]
    assert machine.run("test").returncode == 0
    assert machine.calls("pip").count("\n") == 3


def test_an_environment_whose_python_is_too_old_is_made_again(machine):
    machine.run()
    old = PYTHON.format("3.10") + 'case "$2" in *version_info\\ \\<*) exit 1 ;; esac\n'
    (machine.project / ".venv/bin/python").write_text(f"#!{shutil.which('bash')}\n{old}")
    result = machine.run()
    assert result.returncode == 0 and "making .venv" in result.stdout
    assert machine.calls("pip").count("\n") == 2


@pytest.mark.parametrize("version", ["", "newest"])
def test_no_version_of_torch(machine, version):
    assert_fails(machine.run("torch", TORCH=version), f"TORCH is '{version}', no version of torch: TORCH=2.13.0")


def test_an_interpreter_that_is_not_there(machine):
    assert_fails(machine.run("python", PYTHON="python3.13"), "'python3.13' is no Python 3.11 or newer")


def test_missing_packages_without_root_or_sudo(machine):
    machine.stub("dpkg-query", "exit 1\n")
    assert_fails(machine.run(), "neither root nor sudo", "apt-get install", "libfmt-dev")


def test_only_what_is_missing_is_installed(machine):
    machine.stub("id", "echo 0\n")
    machine.stub("dpkg-query", 'shift 3\nfor p in "$@"; do [ $p = libfmt-dev ] || echo -n "ii :$p "; done\n')
    assert machine.run().returncode == 0
    assert machine.calls("apt") == "install -y --no-install-recommends libfmt-dev\n"


def test_a_command_from_elsewhere_is_as_good_as_its_package(machine):
    machine.stub("dpkg-query", 'shift 3\nfor p in "$@"; do [ $p = cmake ] || echo -n "ii :$p "; done\n')
    assert machine.run().returncode == 0


def test_faster_build_packages_are_not_demanded(machine):
    machine.stub("dpkg-query", 'shift 3\nfor p in "$@"; do [ $p = mold ] || echo -n "ii :$p "; done\n')
    result = machine.run()
    assert result.returncode == 0
    assert "mold" in result.stdout


def test_no_network_for_apt(machine):
    machine.stub("id", "echo 0\n")
    machine.stub("dpkg-query", "exit 1\n")
    machine.stub("apt-get", 'echo "E: Failed to fetch http://x Temporary failure resolving x"; exit 100\n')
    assert_fails(machine.run(), "cannot install", "Temporary failure resolving", "network")


def test_sudo_that_wants_a_password(machine):
    machine.stub("dpkg-query", "exit 1\n")
    machine.stub("sudo", 'echo "sudo: a password is required" >&2; exit 1\n')
    assert_fails(machine.run(), "cannot install", "a password is required")


def test_no_network_for_pip(machine):
    machine.stub("python3", STUBS["python3"] + 'if [ "$2" = pip ]; then echo "WARNING: NewConnectionError"; exit 1; fi\n')
    result = machine.run()
    assert_fails(result, "no network", "libtorch")
    assert not list((machine.project / ".venv").glob(".installed-*"))  # the next run tries again


def test_full_disk_while_installing(machine):
    machine.stub("python3", STUBS["python3"] + 'if [ "$2" = pip ]; then echo "No space left on device"; exit 1; fi\n')
    assert_fails(machine.run(), "no space left")


def test_too_little_disk(machine):
    machine.stub("df", "echo Avail; echo 1000000\n")
    assert_fails(machine.run("test"), "not enough disk space", "976 MiB free")
    assert machine.calls("pip") == ""


def test_other_pip_errors_are_quoted(machine):
    machine.stub("python3", STUBS["python3"] + 'if [ "$2" = pip ]; then echo "ERROR: No matching distribution"; exit 1; fi\n')
    assert_fails(machine.run(), "No matching distribution")


@pytest.mark.parametrize("version", ["11.4.0", "9"])
def test_old_compiler(machine, version):
    machine.stub("g++", f"echo {version}\n")
    assert_fails(machine.run(), f"g++ is version {version}, too old", "g++ 12")


def test_compiler_by_variable(machine):
    machine.stub("g++-13", "echo 13.1.0\n")
    machine.stub("g++", "echo 9\n")
    assert machine.run(CXX="g++-13").returncode == 0
    assert_fails(machine.run(CXX="g++-99"), "g++-99 not found")


def test_old_cmake(machine):
    machine.stub("cmake", "echo cmake version 3.18.4\n")
    assert_fails(machine.run(), "cmake is version 3.18.4, too old")


def test_python_without_venv_module(machine):
    machine.stub("python3", "exit 1\n")
    assert_fails(machine.run(PYTHON="python3"), "no Python 3.11 or newer with its venv module", "python3-venv")


def test_python_of_dead_venv_is_replaced(machine):
    machine.run()
    (machine.project / ".venv/bin/python").write_text("#!/nonexistent\n")
    assert machine.run().returncode == 0
    assert machine.calls("pip").count("\n") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_checkout_of_somebody_else(machine):
    machine.project.chmod(0o555)
    assert_fails(machine.run(), "cannot write into")


def test_unknown_part(machine):
    assert_fails(machine.run("everything"), "unknown part 'everything'", "build, demo, test, programs, python, torch, wheel, bench")
