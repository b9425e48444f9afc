"""What a step should take: from a calibration that is kept, or a default, beside what it takes."""

import json
import logging

import pytest
import torch

import stepc

pytestmark = pytest.mark.one_process  # for `calibrated`, which takes half a minute


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kernels")
    table = stepc.calibrate(stepc.Config(kernel_directory=directory), rounds=1)
    assert "GFLOP/s in f32" in table
    return directory


def make_step(directory, mode="fast"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return stepc.accelerate(train_step, config=stepc.Config(mode=mode, kernel_directory=directory))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_prediction_is_of_the_plan(calibrated, mode, tmp_path):
    step = make_step(calibrated, mode)
    assert step.predicted_seconds is None and "predicted" not in step.report()
    for rows in (64, 2048):
        for _ in range(4):
            step(torch.randn(rows, 256))
        if rows == 64:
            small = step.predicted_seconds
    assert 0 < small < step.predicted_seconds < 1, "more rows take longer"
    assert "from this machine's rates; measured" in step.report()
    with step.profile(tmp_path / "trace.json"):
        step(torch.randn(64, 256))
    assert "measured on this machine" in json.loads((tmp_path / "trace.json").read_text())["otherData"]["rates"]


def test_prediction_without_calibration_says_so(tmp_path):
    step = make_step(tmp_path)
    for _ in range(4):
        step(torch.randn(64, 256))
    assert step.predicted_seconds > 0
    assert "from default rates: `stepc calibrate` measures this machine's" in step.report()


def deep_step(directory, budget):
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (torch.nn.Linear(256, 256), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return stepc.accelerate(train_step, config=stepc.Config(memory_budget=budget, kernel_directory=directory))


def test_measured_rates_count_where_auto_asks_for_them(tmp_path, caplog):
    threads = torch.get_num_threads()
    texts = {}
    for name, rates in {"slow_memory": (1e18, 1e6), "slow_arithmetic": (1e6, 1e18)}.items():
        directory = tmp_path / name
        directory.mkdir()
        (directory / f"target-{threads}-thread{'' if threads == 1 else 's'}.toml").write_text(
            f"threads = {threads}\nfeatures = []\nflops_per_second = {rates[0]}\nbytes_per_second = {rates[1]}\n"
            '[[calls]]\nop = "exp"\ndtype = "f32"\nseconds = 1e-6\nbytes_per_second = 1e9\n')
        for budget in ("none", "auto"):
            step = deep_step(directory, budget)
            caplog.clear()
            with caplog.at_level(logging.INFO, logger="stepc"):
                for _ in range(16 if budget == "auto" else 4):
                    step(torch.randn(512, 256))
            texts[name, budget] = step.schedule_text()
            assert ("memory budget auto: expected " in caplog.text) == (budget == "auto")
            assert ("budget auto expected " in step.report()) == (budget == "auto")
        assert "weighed with this machine's rates" in step.report()
        assert " a step, the median of 5 replays" in caplog.text and "; measured " in step.stats["auto_budget"]
    assert texts["slow_memory", "none"] == texts["slow_arithmetic", "none"]
    assert texts["slow_memory", "auto"] != texts["slow_arithmetic", "auto"]


def test_calibration_changes_no_plan(calibrated, tmp_path):
    texts = []
    for directory in (calibrated, tmp_path):
        step = make_step(directory)
        for _ in range(4):
            step(torch.randn(64, 256))
        texts.append(step.schedule_text())
    assert texts[0] == texts[1]


def test_damaged_calibration_is_said_and_a_default_serves(tmp_path, caplog):
    (tmp_path / f"target-{torch.get_num_threads()}-thread{'' if torch.get_num_threads() == 1 else 's'}.toml").write_text(
        "threads = 2\nfeatures = []\nbytes_per_second = 0\n")
    step = make_step(tmp_path)
    with caplog.at_level(logging.WARNING, logger="stepc"):
        for _ in range(4):
            step(torch.randn(64, 256))
        assert step.predicted_seconds > 0
    assert "line 3: bytes_per_second = 0: must be a number" in caplog.text and "stepc calibrate" in caplog.text
    assert "from default rates" in step.report()

