"""Steps of a person's own program on two ranks: each the step of one rank on all rows (ranks_cases.py is what they run).

These are what every run of the tests has; test_on_ranks_all.py has the others, and runs with --ranks.
"""

import math
import os
import re
import shutil
import subprocess
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers

import ranks_cases
from on_ranks import assert_as_one, results_of

pytestmark = pytest.mark.one_process  # for `ranks`, which takes a minute


PIPELINES = ("pipeline", "pipeline by names", "micro-batches alone", "evaluation of a pipeline", "results_of_a_pipeline",
             "draws_of_a_pipeline", "checkpoint_of_a_pipeline")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What a case gave on each rank, in a program that has a group of its own."""
    cases = ["kind fsdp", "kind tp", "kind auto", "auto_of_the_whole_batch", "auto_in_stages", "auto_in_micro_batches", "auto_refused", "odd_lengths", "windows_on_larger_memory", "arguments", "evaluation", "whole_tensors",
             "checkpoints", "checkpoints_of_a_frozen_base", "checkpoint_of_other_types", "loaders", "torchs_checkpoints", "replicas_that_differ", "loops", "numbers", "decisions",
             "means_of_ranks", "ordinary", "refusals", "traced", "example_of_the_docs", *PIPELINES, "refusals_of_pipelines"]
    return results_of(cases, tmp_path_factory.mktemp("ranks"), "own")


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    """Cases of two axes, in a program without a group."""
    return results_of(["ordinary", "means_along_the_sequence"], tmp_path_factory.mktemp("four"), "launched", ranks=4)


@pytest.mark.parametrize("kind", ["fsdp", "tp"])
def test_step_on_ranks_is_that_of_one(ranks, kind):
    for result in ranks[f"kind {kind}"]:
        assert_as_one(result)
        assert result["stats"]["replays"] == ranks_cases.STEPS and result["stats"]["plans"] == 1
        assert result["stats"]["eager_calls"] == 0 and result["stats"]["known_updates"] >= ranks_cases.STEPS - 2
        assert result["stats"]["verifications"] == 1 and result["stats"]["warnings"] == []
        assert result["stats"]["state_bytes"] < 0.55 * result["whole_bytes"]


def test_axes_are_chosen(ranks):
    for case in ("kind auto", "auto_of_the_whole_batch"):
        for result in ranks[case]:
            assert_as_one(result)
            assert result["stats"]["replays"] == ranks_cases.STEPS and result["stats"]["eager_calls"] == 0
    zero, one = ranks["auto_of_the_whole_batch"]
    assert zero["chosen"] == one["chosen"] and len(zero["chosen"]) > 3  # along tp too
    assert re.match(r"  chosen      \w+=2.*: .* a step predicted, .* of it in exchanges, .* a rank$", zero["chosen"][0])
    for result in ranks["auto_refused"]:
        assert result["rows"] == result["own_rows"]
        assert result["rows"].startswith('parallel is "auto" with cp, tp or pp, along which ranks have the same rows: give batch="global"')
        assert result["pins"] == "parallel.dp_shard = 3: the cluster has 2 devices, which is no multiple"
        assert result["memory"].startswith('parallel is "auto": nothing fits: what takes least memory is dp_shard=2')
        assert result["stages"] == 'parallel is "auto" with chunks, and no axis pp above 1, which is cut into stages'
        assert result["too_many"] == "parallel.pp = 2: the model has 1 layers, and each of 16 stages needs one"
        assert result["loop"].startswith('parallel = "auto" is of a whole step, and this is a loop that stays as it is')


def test_a_pipeline_is_chosen(ranks):
    for case, chosen in (("auto_in_stages", r"pp=2, [24] micro-batches"), ("auto_in_micro_batches", r"\w+=2.*, 2 micro-batches")):
        for result in ranks[case]:
            assert_as_one(result)
            assert result["stats"]["replays"] == ranks_cases.STEPS and result["stats"]["eager_calls"] == 0
            assert re.search(rf"^  chosen      {chosen}: .* a step predicted, .* a rank$", result["report"], re.MULTILINE)
    assert "  stages      begin with transformer.h.0, transformer.h." in ranks["auto_in_stages"][0]["report"]
    assert "  cut into    2 micro-batches" in ranks["auto_in_micro_batches"][0]["report"]
    assert ranks["auto_in_stages"][0]["order"] == "parallel.pp = 2: the model has 3 layers, and each of 4 stages needs one"


@pytest.mark.parametrize("kind", ["auto", "heads", "gather"])
def test_sequences_of_odd_lengths(ranks, kind):
    for result in ranks["odd_lengths"]:
        assert_as_one(result[kind])


def test_ring_says_which_lengths_it_takes(ranks):
    zero, one = (result["ring"] for result in ranks["odd_lengths"])
    assert zero == one == ("context = \"ring\" takes tokens that 2 x cp = 4 divides, and attention (in 'Attending') is over 33: "
                           "pad rows to 36, or take context = \"auto\"")


def test_checkpoints_that_share_a_frozen_base(ranks, build_dir):
    """Each rank writes its slices of it once; a checkpoint is whole without those that share them, for PyTorch and stepc."""
    (first, second), state = (ranks["checkpoints_of_a_frozen_base"][0][key] for key in ("paths", "state"))
    slices = [f"shard-{rank:05}-model-{file:05}-of-00002.safetensors" for rank in (1, 2) for file in (1, 2)]
    assert [os.path.samefile(f"{first}/{name}", f"{second}/{name}") for name in slices] == [True, False] * 2
    shutil.rmtree(first)
    merged = {name: torch.zeros_like(one) for name, one in state.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.load(merged, storage_reader=dcp.HuggingFaceStorageReader(second), no_dist=True)
    exported = f"{second}-exported"
    subprocess.run([build_dir / "src/stepc", "export", second, exported], check=True, capture_output=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float64).state_dict()
    base = {name for name in state if ".lora_" not in name}
    assert loaded.keys() == base and len(base) == len(state) - 2
    for name, one in state.items():
        assert torch.equal(merged[name], one) and (name not in base or torch.equal(loaded[name], one)), name


@pytest.mark.parametrize("kind", ["fsdp", "tp", "cp", "global", "ranks"])
def test_batch_is_cut_out_of_larger_tensors(ranks, kind):
    for result in ranks["windows_on_larger_memory"]:
        assert_as_one({"wanted": result["wanted"], "got": result[kind]})


def test_batch_of_one_rank_lies_otherwise(ranks):
    for result in ranks["windows_on_larger_memory"]:
        assert abs(result["one"] - result["one wanted"]) < 1e-10
        assert result["written"]
        assert result["write"] == ("this step cannot run on ranks: it writes to '[0][1]' of its batch, of which each rank computes "
                                   "with a copy; write to a clone() of it")


def test_arguments_that_are_no_tensors(ranks):
    for result in ranks["arguments"]:
        assert_as_one(result)
        assert result["missing"].endswith("new shape: [0][4] absent -> 2"), result["missing"]


def test_training_and_evaluation_are_two_plans(ranks):
    for result in ranks["evaluation"]:
        assert_as_one(result)
        assert result["plans"] == 2


def test_whole_tensors_around_the_step(ranks):
    zero, one = ranks["whole_tensors"]
    assert "stepc.full_parameters(model)" in zero["outside"] and zero["outside"] == one["outside"]
    assert zero["is_here"] and zero["moved"] and not one["is_here"]
    assert zero["written"] and one["written"]


def test_checkpoints_go_on_on_any_mesh(ranks):
    zero, one = ranks["checkpoints"]
    assert zero["files"] == one["files"] and zero["other"] == one["other"] and one["nowhere"] == f"rank 0: {zero['nowhere']}"
    for result in zero, one:
        assert_as_one({"wanted": result["wanted"], "got": result["first"] + result["rest"]})
        for name in "same", "after", "virtual":
            assert result["got"][name] == result["rest"], name
        for name in "tp", "one", "of one":
            assert_as_one({"wanted": result["wanted"][2:], "got": result["got"][name]})
        assert result["note"]["note"] == [0] and "config.json" in result["files"]
        assert result["nowhere"].endswith("nowhere is no checkpoint, and none is in it") and "\n" not in result["nowhere"]
        assert re.search("checkpoint-000002: the parameter '.*' of the program is missing$", result["other"]), result["other"]
        assert "has no 'loader': save() was given scheduler, note" in result["name"]
    assert {"shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"} <= set(zero["files"])


def test_optimizer_state_of_another_type_comes_back_as_it_was(ranks):
    for result in ranks["checkpoint_of_other_types"]:
        assert result["got"] == result["rest"]
        saved, loaded = result["saved"], result["loaded"]
        assert {one.dtype for one in saved.values()} == {torch.bfloat16, torch.float32} and saved.keys() == loaded.keys()
        for name, one in saved.items():
            assert one.dtype is loaded[name].dtype and torch.equal(one, loaded[name]), name


def test_each_ranks_loader_goes_on_in_its_own_order(ranks):
    zero, one = ranks["loaders"]
    for result in zero, one:
        given = [[row for batch in batches for row in batch] for batches in result["first"]]
        rest = [[row for batch in batches for row in batch] for batches in result["rest"]]
        assert all(sorted(a + b) == list(range(8)) for a, b in zip(given[:2], rest[:2])), result
        assert result["again"] == result["rest"] and not set(given[2]) & set(rest[2])
    assert all(a != b for a, b in zip(zero["first"], one["first"]))


def test_state_is_dtensors_for_torchs_checkpoints(ranks):
    for result in ranks["torchs_checkpoints"]:
        for name in "fsdp", "tp", "pp", "from pp":
            assert_as_one({"wanted": result["wanted"], "got": result[name]})
        assert all(result["kinds"].values()) and result["local"]["transformer.wte.weight"] == (32, 16)
        assert result["refused"].startswith("distributed_state() takes a step on ranks")
    first, last = (result["of_stage"] for result in ranks["torchs_checkpoints"])
    assert "transformer.h.0.attn.c_attn.weight" in first - last and first & last == {"transformer.wte.weight", "lm_head.weight"} & first


def test_numbers_that_the_step_reads(ranks):
    for result in ranks["numbers"]:
        assert_as_one(result)
    assert ranks["numbers"][0]["got"] == ranks["numbers"][1]["got"]


@pytest.mark.parametrize("kind", [*ranks_cases.DECISIONS, "scaled fsdp", "compares fsdp", "compares means", "skips zero1",
                                  "scale_read pp", "skips pp", "clips_itself pp", "asserts pp", "scaled in micro-batches"])
def test_steps_that_decide_by_what_they_read(ranks, kind):
    zero, one = (result[kind] for result in ranks["decisions"])
    assert zero["got"] == one["got"]
    for got, wanted in zip(zero["got"], zero["wanted"], strict=True):
        if isinstance(wanted, str):  # an error of the step's own, on every rank
            assert got == wanted
        else:
            torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-10, equal_nan=True)
    for name, wanted in zero["wanted_state"].items():
        torch.testing.assert_close(zero["got_state"][name], wanted, rtol=0, atol=1e-10, msg=name)
    assert zero["scales"][1] == one["scales"][1] == zero["scales"][0]
    assert zero["stats"]["eager_calls"] == 0 and zero["stats"]["replays"] == len([one for one in zero["got"] if type(one) is list])
    assert zero["stats"]["plans"] <= 2


def test_traced_step_does_what_eager_does(ranks):
    for result in ranks["traced"]:
        assert_as_one(result)
        seen, wanted = result["seen"]
        assert seen == pytest.approx(wanted, rel=1e-10) and result["calls"] == 5
        assert result["stats"] == {"replays": 5, "verifications": 5, "warnings": []}


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float16 pp"])
def test_scaler_with_autocast(ranks, kind):
    """An overflow on one rank is all ranks'."""
    zero, one = (result[kind] for result in ranks["decisions"])
    assert zero["got"] == one["got"] and zero["scales"][1] == zero["scales"][0]
    skipped = [index for index, found in enumerate(zero["got"]) if not math.isfinite(found[1])]
    assert skipped == [index for index, found in enumerate(zero["wanted"]) if not math.isfinite(found[1])] == [1]
    for got, wanted in zip(zero["got"], zero["wanted"]):
        assert got[2] == wanted[2] and got[0] == pytest.approx(wanted[0], rel=0.02, abs=0.01)


def test_scaler_goes_on_from_a_checkpoint(ranks):
    for result in (of["saved"] for of in ranks["decisions"]):
        assert result["got"] == result["wanted"] and result["scales"][0] == result["scales"][1] > 256


def test_who_decides_otherwise_is_refused(ranks):
    zero, one = (result["by rank"] for result in ranks["decisions"])
    assert zero == one == ("rank 1 takes another path than rank 0, by the same numbers: what a step decides by has to be the "
                           "same on all ranks")


@pytest.mark.parametrize("kind", ["fsdp", "ddp", "zero1"])
def test_loss_is_the_mean_of_the_ranks_means(ranks, kind):
    for result in ranks["means_of_ranks"]:
        assert_as_one(result[kind])
        assert abs(result["all"]["got"][0][0] - result[kind]["wanted"][0][0]) > 1e-4  # the mean of all targets is another


def test_ranks_along_the_sequence_count_as_one(ranks, four_ranks):
    for result in ranks["means_of_ranks"]:
        assert_as_one(result["cp"])
    for result in four_ranks["means_along_the_sequence"]:
        assert_as_one(result["sharded"])
        assert_as_one(result["replicated"])


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["padding", "lists", "equals", "texts"])
def test_what_programs_do_beside_the_model(ranks, four_ranks, count, kind):
    """Labels by a mask, and steps that read several numbers, whether tensors are equal, and the text of one."""
    for result in (ranks if count == 2 else four_ranks)["ordinary"]:
        found = result[kind]
        for got, wanted in zip(found["got"], found["wanted"], strict=True):
            numbers = [[float(one) for one in of if not isinstance(one, str)] for of in (got, wanted)]
            torch.testing.assert_close(*map(torch.tensor, numbers), rtol=0, atol=1e-10)
            assert [one for one in got if isinstance(one, str)] == [one for one in wanted if isinstance(one, str)]
        assert found["stats"]["replays"] == ranks_cases.STEPS and found["stats"]["plans"] <= 3


def test_what_a_step_has_to_do_itself_is_said(ranks):
    for result in ranks["ordinary"]:
        said = "this step cannot run on ranks, where nothing runs eagerly: "
        assert re.fullmatch(re.escape(said) + r"Tensor.tolist\(\) \(at ranks_cases.py:\d+\) gives 1024 values to the host, and ranks "
                            r"read up to 64 of a tensor", result["weights"]), result["weights"]
        assert result["updated_outside"] == (f"{said}the step ends between self.scaler's step() and its update(): call "
                                             "self.scaler.update() in the step")


def test_what_has_no_mean_of_ranks_is_refused(ranks):
    zero, one = ranks["means_of_ranks"]
    assert zero["rows"] == one["rows"] and zero["global"] == one["global"]
    assert re.search(r"^loss_mean = \"ranks\" returns the ranks' mean of single numbers, and the step returns f64\[2, 8, 64\] of "
                     "each rank's own rows: return losses and metrics, as means$", zero["rows"]), zero["rows"]
    assert re.search(r'^loss_mean is "ranks" and batch is "global": ', zero["global"]), zero["global"]


@pytest.mark.parametrize("kind", ["ddp", "zero1", "accumulated"])
def test_loop_that_stays_as_it_is(ranks, kind):
    for result in ranks["loops"]:
        of = result[kind]
        assert_as_one(of)
        assert of["replays"] > 2 and of["updates"] > 2
        assert not of["reducer"] and of["is_ddp"] == "DistributedDataParallel"
    own = [result[kind]["own"] for result in ranks["loops"]]
    parameters = ranks["loops"][0]["parameters"]
    assert sum(own) == parameters and all(own) if kind == "zero1" else own == [parameters, parameters]


@pytest.mark.parametrize("kind, said", [
    ("zero3", r"^dp_shard with zero = 3 is of a whole step, .*step = stepc.accelerate\(train_step, config=config\)$"),
    ("zero2", "^dp_shard with zero = 2 is of a whole step, "),
    ("tp", "^tp = 2 is of a whole step, "),
    ("reduce", '^reduce = "bfloat16" is of a whole step, '),
    ("compiled", "^this model is compiled or scripted, and stepc averages no gradients of it: "),
    ("mesh", r"^parallel asks for 3 ranks \(dp_replicate=3\), and 2 were started"),
    ("others", r"^rank 1 has a gradient of '1\.(weight|bias)', and rank 0 has none: every rank's step uses the same parameters$"),
])
def test_refused_in_a_loop(ranks, kind, said):
    zero, one = (result[kind] for result in ranks["loops"])
    assert zero == one and "\n" not in zero
    assert re.search(said, zero), zero


def test_example_of_the_docs(ranks):
    zero, one = (result["said"] for result in ranks["example_of_the_docs"])
    assert zero == one and re.fullmatch(r"loss [34]\.\d{3}, without an update [34]\.\d{3}\n", zero), zero
    assert ranks["example_of_the_docs"][0]["files"] >= {"config.json", "model.safetensors"}


REFUSALS = {
    "reads": r"^this step cannot run on ranks, where nothing runs eagerly: .*reads a value that was never computed.*; return "
             r"the tensor and read it outside of the step$",
    "makes tensors": r"^this step cannot run on ranks, where nothing runs eagerly: it makes a tensor of numbers that it has read, "
                     r"another one at every step: give the number to an operator as it is$",
    "keeps gradients": r"this step cannot run on ranks, where nothing runs eagerly: it keeps the gradient of "
                       r"'.*': call zero_grad\(\) before the step ends$",
    "prints": r"this step cannot run on ranks, where nothing runs eagerly: .*print",
    "first step": r"^SGD '.*' cannot begin on ranks: its first step is another one than its later ones; take one step on "
                  r"one rank, and load the state that it leaves$",
    "other rows": r"^rank 1 does another step than rank 0, and all ranks of a step do the same: new shape: .* 1x8 -> 2x8$",
    "not global": r"^batch '.*' differs between ranks 0 and 1: with batch=\"global\" every rank gives the whole batch; "
                  r"\"local\" are rows of its own$",
    "mesh": r"^parallel asks for 3 ranks \(dp_shard=3\), and 2 were started; the nearest mesh of those is "
            r"dp_shard=2, and -1 takes what the others leave$",
    "rest": r"^parallel has dp_shard = -1, and the other axes have 3 ranks, of which 2 is no multiple; the nearest mesh is tp=2$",
    "another call": r"^rank 1 calls step.save\(\), and rank 0 the step: all ranks make the same calls, in the same order$",
    "exact": r"^mode is \"exact\", which runs calls of one device, and parallel spreads the step over several",
    "name": r"^parallel has 'dp'; it has pp, dp_replicate, dp_shard, cp, tp, strategy, zero, sequence_parallel, context, reduce, overlap, order, chunks, stages$",
    "reduce": r"^parallel has reduce = \"fp8\"; it is \"float32\" or \"bfloat16\"$",
    "preset": r"^parallel is \"zero\"; it is \"ddp\", \"fsdp\", \"auto\" or a dict",
    "rule": r"^the rule '\*\.q_proj\.weight' matches no parameter",
    "exception": "^rank 1: ValueError: a broken row$",
    "learning rate": r"^rank 1 does another step than rank 0, .*: its optimizer has other numbers, such as a learning rate",
}


def test_replicas_are_compared(ranks):
    for result in ranks["replicas_that_differ"]:
        for when, step in (("saved", 3), ("said", 4)):
            assert re.match(rf"step {step}: parameter '[\w.]+': ranks 0, 1 should hold the same and do not, .*: a machine has "
                            r"computed or kept something wrong; what was saved before is good$", result[when]), result
        assert result["other time"] == ("elastic.stall_seconds = 7, and the ranks of this process have met with 600: give all steps "
                                        "the same")


@pytest.mark.parametrize("what", REFUSALS)
def test_refused_on_every_rank_in_one_line(ranks, what):
    zero, one = (result[what] for result in ranks["refusals"])
    assert zero == one and "\n" not in zero
    assert re.search(REFUSALS[what], zero), zero


def test_error_where_a_call_begins_is_told(ranks):
    zero, one = (result["in a call"] for result in ranks["refusals"])
    assert zero == f"rank 1: {one}" or zero.startswith("rank 1: TypeError: "), (zero, one)


def test_alone_asks_for_its_ranks():
    import stepc

    with pytest.raises(stepc.UserError, match=r"asks for 2 ranks \(dp_shard=2\), and this process runs alone: start it "
                                              r"with torchrun --nproc-per-node 2"):
        stepc.accelerate(lambda: None, config=stepc.Config(parallel={"dp_shard": 2}))


def test_one_rank_of_ddp_is_the_step_itself():
    import stepc

    model = ranks_cases.torch.nn.Linear(4, 1)
    step = stepc.accelerate(lambda x: model(x).sum().detach(), config=stepc.Config(parallel="ddp"))
    for _ in range(4):
        step(ranks_cases.torch.ones(2, 4))
    assert step.stats["replays"] > 0


@pytest.mark.parametrize("given, said", [
    ({"parallel": {"dp_shard": 0}}, "parallel has dp_shard = 0; it is at least 1, or -1 for the ranks left"),
    ({"parallel": {"dp_shard": True}}, "parallel has dp_shard = True; it is a whole number"),
    ({"parallel": {"zero": 5}}, "zero is 5"),
    ({"parallel": {"dp_shard": -1, "tp": -1}}, "parallel has dp_shard = -1 and tp = -1; one axis takes the ranks left"),
    ({"parallel": 2}, 'parallel is 2; it is "ddp", "fsdp", "auto" or a dict'),
    ({"parallel": "best"}, 'parallel is "best"; it is "ddp", "fsdp", "auto" or a dict'),
    ({"parallel": {"strategy": "best"}}, 'parallel has strategy = "best"; it is "auto", or left out where the axes are given'),
    ({"batch": "mine"}, 'batch is "mine"; it is "local" or "global"'),
    ({"loss_mean": "rows"}, 'loss_mean is "rows"; it is "all" or "ranks"'),
    ({"loss_mean": "ranks"}, "loss_mean is given, and parallel is not"),
    ({"shard": {"*": {0: "tp"}}}, "shard is given, and parallel is not"),
    ({"parallel": "ddp", "shard": {"*": 0}}, "shard has '*': 0; it is a dimension and an axis"),
    ({"parallel": "ddp", "shard": {3: {0: "tp"}}}, "shard is {3: {0: 'tp'}}; it is a dict whose keys are names, such as"),
    ({"parallel": "ddp", "batch_dims": ["x"]}, "batch_dims is ['x']; it is a dict whose keys are names, such as"),
    ({"elastic": {"stall_seconds": 3}}, "elastic is given, and parallel is not"),
    ({"parallel": "ddp", "elastic": 3}, "elastic is 3; it is a dict, such as {"),
    ({"parallel": "ddp", "elastic": {"stall": 3}}, "elastic has 'stall'; it has stall_seconds, check_every, output_dir"),
    ({"parallel": "ddp", "elastic": {"stall_seconds": 0.5}}, "elastic has stall_seconds = 0.5; it is a number of seconds from 1 to 86400"),
    ({"parallel": "ddp", "elastic": {"stall_seconds": float("nan")}}, "elastic has stall_seconds = nan; it is a number of seconds"),
    ({"parallel": "ddp", "elastic": {"check_every": 1.5}}, "elastic has check_every = 1.5; it is a number of calls from 0"),
    ({"parallel": "ddp", "elastic": {"output_dir": ""}}, "elastic has output_dir = ''; it is a path"),
    ({"parallel": "ddp", "elastic": {"snapshot_every": 10}}, "elastic has snapshot_every, which is of `stepc train` alone; a step of"),
    ({"parallel": "ddp", "batch_dims": {"x": -1}}, "batch_dims has 'x': -1; it is the dimension of its rows, or None"),
])
def test_config_says_what_it_takes(given, said):
    import stepc

    with pytest.raises(stepc.UserError) as error:
        stepc.accelerate(lambda: None, config=stepc.Config(**given))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("case", PIPELINES)
def test_pipeline_is_as_on_one_rank(ranks, case):
    for result in ranks[case]:
        assert_as_one(result)
    if case == "pipeline":  # of three layers one or two, with gradients that are held; the tied embedding is on both ranks
        bytes_of_state = [result["stats"]["state_bytes"] for result in ranks[case]]
        assert max(bytes_of_state) < 0.85 * 4 / 3 * ranks[case][0]["whole_bytes"]
        assert sum(bytes_of_state) < 1.5 * ranks[case][0]["whole_bytes"], "optimizer state is on its stage alone"


def test_pipelines_say_what_they_cannot_do(ranks):
    zero, one = ranks["refusals_of_pipelines"]
    assert zero == one
    assert zero["few"] == ("1 micro-batch for 2 stages in the order \"1f1b\", which needs one a stage: micro_batches must be at "
                           "least 2")
    assert zero["rows"] == "micro_batches = 3: batch '0' has 4 rows, which do not divide"
    assert zero["name"].startswith("parallel.stages: a stage begins with 'g.1', and the model has no such module")
    assert zero["names"] == "parallel.stages names 1 modules, and there are 2 stages: it says with which each begins"
    assert zero["order"].startswith('the order "2f2b" is none')
    assert "needs what all rows of the batch make before the step can go on (as batch statistics do)" in zero["statistics"]
    assert zero["layers"].startswith("parallel.pp: 2 stages, and the model has 1 layer")
    assert zero["means"].startswith('loss_mean is "ranks", and the step is cut into micro-batches')
    assert zero["stages"] == "parallel has chunks, and no axis pp above 1, which is cut into stages"
