"""What all tests share: where the package and the binaries were built, and a small run to start from."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Of an environment that tools/test_python has made, .venv-3.12 or .venv-torch-2.13: what it was built for.
BUILT_FOR = Path(sys.prefix).name.partition(".venv-")[2]
OF_TORCH = f"-{BUILT_FOR}" if BUILT_FOR.startswith("torch-") else ""

RUN_TOML = """\
[model]
path = "model"
compute = "float32"

[data]
train = ["text.txt"]
eval_fraction = 0.1
eval_windows = 4
seq_len = 32

[train]
steps = 4
batch_size = 2

[optim]
warmup_steps = 2

[output]
dir = "out"
log_every = 1
sample_tokens = 5
"""


def pytest_addoption(parser):
    parser.addoption("--build-dir", default=f"build/release{OF_TORCH}", help="where the binaries were built")
    parser.addoption("--open", action="store_true", help="run the catalogue's cases that stand in open.txt too")
    parser.addoption("--programs", action="store_true", help="run all programs of tests/python/programs")
    parser.addoption("--ranks", action="store_true", help="run all that tests/python has on several ranks")
    parser.addoption("--kills", type=int, default=3, help="how often a rank is killed")
    parser.addoption("--kill-ranks", type=int, default=2, help="of how many ranks one is killed")
    parser.addoption("--faults", type=int, default=10, help="how many faults the soak of tests/error/test_elastic.py has")
    parser.addoption("--fault-ranks", type=int, default=4, help="on how many ranks")
    parser.addoption("--fault-mesh", default="", help="how they are spread: dp_shard=4,dp_replicate=2; nothing: dp_shard")
    parser.addoption("--isolated", action="store_true", help="run each case of the catalogue in a process of its own")
    parser.addoption("--long", action="store_true", help="run the tests that wait a minute, too")


def pytest_configure(config):
    package = "python" if OF_TORCH else f"python{BUILT_FOR}"
    sys.path.insert(0, str(ROOT / config.getoption("--build-dir") / package))
    config.addinivalue_line("markers", "long: waits a minute, for a timeout say; only with --long")
    config.addinivalue_line("markers", "one_process: tools/run_pytest gives the whole file to one process")
    config.addinivalue_line("markers", "process_apart: changes a process for good; tools/run_pytest has one for it")


def pytest_collection_modifyitems(config, items):
    """What is long is left out of a run of all, and not shown as skipped."""
    if not config.getoption("--long"):
        items[:] = [item for item in items if item.get_closest_marker("long") is None]


@pytest.fixture(scope="session")
def build_dir(request):
    return ROOT / request.config.getoption("--build-dir")


class Workspace:
    """A directory with a model, a text and a run.toml in it, and the stepc command run there."""

    def __init__(self, binary, path):
        self.binary = binary
        self.path = path

    def __call__(self, *arguments, env=None):
        return subprocess.run([self.binary, *map(str, arguments)], cwd=self.path, capture_output=True, text=True, env=env,
                              timeout=600)  # bfloat16 is slow where no AVX-512 is

    def start(self, *arguments):
        # Without the SIGHUP that nohup, if the tests run under it, ignores.
        return subprocess.Popen([self.binary, *map(str, arguments)], cwd=self.path, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))


@pytest.fixture(scope="session")
def small_model(build_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "model"
    subprocess.run([build_dir / "src/stepc", "init", path, "--preset", "llama-2m"], check=True, capture_output=True)
    return path


@pytest.fixture
def stepc(build_dir, small_model, tmp_path):
    (tmp_path / "model").mkdir()
    for file in small_model.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    words = "light and the deep was upon face of waters earth heaven void".split()
    (tmp_path / "text.txt").write_text(" ".join(random.Random(0).choices(words, k=4000)))
    (tmp_path / "run.toml").write_text(RUN_TOML)
    return Workspace(build_dir / "src/stepc", tmp_path)
