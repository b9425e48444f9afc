"""Runs the catalogue. `--open` runs the cases of open.txt too, `--isolated` each case in a process of its own."""

import pytest
import torch

from catalogue import (ambient, arrays, batches, case, classes, effects, host_data, kept, kinds, loop,  # noqa: F401
                       loop_objects, loop_reads, memories, native_reads, optimizers, raising, reads, replay_more, results,
                       shared_memory, values)

pytestmark = pytest.mark.usefixtures("short_collections")
IDENTIFIERS = [f"{name}-{mode}" for name, one in case.CASES.items() for mode in case.modes_of(one)]


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_case(name, open_cases, request):
    if name in open_cases and not request.config.getoption("--open"):
        pytest.skip("stands in open.txt")
    torch.set_num_threads(1)
    program, mode = name.rsplit("-", 1)
    check = case.check_isolated if request.config.getoption("--isolated") else case.check
    check(case.CASES[program], mode)


def test_open_cases_exist(open_cases):
    assert len(set(open_cases)) == len(open_cases) and not set(open_cases) - set(IDENTIFIERS)


def test_most_cases_replay():
    """Running everything eagerly cannot pass: few cases may, and none whose Python has effects or computes values."""
    assert len(case.CASES) >= 200
    replaying = [name for name, one in case.CASES.items() if one.eager is None]
    assert len(replaying) >= 150
    eager = {name.split(".")[0] for name in set(case.CASES) - set(replaying)}
    assert not eager & {"reads", "effects", "values"}
