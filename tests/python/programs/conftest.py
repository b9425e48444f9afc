"""Which programs run: a cheap few always, all of them with --programs."""

import importlib.util
import sys
from pathlib import Path

import pytest

CHEAP = {"test_transformers_trainer.py", "test_peft_lora.py", "test_wgan_gp.py"}  # they need no more than the other tests
PACKAGES = Path(sys.prefix) / "programs"  # of the environment that runs the tests
# What the others import that requirements-test.txt has not.
NEEDED = {"test_lightning.py": "lightning", "test_trl_sft.py": "trl", "test_ppo.py": "gymnasium",
          "test_neural_ode.py": "torchdiffeq"}
LEFT_OUT = pytest.StashKey[list]()


def pytest_ignore_collect(collection_path, config):
    name = collection_path.name
    if not name.startswith("test_") or name in CHEAP:
        return None
    if not config.getoption("--programs"):
        config.stash.setdefault(LEFT_OUT, []).append(name)
        return True
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
        raise pytest.UsageError(f"{name} needs {NEEDED[name]}, which is not installed: tools/setup programs")
    return None


def pytest_report_collectionfinish(config):
    names = config.stash.get(LEFT_OUT, [])
    return f"programs that take --programs: {', '.join(sorted(names))}" if names else []
