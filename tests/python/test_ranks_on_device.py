"""Ranks whose tensors lie on a device: unchanged loops that average gradients there, and whole steps as Graphs. Loops of two
ranks on the emulated device have the bits of two on the CPU; on CUDA, by NCCL, a rank a device, and a world of one.
"""

import re
from pathlib import Path

import pytest
import torch

from on_ranks import PACKAGE, start

pytestmark = pytest.mark.one_process
PROGRAM = Path(__file__).resolve().parent / "ranks_on_device.py"
DEVICES = ["emulated"] + ["cuda"] * (torch.cuda.device_count() > 1)


def results_on(device, out, ranks=2, saved=()):
    out.mkdir()
    start(ranks, [PROGRAM, PACKAGE, device, out, *saved], EMULATED_DEVICES=ranks)
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    return results_on("cpu", tmp_path_factory.mktemp("ranks") / "cpu")


@pytest.fixture(scope="module", params=DEVICES)
def there(request, tmp_path_factory):
    return request.param, results_on(request.param, tmp_path_factory.mktemp("ranks") / request.param)


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


WHOLE = ["dp, batches of the host", "zero 1", "zero 2, dropout", "zero 3", "tp", "cp",
         "micro-batches, batches of the host", "micro-batches, zero 1", "micro-batches, zero 3, dropout", "micro-batches, tp",
         "stages", "stages, zb-h1, batches of the host", "stages, dropout"]
WEIGHED = ["auto", "overlap", "context", "budget", "budget of stages"]


def assert_trains_as_on_cpus(ranks, on_cpu, kind):
    for rank, (got, wanted) in enumerate(zip((one[kind] for one in ranks), (one[kind] for one in on_cpu), strict=True)):
        assert "device cuda sm_" in got["text"].splitlines()[1] and "device cuda" not in wanted["text"]
        stats = got["stats"]
        assert stats["replays"] > 4 and stats["kernels"] > 0 and stats["opaque_calls"] == [], got["report"]
        assert not stats["warnings"], got["report"]
        # Once with the instructions one by one, and once with what the device launches at once.
        is_cut = "micro-batches" in got["report"]
        has_graphs = kind != "zero 1"
        assert is_cut or stats["plain_verifications"] == 1 + has_graphs, got["report"]
        launches = 6 if is_cut else 2  # of two micro-batches, in a pass or two, and of the update
        assert stats["plain_verifications"] >= 1 and (stats["device_graphs"] >= launches) == has_graphs, got["report"]
        is_priced = "from data sheets and published rates of the card" in got["report"]
        assert is_priced or kind not in WEIGHED, got["report"]
        assert 0 < got["predicted"] < 1e-2 if is_priced else got["predicted"] is None, got["report"]
        if "dropout" not in kind:  # another operator draws there
            torch.testing.assert_close(torch.tensor(got["losses"]), torch.tensor(wanted["losses"]), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(got["state"], wanted["state"], rtol=1e-3, atol=1e-4)
        assert got["losses"] == ranks[0][kind]["losses"], rank
        assert all(torch.equal(one, ranks[0][kind]["state"][name]) for name, one in got["state"].items()), rank


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_step_trains_as_on_cpus(on_cpu, there, kind):
    assert_trains_as_on_cpus(*([rank["whole"] for rank in ranks] for ranks in (there[1], on_cpu)), kind)


@pytest.mark.parametrize("kind", WEIGHED)
def test_what_is_weighed_by_a_cards_rates_trains_as_on_cpus(on_cpu, there, kind):
    test_a_whole_step_trains_as_on_cpus(on_cpu, there, kind)


def begun_exchanges(text):
    """By mark the op of an exchange that a Schedule begins, and how many instructions it has before the wait for it."""
    begun, beside = {}, {}
    for number, line in enumerate(line for line in text.splitlines() if re.match(r" *i\d+: ", line)):
        mark = re.search(r" mark (\d+) ", line + " ")
        if mark and " collective " in line:
            begun[mark[1]] = (re.search(r" collective (\w+) ", line)[1], number)
        elif mark and " wait " in line:
            beside[mark[1]] = number - begun[mark[1]][1] - 1
    assert begun.keys() == beside.keys()
    return [(op, beside[mark]) for mark, (op, _) in begun.items()]


@pytest.mark.parametrize("kind", ["dp", "zero 3", "zero 3, micro-batches"])
def test_exchanges_go_on_beside_the_computation(there, kind):
    """Begun and awaited, by an H100's rates, with the bits of exchanges that block."""
    device, ranks = there
    for rank in ranks:
        blocking, beside = rank["whole"]["overlapped"][kind]
        assert not begun_exchanges(blocking["text"]) and beside["predicted"] < blocking["predicted"], beside["report"]
        begun = begun_exchanges(beside["text"])
        assert {op for op, _ in begun} == {"all_gather", "reduce_scatter"} and len(begun) >= 4, begun
        assert sum(others > 2 for _, others in begun) >= 2, begun
        for one in (blocking, beside):
            assert one["stats"]["device_graphs"] >= 2 and not one["stats"]["warnings"], one["report"]
        close = {"rtol": 0, "atol": 0} if device == "emulated" else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(torch.tensor(beside["losses"]), torch.tensor(blocking["losses"]), **close)
        torch.testing.assert_close(beside["state"], blocking["state"], **close)


def test_what_has_moved_is_recorded_again(on_cpu, there):
    """By all ranks in the same step, their sixteenth on such a batch."""
    for rank, here in zip(there[1], on_cpu, strict=True):
        got, wanted = (one["whole"]["a large batch comes"] for one in (rank, here))
        launched = got["launched"]
        assert launched[5] >= 6 and launched[7:16] == [0] * 9 and launched[-1] == launched[5], launched
        torch.testing.assert_close(torch.tensor(got["losses"]), torch.tensor(wanted["losses"]), rtol=1e-4, atol=1e-4)
        assert not got["stats"]["warnings"] and got["losses"] == there[1][0]["whole"]["a large batch comes"]["losses"]


def test_stages_of_four_ranks_train_as_on_cpus(tmp_path):
    ranks = {device: results_on(device, tmp_path / device, ranks=4) for device in ("cpu", "emulated")}
    assert_trains_as_on_cpus(ranks["emulated"], ranks["cpu"], "stages and dp")


def test_a_whole_step_goes_on_from_a_checkpoint_elsewhere(on_cpu, there, tmp_path_factory, tmp_path):
    device, ranks = there
    root = tmp_path_factory.getbasetemp()
    for name, from_there in ((device, False), ("cpu", True), (device, True)):
        saved = next(root.glob(f"ranks*/{device if from_there else 'cpu'}"))
        out = tmp_path / f"{name} {from_there}"
        for got, there, here in zip(results_on(name, out, saved=[saved]), ranks, on_cpu, strict=True):
            for kind in ("in one piece", "in stages"):
                wanted = here["whole"][f"{kind} went on"]["losses"]
                torch.testing.assert_close(torch.tensor(got[kind]), torch.tensor(wanted), rtol=1e-4, atol=1e-4)
            if (name, from_there) == (device, True):  # where it saved, the same is drawn
                assert got["with dropout"] == there["whole"]["with dropout went on"]["losses"]


def test_what_cannot_be_weighed_or_cut_is_one_line(there):
    """Of a card whose rates are not known."""
    device, ranks = there
    if device == "cuda":
        pytest.skip("[SKIP] the emulated device is such a card")
    weighs = ["parallel = \"auto\"", "overlap = true", "context = \"auto\"", *["the memory budget \"auto\""] * 2]
    for number, rank in enumerate(ranks):
        for kind, what in zip(WEIGHED, weighs, strict=True):
            words = f"{what} weighs by rates, and those of emulated:{number} are not known, those of a100, "
            assert words in rank["refused"][kind] and len(rank["refused"][kind].splitlines()) == 1, rank["refused"][kind]


def test_rows_that_do_not_divide_are_told_as_on_cpus(on_cpu, there):
    for rank, here in zip(there[1], on_cpu, strict=True):
        assert rank["refused"]["three micro-batches"] == here["refused"]["three micro-batches"] is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="[SKIP] there is no CUDA device")
def test_a_world_of_one_by_nccl_on_cuda(tmp_path):
    assert_means(results_on("cuda", tmp_path / "one", ranks=1))
