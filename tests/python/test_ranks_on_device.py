"""Ranks whose tensors lie on a device: unchanged loops that average gradients there. Two ranks on the emulated device have the
bits of two on the CPU; on CUDA, by NCCL, a rank a device, and a world of one.
"""

from pathlib import Path

import pytest
import torch

from on_ranks import start

pytestmark = pytest.mark.one_process
PROGRAM = Path(__file__).resolve().parent / "ranks_on_device.py"
DEVICES = ["emulated"] + ["cuda"] * (torch.cuda.device_count() > 1)


def results_on(device, build_dir, out, ranks=2):
    out.mkdir()
    start(ranks, [PROGRAM, build_dir / "python", device, out])
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def on_cpu(build_dir, tmp_path_factory):
    return results_on("cpu", build_dir, tmp_path_factory.mktemp("ranks") / "cpu")


@pytest.fixture(scope="module", params=DEVICES)
def there(request, build_dir, tmp_path_factory):
    return request.param, results_on(request.param, build_dir, tmp_path_factory.mktemp("ranks") / request.param)


def assert_means(all_ranks):
    count = len(all_ranks)
    for rank in all_ranks:
        assert all((one == (count + 1) / 2).all() for one in rank["averaged"]["means"])
        assert (rank["averaged"]["shared"][0] == 0).all() and (rank["averaged"]["shared"][1] == count - 1).all()
        assert not rank["averaged"]["differ"]


def test_tensors_are_averaged_where_they_lie(there):
    assert_means(there[1])


@pytest.mark.parametrize("kind", ["ddp", "zero"])
def test_a_loop_trains_as_on_cpus(on_cpu, there, kind):
    device, ranks = there
    for rank, here in zip(ranks, on_cpu, strict=True):
        got, wanted = rank[kind], here[kind]
        assert got["replays"] > 4 and not got["warnings"], got
        close = {"rtol": 0, "atol": 0} if device == "emulated" else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(torch.tensor(got["losses"]), torch.tensor(wanted["losses"]), **close)
        torch.testing.assert_close(got["state"], wanted["state"], **close)
    parameters = [name for name in ranks[0][kind]["state"] if "running" not in name and "batches" not in name]
    assert all(torch.equal(ranks[0][kind]["state"][name], ranks[1][kind]["state"][name]) for name in parameters)


def test_a_whole_step_says_that_it_does_not_run_there(on_cpu, there):
    for rank in there[1]:
        assert rank["step"].startswith("a step on ranks has its tensors on the CPU, and '") and "loop" in rank["step"]
        assert len(rank["step"].splitlines()) == 1
    assert all(isinstance(rank["step"], list) for rank in on_cpu)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="[SKIP] there is no CUDA device")
def test_a_world_of_one_by_nccl_on_cuda(build_dir, tmp_path):
    assert_means(results_on("cuda", build_dir, tmp_path / "one", ranks=1))
