"""What a step should take: from a calibration that is kept, or a default, beside what it takes."""

import logging

import pytest
import torch

import stepc


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kernels")
    table = stepc.calibrate(stepc.Config(kernel_directory=directory))
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
def test_prediction_is_of_the_plan(calibrated, mode):
    step = make_step(calibrated, mode)
    assert step.predicted_seconds is None and "predicted" not in step.report()
    for rows in (64, 2048):
        for _ in range(4):
            step(torch.randn(rows, 256))
        if rows == 64:
            small = step.predicted_seconds
    assert 0 < small < step.predicted_seconds < 1, "more rows take longer"
    assert "from this machine's rates; measured" in step.report()


def test_prediction_without_calibration_says_so(tmp_path):
    step = make_step(tmp_path)
    for _ in range(4):
        step(torch.randn(64, 256))
    assert step.predicted_seconds > 0
    assert "from default rates: `stepc calibrate` measures this machine's" in step.report()


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

