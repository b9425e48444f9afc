import pytest

from tiny_run import write_tiny_model


@pytest.fixture
def tiny(stepc, small_model):
    for file in (stepc.path / "model").iterdir():
        file.unlink()
    write_tiny_model(stepc.path / "model", small_model)
    return stepc
