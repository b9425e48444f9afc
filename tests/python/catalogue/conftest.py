"""The list of cases that fail today, and which of them do no longer."""

from pathlib import Path

import pytest


def listed():
    """Cases of open.txt: `file.program-mode`, one on a line; what follows on the line says how it fails."""
    lines = Path(__file__).with_name("open.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip()]


@pytest.fixture(scope="session")
def open_cases():
    return listed()


def pytest_terminal_summary(terminalreporter):
    passed = {report.nodeid.partition("[")[2].rstrip("]") for report in terminalreporter.stats.get("passed", ())}
    if closed := [name for name in listed() if name in passed]:
        terminalreporter.section("open no longer: take these out of open.txt")
        terminalreporter.line("\n".join(closed))
