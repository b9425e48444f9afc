"""The Python door's tests: an ambient state that no test leaves behind."""

import gc
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is built from a config; nothing is downloaded
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # steps this small would wait for spinning workers

import numpy
import pytest
import torch

THREADS = 2


def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "test_on_ranks_all.py" and not config.getoption("--ranks"):
        return True
    return None


@pytest.fixture(scope="module")
def short_collections():
    """Recordings collect garbage and search for owners: what is loaded by now need not be looked at each time.

    Not for tests of what a module or a class holds that was there before them: it would not be found.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def ambient_state():
    """Starts every test from the same ambient state and restores what a step may have changed."""
    torch.set_num_threads(THREADS)
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(THREADS)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
