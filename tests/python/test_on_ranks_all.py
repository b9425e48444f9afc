"""All cases of ranks_cases.py on two ranks that a launcher started: some minutes, so with --ranks alone."""

import re
import time
from pathlib import Path

import pytest
import torch

import ranks_cases
from on_ranks import PACKAGE, assert_as_one, results_of, start


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    elsewhere = ranks_cases.WITH_A_GROUP + ranks_cases.ON_FOUR_RANKS
    cases = [one for one in ranks_cases.CASES if one not in elsewhere and "pipeline" not in one]
    return results_of(cases, tmp_path_factory.mktemp("ranks"), "launched")


@pytest.fixture(scope="module")
def ranks_with_a_group(tmp_path_factory):
    return results_of(["trainer"], tmp_path_factory.mktemp("group"), "own")


@pytest.mark.parametrize("case", [f"kind {kind}" for kind in ranks_cases.KINDS] + [
    "global_batch", "pinned", "evaluation", "checkpoint_of_torch", "rank_zero_has_the_model", "other_seeds"])
def test_program_is_as_on_one_rank(ranks, case):
    for result in ranks[case]:
        assert_as_one(result)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    return results_of(list(ranks_cases.FAMILY_CASES), tmp_path_factory.mktemp("families"), "launched", ranks=4)


@pytest.mark.parametrize("name", ranks_cases.FAMILIES)
def test_unmodified_model_on_four_ranks(families, name):
    for result in families[f"family {name}"]:
        assert result["refused"] == ""
        got, wanted = (torch.tensor(result[name]) for name in ("got", "wanted"))
        torch.testing.assert_close(got, wanted, rtol=5e-6, atol=0)  # norms are up to 108


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    return results_of(list(ranks_cases.PIPELINE_CASES), tmp_path_factory.mktemp("pipelines"), "launched", ranks=4)


@pytest.mark.parametrize("name", ranks_cases.PIPELINES)
def test_unmodified_model_in_stages(pipelines, name):
    for result in pipelines[f"pipeline of {name}"]:
        assert result["refused"] == ""
        got, wanted = (torch.tensor(result[name]) for name in ("got", "wanted"))
        torch.testing.assert_close(got, wanted, rtol=5e-6, atol=0)


def test_gradients_are_sent_as_bfloat16(ranks):
    for result in ranks["reduced"]:
        assert result["is_narrow"] and result["replays"] == ranks_cases.STEPS


@pytest.fixture(scope="module")
def along_the_sequence(tmp_path_factory):
    return results_of(list(ranks_cases.CONTEXT_CASES), tmp_path_factory.mktemp("context"), "launched", ranks=4)


@pytest.mark.parametrize("name", ranks_cases.CONTEXT)
def test_sequence_is_split_over_four_ranks(along_the_sequence, name):
    for result in along_the_sequence[f"context {name}"]:
        assert_as_one(result)


def test_rows_are_where_batch_dims_says(ranks):
    for result in ranks["rows_elsewhere"]:
        assert_as_one(result)
        assert_as_one(result["found"])
        assert re.search(r"^the step runs on the rows of one rank and not on those of all \(.*\): say by batch_dims which dimension",
                         result["unfit"]), result["unfit"]
        assert result["far"] == "batch_dims has 3 for 'x', which has the shape [4, 2, 6]"


def test_unmodified_llama(ranks):
    for result in ranks["unmodified_llama"]:
        assert_as_one(result, tolerance=2e-6)


BREAKS = """
import sys, time
sys.path[:0] = sys.argv[1:3]
import ranks_cases
training = ranks_cases.Training()
step = ranks_cases.on_ranks(training, "fsdp")
for at, batch in enumerate(ranks_cases.batches(3)):
    if at == 2:
        print("began", time.time())
        if ranks_cases.RANK == 1:
            time.sleep(2)
            raise ValueError("a broken row")
    step(ranks_cases.rows_of(batch, "fsdp"))
"""


def test_exception_of_one_rank_ends_all(tmp_path):
    program = tmp_path / "breaks.py"
    program.write_text(BREAKS)
    zero, one = start(2, [program, PACKAGE, Path(__file__).parent], ends_well=False)
    assert time.time() - float(re.search(r"^began (.*)$", zero, re.MULTILINE)[1]) < 60
    assert zero.endswith("UserError: rank 1: ValueError: a broken row\n") and one.endswith("ValueError: a broken row\n")


def test_trainer_of_transformers(ranks_with_a_group):
    for result in ranks_with_a_group["trainer"]:
        assert_as_one(result, tolerance=1e-5)
        assert result["of_eager"] == [True, True] and result["of_ours"] == [True, False]
        assert result["replays"] > 4


@pytest.mark.parametrize("name", ["momentum", "amsgrad", "fused", "rmsprop", "adagrad"])
def test_optimizers_begin_as_on_one_rank(ranks, name):
    for result in ranks["optimizers"]:
        assert_as_one(result[name])


def test_other_seeds_are_said_once(ranks):
    zero, one = (result["lines"] for result in ranks["other_seeds"])
    assert sorted(zero) == ["the ranks' parameters differ: rank 0's count",
                            "the ranks' random generators differ: rank 0's draws count"]
    assert one == []


def test_report_of_all_ranks(ranks):
    for rank, result in enumerate(ranks["report"]):
        assert f"rank        {rank} of 2 (dp_shard=2)" in result["report"]
        lines = [line for line in result["all"].splitlines() if re.match(r"  rank +\d   model and optimizer", line)]
        assert len(lines) == 2
        assert "all_gather" in result["profile"]
