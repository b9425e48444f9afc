"""Parity tests compare the built binaries with PyTorch and transformers."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--build-dir", default="build/release", help="where the binaries were built")


@pytest.fixture(scope="session")
def build_dir(request):
    return ROOT / request.config.getoption("--build-dir")
