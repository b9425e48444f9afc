import tempfile
from pathlib import Path

import pytest

from tiny_run import write_tiny_model


@pytest.fixture
def tiny(stepc, small_model):
    for file in (stepc.path / "model").iterdir():
        file.unlink()
    write_tiny_model(stepc.path / "model", small_model)
    return stepc


@pytest.fixture
def memory():
    """That of a machine, for snapshots."""
    with tempfile.TemporaryDirectory(prefix="stepc-test-", dir="/dev/shm") as directory:
        yield Path(directory)
