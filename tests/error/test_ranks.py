"""Several ranks as careless and as hostile people run them: with processes that are killed, stopped, started by half or
started differently. Nothing that was acknowledged is lost, nobody waits for long, and one line says what was wrong."""

import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from run_processes import (TRAIN, TWO, assert_close, free_port, losses, ranks_of, steps_saved, tiny, until,
                      variables_of)
from tiny_run import RUN, outcome, write_tiny_model

LOST = 1  # the status of a rank whose other is gone


def start_by_hand(tiny, *arguments, of_rank=None, folders=None, before=None):
    """Two ranks by the variables: with further arguments each, in folders of their own, after what each does first."""
    port = free_port()
    return [subprocess.Popen([tiny.binary, *arguments, *(of_rank or {}).get(rank, [])],
                             cwd=(folders or {}).get(rank, tiny.path), env=os.environ | variables_of(rank, 2, port),
                             preexec_fn=(before or {}).get(rank), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True) for rank in range(2)]


def by_hand(tiny, *arguments, timeout=50, **how):
    """(status, out, err) of each."""
    ranks = start_by_hand(tiny, *arguments, **how)
    try:
        answers = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *answer) for rank, answer in zip(ranks, answers)]


def test_micro_batches_and_ranks_drop_out_what_one_batch_does(tiny):
    write_tiny_model(tiny.path / "model", tiny.path / "model", layers=2)
    """Four steps of `stepc train`, whose draws are those of one batch in one piece."""
    how = ["--model.compute=float64", "--lora.rank=4", "--lora.dropout=0.3", "--optim.lr=0.03", "--optim.warmup_steps=0"]
    whole = ["--train.batch_size=8", "--train.micro_batches=1"]
    cut = ["--train.batch_size=2", "--train.micro_batches=4"]
    for name, command in {"one": [*TRAIN, *whole], "silent": [*TRAIN, *whole, "--lora.dropout=0"], "turns": [*TRAIN, *cut],
                          "shards": [*TWO, *cut], "stages": [*TWO, *cut, "--parallel.pp=2"]}.items():
        result = tiny(*command[:2], *how, *command[2:], f"--output.dir={name}")
        assert (result.returncode, result.stderr) == (0, ""), result
    for name in ["turns", "shards", "stages"]:
        assert_close(losses(tiny.path / name), losses(tiny.path / "one"), 1e-10)
    one, silent = losses(tiny.path / "one"), losses(tiny.path / "silent")
    assert max(abs(one[at] - silent[at]) for at in one) > 1e-4, "dropout does nothing"


@pytest.mark.parametrize("compute, batch_size, tolerance", [("float32", 6, 1e-4), ("float64", 7, 1e-9)])
def test_two_ranks_train_as_one(tiny, compute, batch_size, tolerance):
    """7 sequences on 2 ranks: the second has one that is padding."""
    how = [f"--model.compute={compute}", f"--train.batch_size={batch_size}"]
    assert tiny(*TRAIN, *how, "--output.dir=one").returncode == 0
    result = tiny(*TWO, *how)
    assert (result.returncode, result.stderr) == (0, ""), result
    assert_close(losses(tiny.path / "out"), losses(tiny.path / "one"), tolerance)
    expected, weights = (load_file(tiny.path / name / "model/model.safetensors") for name in ["one", "out"])
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, expected[name], rtol=0, atol=tolerance)
    # What a person sees is that of a single run.
    assert re.findall(r"^step (\d)/4 ", result.stdout, re.MULTILINE) == list("1234")
    assert result.stdout.startswith("2 ranks on this machine, whose output is in out/logs\n")
    assert "step 4/4 " in (tiny.path / "out/logs/rank-1.log").read_text()
    report = (tiny.path / "out/report.html").read_text()
    assert "svg" in report and len(re.findall(r"<tr><td>[01]</td><td>[\d.]+ ms</td>", report)) == 2
    table = re.search(r"^ +rank +step +collectives.*\n((?: +\d .*\n)+)", result.stdout, re.MULTILINE)
    assert [line.split()[0] for line in table.group(1).splitlines()] == ["0", "1"], result.stdout
    for where in ["out", "out/checkpoint-000004"]:
        assert tiny("inspect", where).returncode == 0, where
    if compute == "float32":
        model = AutoModelForCausalLM.from_pretrained(tiny.path / "out/model")
        assert model(torch.arange(8)[None]).logits.isfinite().all()


def test_ranks_are_spread_as_a_search_says(tiny):
    """The choice and why; it holds while there are as many ranks and no key says otherwise."""
    assert tiny(*TRAIN, "--output.dir=one").returncode == 0
    auto = [*TWO, "--parallel.strategy=auto"]
    result = tiny(*auto)
    assert (result.returncode, result.stderr) == (0, ""), result
    assert_close(losses(tiny.path / "out"), losses(tiny.path / "one"), 1e-4)
    table = re.search(r'parallel.strategy = "auto"\n.* on 1 node of 2 .*\n(\d+) ways.*\n((?:.*\n)*?)\n', result.stdout)
    assert int(table.group(1)) > 3, result.stdout
    chosen = re.search(r"^  1  .*  (\w+=2.*)$", result.stdout, re.MULTILINE).group(1)
    assert re.search(r"rank 0 of 2 ranks \((\w+=2)\)", result.stdout).group(1) in chosen
    report = (tiny.path / "out/report.html").read_text()
    assert "How the ranks were spread, and why" in report and "These are predictions" in report
    again = tiny(*auto, "--resume", "--train.steps=6")
    assert (again.returncode, again.stderr) == (0, ""), again
    kept = "spread as before, over 2 ranks (" + chosen.split(",")[0].split(" ")[0]
    assert kept in again.stdout and "ways" not in again.stdout
    assert kept in (tiny.path / "out/report.html").read_text()
    pinned = tiny(*auto, "--resume", "--train.steps=8", "--parallel.tp=2")
    assert (pinned.returncode, pinned.stderr) == (0, ""), pinned
    assert "rank 0 of 2 ranks (tp=2)" in pinned.stdout and "\n1 way, " in pinned.stdout
    refused = tiny(*auto, "--resume", "--parallel.tp=3")
    assert refused.returncode != 0 and "parallel.tp = 3: the cluster has 2 devices, which is no multiple" in refused.stderr
    fits = tiny(*auto, "--output.dir=small", "--memory.budget=1KiB")
    assert fits.returncode != 0 and 'parallel.strategy = "auto": nothing fits: what takes least memory is ' in fits.stderr


@pytest.mark.long
@pytest.mark.parametrize("preset", ["bench-1.8m", "bench-10m"])
def test_presets_train_as_one(stepc, preset):
    """Whole models, every kind of mesh: float64 to 1e-10 and 1e-9, float32 off it no more than twice one rank's float32,
    bfloat16 with the same loss on held-out text."""
    assert stepc("init", "model", "--force", "--preset", preset).returncode == 0
    text = "\n".join(file.read_text() for file in sorted((Path(__file__).parents[2] / "docs").glob("*.md")))
    (stepc.path / "text.txt").write_text(text)
    (stepc.path / "run.toml").write_text("[model]\npath = 'model'\n[data]\ntrain = ['text.txt']\neval_fraction = 0.05\n"
                                       "eval_windows = 8\nseq_len = 64\n[train]\nsteps = 20\nbatch_size = 8\n"
                                       "[optim]\nwarmup_steps = 2\n[output]\ndir = 'out'\nlog_every = 1\n")

    def train(compute, **mesh):
        shutil.rmtree(stepc.path / "out", ignore_errors=True)
        ranks = math.prod(size for axis, size in mesh.items() if axis != "zero")
        result = stepc(*TRAIN, f"--model.compute={compute}", *(["--ranks", ranks] if mesh else []),
                     *(f"--parallel.{axis}={size}" for axis, size in mesh.items()))
        assert (result.returncode, result.stderr) == (0, ""), result
        return losses(stepc.path / "out"), load_file(stepc.path / "out/model/model.safetensors")

    def errors(found, expected):
        """Of each loss, and the largest of a weight."""
        return (np.array([found[0][key] - value for key, value in expected[0].items() if key[1] == "loss"]),
                max(np.abs(found[1][name] - weight).max() for name, weight in expected[1].items()))

    def rms(values):
        return np.sqrt(np.mean(np.square(values)))

    exact = train("float64")
    assert sum(key == "loss" for _, key in exact[0]) == 20
    for mesh in [dict(dp_replicate=2), dict(dp_shard=2, zero=1), dict(dp_shard=3, zero=2), dict(dp_shard=4, zero=3),
                 dict(dp_replicate=2, dp_shard=2), dict(dp_replicate=2, dp_shard=4), dict(dp_shard=2, tp=2),
                 dict(dp_shard=2, cp=2)]:
        of_losses, of_weights = errors(train("float64", **mesh), exact)
        assert np.abs(of_losses).max() <= 1e-10 and of_weights <= 1e-9, (mesh, of_losses, of_weights)
    losses_alone, weights_alone = errors(train("float32"), exact)
    rounded = train("bfloat16")[0]
    for mesh in [dict(dp_replicate=2), dict(dp_shard=4), dict(dp_shard=2, tp=2)]:
        of_losses, of_weights = errors(train("float32", **mesh), exact)
        # A float32 loss is off by its own rounding, as much as all that led to it: the worst of twenty is chance.
        assert rms(of_losses) <= 2 * rms(losses_alone), (mesh, of_losses, losses_alone)
        assert of_weights <= 2 * weights_alone, (mesh, of_weights, weights_alone)
        of_mesh = train("bfloat16", **mesh)[0]
        for key in [(0, "held_out_loss"), (20, "held_out_loss")]:
            assert abs(of_mesh[key] - rounded[key]) <= 0.005 * rounded[key], (mesh, key, of_mesh[key], rounded[key])


def test_text_is_sampled(tiny):
    sample = lambda out: re.search(r'sample, held-out text continued after "\|":\n(.*)\n', out, re.DOTALL).group(1)
    arguments = [*TRAIN, "--output.sample_tokens=3", "--model.compute=float64"]
    alone = tiny(*arguments, "--output.dir=one")
    result = tiny(*arguments, "--ranks", "2")
    assert result.returncode == 0, result
    assert sample(result.stdout).split("report:")[0].strip() == sample(alone.stdout).split("report:")[0].strip()


def test_replays_are_compared_as_asked(tiny):
    """The first, the third and the fifth, on one process and on two."""
    for how in [[], ["--ranks", "2"]]:
        result = tiny(*TRAIN, *how, "--verify", "every:2", "--train.steps=5", "--output.sample_tokens=0", f"--output.dir={len(how)}")
        assert result.returncode == 0 and result.stdout.count("a replay compared before it counts in ") == 3, result
    assert "compared with the plain graph of one rank, one ATen call a node, in " in result.stdout, result
    refused = tiny(*TRAIN, "--verify", "sometimes")
    assert refused.returncode == 2 and "--train.verify=sometimes: train.verify: must be one of first, every:N" in refused.stderr, refused


def test_text_is_sampled_at_other_lengths_than_a_ring_takes(stepc):
    """6 divides the 96 tokens of a row, and none of the shorter rows of a text that is continued."""
    assert stepc("init", "model", "--force", "--preset", "llama-2m").returncode == 0
    result = stepc(*TRAIN, "--output.sample_tokens=2", "--train.steps=1", "--train.batch_size=1", "--data.seq_len=96",
                   "--ranks", "3", "--parallel.cp=3", "--parallel.context=ring")
    assert result.returncode == 0 and 'sample, held-out text continued after "|":\n' in result.stdout, result


def test_resume_on_other_ranks(tiny):
    """Also of a checkpoint in slices on one rank, and of one rank's on several."""
    how = ["--train.batch_size=8", "--train.steps=13", "--output.save_every=10", "--output.keep_last=2"]
    assert tiny(*TRAIN, *how, "--ranks", "4").returncode == 0
    expected, bits = losses(tiny.path / "out"), outcome(tiny.path / "out")
    shutil.rmtree(tiny.path / "out/model")
    shutil.rmtree(tiny.path / "out/checkpoint-000013")
    shutil.copytree(tiny.path / "out", tiny.path / "stopped")
    for mesh in [["--ranks=4"], ["--ranks=2", "--parallel.dp_shard=2", "--parallel.zero=1"], ["--ranks=1"],
                 ["--ranks=8", "--parallel.dp_replicate=2", "--parallel.dp_shard=2", "--parallel.tp=2"]]:
        result = tiny(*TRAIN, *how, "--resume", *mesh)
        assert result.returncode == 0 and "resumed from out/checkpoint-000010 at step 10" in result.stdout, result
        assert_close(losses(tiny.path / "out"), expected, 1e-4)
        assert tiny("inspect", "out/checkpoint-000013").returncode == 0
        if mesh == ["--ranks=4"]:
            assert outcome(tiny.path / "out") == bits
        shutil.rmtree(tiny.path / "out")
        shutil.copytree(tiny.path / "stopped", tiny.path / "out")


def test_torchrun(tiny):
    """A line each on one terminal would be a line too many: rank 0 alone speaks."""
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()),
                "--no-python", tiny.binary, *TRAIN]
    result = subprocess.run(torchrun, cwd=tiny.path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^step (\d)/4 ", result.stdout, re.MULTILINE) == list("1234"), result.stdout
    assert steps_saved(tiny.path / "out") == [4]


def test_a_worker_that_torchrun_restarts(tiny):
    """Killed in the middle: the next attempt goes on from the newest checkpoint by itself, and each step counts once."""
    how = [*TRAIN, "--train.steps=300", "--train.batch_size=6", "--output.save_every=20", "--output.log_every=1"]
    assert tiny(*how, "--ranks", "2", "--output.dir=whole").returncode == 0
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval",
                "0.1", "--master-port", str(free_port()), "--no-python", tiny.binary, *how]
    agent = subprocess.Popen(torchrun, cwd=tiny.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(agent, "saved ")
    os.kill(ranks_of(agent)[1], signal.SIGKILL)
    out, err = agent.communicate(timeout=60)
    assert agent.returncode == 0 and re.search(r"resumed from out/checkpoint-000\d\d0 at step \d+0\n", out), (out, err)
    assert outcome(tiny.path / "out")[0] == outcome(tiny.path / "whole")[0]  # every step once, with its loss


def test_sigterm_to_torchrun(tiny):
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()),
                "--no-python", tiny.binary, *TRAIN, "--train.steps=1000000", "--optim.schedule=constant"]
    agent = subprocess.Popen(torchrun, cwd=tiny.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(agent, "step 5/")
    began = time.monotonic()
    agent.terminate()
    out, err = agent.communicate(timeout=25)
    assert time.monotonic() - began < 25 and agent.returncode != 0
    step, = steps_saved(tiny.path / "out")
    for said in [out, (tiny.path / "out/logs/rank-1.log").read_text()]:
        assert f"stopped by SIGTERM: step {step} is saved, continue with --resume" in said, err


def test_torchruns_agent_shows_the_failure(tiny):
    (tiny.path / "text.txt").unlink()
    torchrun = [Path(sys.executable).parent / "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()),
                "--no-python", tiny.binary, *TRAIN]
    result = subprocess.run(torchrun, cwd=tiny.path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "traceback : cannot open text.txt: No such file or directory" in re.sub(r" +", " ", result.stderr), result


def test_what_torchruns_agent_cannot_read_is_not_there(tiny):
    """It would die of half a file: on a full disk there is none."""
    for limit, is_there in [(0, False), (10_000, True)]:
        file = tiny.path / f"error-{limit}.json"
        result = subprocess.run([tiny.binary, "train", "none.toml"], cwd=tiny.path, capture_output=True, preexec_fn=small_files(limit),
                                text=True, env=os.environ | {"TORCHELASTIC_ERROR_FILE": str(file)})
        assert result.returncode == 2 and sorted(tiny.path.glob("error-*")) == [file] * is_there, result
    assert json.loads(file.read_text())["message"]["message"] == "cannot open none.toml: No such file or directory"


def test_mpirun(tiny):
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", tiny.binary, *RUN, "--train.batch_size=3"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = subprocess.run(mpirun, cwd=tiny.path, capture_output=True, text=True, timeout=60, env=environment)
    assert (result.returncode, result.stderr) == (0, ""), result
    # mpirun gives rank 0 a terminal, whose line is rewritten.
    assert list(dict.fromkeys(re.findall(r"step (\d)/4 ", result.stdout))) == list("1234"), result.stdout
    assert ", 1 thread, mode fast" in result.stdout, "each has its share of the cores"
    assert "step 4/4 " in (tiny.path / "out/logs/rank-2.log").read_text()


def slurm(rank, port):
    return {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_STEP_TASKS_PER_NODE": 2, "SLURM_STEP_NODELIST": "here", "SLURM_JOB_ID": port, "MASTER_PORT": port}


def kubeflow(rank, port):
    """Of pods with one process each: nobody says LOCAL_RANK."""
    return {"PET_NNODES": 2, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "localhost",
            "PET_MASTER_PORT": port}


@pytest.mark.parametrize("variables", [slurm, kubeflow])
def test_cluster_launchers(tiny, variables):
    port = free_port()
    start = lambda rank: subprocess.Popen(
        [tiny.binary, *TRAIN], cwd=tiny.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {name: str(value) for name, value in variables(rank, port).items()})
    ranks = [start(0), start(1)]
    answers = [rank.communicate(timeout=50) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    assert "step 4/4" in answers[0][0] and answers[1] == ("", "")
    assert steps_saved(tiny.path / "out") == [4]


def test_variables_by_hand(tiny):
    (status, out, err), other = by_hand(tiny, *TRAIN)
    assert (status, err) == (0, "") and "step 4/4" in out
    assert other == (0, "", "")
    assert steps_saved(tiny.path / "out") == [4]


@pytest.mark.parametrize("given, message", [
    ({"RANK": "0"}, "the environment variable RANK is '0' and WORLD_SIZE is not set: set both, or none for one process"),
    ({"WORLD_SIZE": "2"},
     "the environment variable WORLD_SIZE is '2' and RANK is not set: set both, or none for one process"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
     "the environment variable WORLD_SIZE is 2 and MASTER_PORT is not set: set it to a port that is free where rank 0 "
     "runs"),
])
def test_variables_by_half(tiny, given, message):
    result = subprocess.run([tiny.binary, *TRAIN], cwd=tiny.path, env=os.environ | given, capture_output=True,
                            text=True, timeout=20)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"stepc: {message}\n")
    assert not (tiny.path / "out").exists()


@pytest.mark.parametrize("whom", ["launcher", "rank 1"])
def test_sigterm_saves_on_all(tiny, whom):
    how = ["--train.steps=1000000", "--optim.schedule=constant"]
    launcher = tiny.start(*TWO, *how)
    until(launcher, "step 5/")
    os.kill(launcher.pid if whom == "launcher" else ranks_of(launcher)[1], signal.SIGTERM)
    began = time.monotonic()
    out, err = launcher.communicate(timeout=25)
    assert (launcher.returncode, err) == (143, ""), (out, err)
    assert time.monotonic() - began < 25
    step, = steps_saved(tiny.path / "out")
    for said in [out, (tiny.path / "out/logs/rank-1.log").read_text()]:
        assert f"stopped by SIGTERM: step {step} is saved, continue with --resume" in said
    result = tiny(*TWO, *how, "--resume", f"--train.steps={step + 2}")
    assert result.returncode == 0 and f"at step {step}\n" in result.stdout, result


def test_a_killed_rank(tiny, request):
    """Any rank at any moment, over and over (--kills, --kill-ranks): what was acknowledged stays, and the end has the same
    bits."""
    kills, ranks = request.config.getoption("--kills"), request.config.getoption("--kill-ranks")
    how = ["--ranks", str(ranks), "--output.save_every=3", "--output.keep_last=3", f"--train.steps={13 * kills + 5}"]
    assert tiny(*TRAIN, *how).returncode == 0
    expected = outcome(tiny.path / "out")
    shutil.rmtree(tiny.path / "out")
    moments = random.Random(5)
    acknowledged = 0
    for kill in range(kills):
        victim, step = moments.randrange(ranks), 13 * kill + moments.randint(1, 9)
        launcher = tiny.start(*TRAIN, *how, "--resume")
        said = []
        for line in launcher.stdout:
            said.append(line)
            if line.startswith(f"step {step}/"):
                break
        time.sleep(moments.uniform(0, 0.01))
        os.kill(ranks_of(launcher)[victim], signal.SIGKILL)
        began = time.monotonic()
        out, err = launcher.communicate(timeout=60)
        assert launcher.returncode == 137 and time.monotonic() - began < 60, (said, out, err)
        assert err.endswith(f"stepc: rank {victim} of {ranks} was ended by signal 9 (Killed)\n"), err
        saved = re.findall(r"^saved out/checkpoint-(\d+)", "".join([*said, out]), re.MULTILINE)
        acknowledged = max([acknowledged, *map(int, saved)])
        assert not acknowledged or steps_saved(tiny.path / "out")[-1] >= acknowledged
        for step in steps_saved(tiny.path / "out"):
            assert tiny("inspect", f"out/checkpoint-{step:06}").returncode == 0
    assert acknowledged and tiny(*TRAIN, *how, "--resume").returncode == 0
    assert outcome(tiny.path / "out") == expected


def test_pytorch_merges_the_slices(tiny):
    """As its distributed Hugging Face storage reads them; and `stepc export` makes the same, plain."""
    how = ["--ranks", "4", "--train.batch_size=8", "--parallel.dp_shard=2", "--parallel.tp=2"]
    assert tiny(*TRAIN, *how).returncode == 0
    checkpoint = tiny.path / "out/checkpoint-000004"
    assert not (checkpoint / "model.safetensors").exists()
    result = tiny("export", "out/checkpoint-000004", "plain")
    assert (result.returncode, result.stdout, result.stderr) == (
        0, "plain: the model of out/checkpoint-000004\n", "")
    plain = load_file(tiny.path / "plain/model.safetensors")
    merged = {name: torch.zeros(weight.shape) for name, weight in plain.items()}
    moments = {f"{name}.exp_avg": torch.zeros(weight.shape) for name, weight in plain.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.load(merged | moments, storage_reader=dcp.HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    for name, weight in plain.items():
        np.testing.assert_array_equal(merged[name].numpy(), weight)
        assert moments[f"{name}.exp_avg"].abs().max() > 0
    assert (tiny.path / "plain/model.safetensors").read_bytes() == (
        tiny.path / "out/model/model.safetensors").read_bytes()
    assert AutoModelForCausalLM.from_pretrained(tiny.path / "plain").dtype == torch.float32
    text = tiny("generate", "out/checkpoint-000004", "--prompt", "a", "--tokens", "4")
    assert text.returncode == 0 and text.stdout == tiny("generate", "plain", "--prompt", "a", "--tokens", "4").stdout
    assert tiny("export", "out/checkpoint-000004", "plain").returncode == 2  # it is there


def anonymous_memory(tiny, *arguments):
    """What a run says that a rank takes of it in MiB, and the most that any rank had."""
    launcher = tiny.start(*TRAIN, "--ranks", "4", *arguments)
    most = 0
    while launcher.poll() is None:
        try:
            for rank in ranks_of(launcher).values():
                status = Path(f"/proc/{rank}/status").read_text()
                most = max(most, *(int(kb) / 1024 for kb in re.findall(r"RssAnon:\s+(\d+) kB", status)), 0)
        except OSError:  # ended meanwhile
            pass
        time.sleep(0.002)
    out, err = launcher.communicate()
    assert launcher.returncode == 0, (out, err)
    units = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10}
    line = re.search(r"model and optimizer (\S+) (\w+), step (\S+) (\w+), copy for saves (\S+) (\w+)", out).groups()
    return sum(float(line[i]) * units[line[i + 1]] for i in (0, 2, 4)), most


def test_no_rank_holds_the_model(tiny):
    """Reading, training, saving, resuming and exporting: beside its plan a rank takes a tensor, not the model."""
    how = ["--train.batch_size=8", "--output.save_every=2", "--output.keep_last=9"]
    write_tiny_model(tiny.path / "model", tiny.path / "model", layers=3)
    planned, most = anonymous_memory(tiny, *how)
    program = most - planned
    shutil.rmtree(tiny.path / "out")
    write_tiny_model(tiny.path / "model", tiny.path / "model", hidden=512, inner=4096, layers=3)
    largest, model = 512 * 4096 * 4 / 2**20, (tiny.path / "model/model.safetensors").stat().st_size / 2**20
    for more in [[], ["--resume", "--train.steps=6"]]:
        planned, most = anonymous_memory(tiny, *how, *more)
        assert most <= planned + program + largest, (planned, most, program, model)
        # The bound says something: the model would be seen in it, and the plan is of a rank.
        assert largest < model / 8 and planned < 2.5 * model


def test_damaged_slices(tiny):
    how = ["--train.batch_size=6", "--output.save_every=2", "--output.keep_last=2"]
    result = tiny(*TWO, *how)
    assert result.returncode == 0
    copy = re.search(r"a run takes .* (copy for saves [^,]+),", result.stdout).group(1)
    assert f" {copy}, " in tiny("memory", "run.toml", "--train.threads=1", "--parallel.dp_shard=2", *how).stdout
    checkpoint = tiny.path / "out/checkpoint-000004"
    files = sorted(checkpoint.iterdir())
    assert len(files) > 6
    for file in files:
        good = file.read_bytes()
        for bad in [None, good[:-1], good[:-1] + bytes([good[-1] ^ 1])]:
            file.unlink() if bad is None else file.write_bytes(bad)
            result = tiny("inspect", "out/checkpoint-000004")
            assert result.returncode == 1 and "DAMAGED" in result.stdout, (file, result)
            file.write_bytes(good)
    second = checkpoint / "shard-00002-model-00001-of-00001.safetensors"
    second.unlink()
    for command in [("export", "out/checkpoint-000004", "plain"), ("generate", "out/checkpoint-000004", "--prompt=a")]:
        result = tiny(*command)
        assert result.returncode == 2 and result.stderr.count("\n") == 1 and "shard" in result.stderr + "shard", result
    assert not (tiny.path / "plain").exists()
    result = tiny(*TWO, *how, "--resume", "--train.steps=6")
    assert result.returncode == 0 and "resumed from out/checkpoint-000002 at step 2" in result.stdout, result
    assert "skipping a damaged checkpoint: out/checkpoint-000004/" + second.name in result.stdout + result.stderr


def test_the_best_is_plain(tiny):
    """As are the model and a checkpoint of one process; a run goes on from it too."""
    how = ["--train.batch_size=6", "--output.eval_every=2", "--output.keep_best=true", "--data.eval_fraction=0.2"]
    assert tiny(*TWO, *how).returncode == 0
    checkpoints = sorted(tiny.path.glob("out/checkpoint-*"))
    best, *_ = sorted(checkpoints, key=lambda path: json.loads((path / "trainer_state.json").read_text())[
        "held_out_nats_per_byte"])
    assert AutoModelForCausalLM.from_pretrained(best) and (best / "optimizer.safetensors").exists()
    assert not list(best.glob("shard-*")) and tiny("inspect", str(best)).returncode == 0
    assert tiny(*TWO, *how, "--resume", "--train.steps=6").returncode == 0


def test_a_killed_rank_without_a_launcher(tiny):
    """The others say whom they waited for."""
    port = free_port()
    start = lambda rank: subprocess.Popen(
        [tiny.binary, *TRAIN, "--train.steps=1000000"], cwd=tiny.path, env=os.environ | variables_of(rank, 2, port),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ranks = [start(0), start(1)]
    until(ranks[0], "step 3/")
    ranks[1].kill()
    out, err = ranks[0].communicate(timeout=60)
    ranks[1].communicate()
    assert ranks[0].returncode == LOST and err.count("\n") == 1, err
    assert "rank 0 waited for rank 1, which is gone or late" in err


@pytest.mark.long
def test_a_hanging_rank(tiny):
    """The launcher gives it up, too."""
    launcher = tiny.start(*TWO, "--train.steps=1000000")
    until(launcher, "step 3/")
    began = time.monotonic()
    os.kill(ranks_of(launcher)[1], signal.SIGSTOP)
    out, err = launcher.communicate(timeout=70)
    assert launcher.returncode == 1 and time.monotonic() - began < 60, (out, err)
    assert re.search("rank 0 waited for rank 1, which is gone or late", err)
    assert err.endswith("stepc: rank 1 of 2 did not answer the others and was killed\n"), err
    assert not steps_saved(tiny.path / "out")


def test_machines_with_unlike_cpus(tiny):
    """What one library says of itself stands for another machine: its matrix kernels for bfloat16 and float32 are gone."""
    if "avx512" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no matrix kernels that a rank could be without")
    port = free_port()
    start = lambda rank: subprocess.Popen(
        [tiny.binary, *TRAIN, "--train.batch_size=6"], cwd=tiny.path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | variables_of(rank, 2, port) | ({"ONEDNN_MAX_CPU_ISA": "AVX2"} if rank else {}))
    ranks = [start(0), start(1)]
    answers = [rank.communicate(timeout=50) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    assert "the machines of the ranks differ (rank 0: " in answers[0][0] + answers[0][1], answers
    assert tiny(*TRAIN, "--train.batch_size=6", "--output.dir=one").returncode == 0
    assert_close(losses(tiny.path / "out"), losses(tiny.path / "one"), 1e-4)


@pytest.mark.parametrize("of_rank, message", [
    (["--optim.lr=0.5"], "rank 1 was started with optim.lr = 0.5, and rank 0 with 0.001: all ranks want the same"),
    (["--resume"], "rank 1 has --resume set, and rank 0 not set: all ranks want the same"),
])
def test_ranks_that_were_started_differently(tiny, of_rank, message):
    for status, out, err in by_hand(tiny, *TRAIN, of_rank={1: of_rank}):
        assert (status, out, err) == (2, "", f"stepc: {message}\n")
    assert not (tiny.path / "out").exists()


def shared(tiny):
    return f"--output.dir={tiny.path}/out"


@pytest.fixture
def two_machines(tiny):
    """A folder for each rank, as of machines that have nothing in common but where the run writes."""
    (tiny.path / "shared").mkdir()
    folders = {rank: tiny.path / f"machine-{rank}" for rank in range(2)}
    for folder in folders.values():
        folder.mkdir()
        (folder / "out").symlink_to(tiny.path / "shared")
        for name in ["model", "text.txt", "run.toml"]:
            copy = shutil.copytree if name == "model" else shutil.copy
            copy(tiny.path / name, folder / name)
    return folders


def test_other_data_of_the_same_name(tiny, two_machines):
    text = (two_machines[1] / "text.txt").read_text()
    (two_machines[1] / "text.txt").write_text(text.replace("the", "The", 1))
    for status, _, err in by_hand(tiny, *TRAIN, shared(tiny), folders=two_machines):
        assert status == 2 and re.fullmatch(
            r"stepc: rank 1 has the data \w{16}, and rank 0 \w{16}: all ranks want the same\n", err), err


def test_other_weights_of_the_same_name(tiny, two_machines):
    """Each rank would train on with its part of its own."""
    file = two_machines[1] / "model/model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][3] += np.float32(1e-6)
    save_file(weights, file, {"format": "pt"})
    for status, _, err in by_hand(tiny, *TRAIN, shared(tiny), folders=two_machines):
        assert status == 2 and re.fullmatch(
            r"stepc: rank 1 has the weights \w{16}, and rank 0 \w{16}: all ranks want the same\n", err), err


def test_an_output_that_is_not_shared(tiny, two_machines):
    (two_machines[1] / "out").unlink()
    for status, _, err in by_hand(tiny, *TRAIN, folders=two_machines):
        assert (status, err) == (
            2, "stepc: rank 1: output.dir = out: what rank 0 writes there is not found there: all ranks want one "
            "directory, on a disk that their machines share\n")
    left = {path.name for path in (two_machines[0] / "out").iterdir()}
    assert left <= {".lock", "logs"}, "nothing was begun"


def test_a_file_missing_on_one_machine(tiny, two_machines):
    (two_machines[1] / "model/model.safetensors").unlink()
    for status, _, err in by_hand(tiny, *TRAIN, shared(tiny), folders=two_machines):
        assert (status, err) == (
            2, "stepc: rank 1: cannot open model/model.safetensors: No such file or directory\n")


@pytest.mark.parametrize("arguments, message", [
    (["--data.train=nowhere.txt"], "cannot open nowhere.txt: No such file or directory"),
    (["--train.mode=exact"],
     'train.mode = "exact": on 2 ranks a step runs as a Graph or not at all: choose "fast"'),
    (["--profile", "none/step.json"], "--profile none/step.json: there is no directory none"),
    (["--parallel.cp=2", "--parallel.context=ring", "--data.seq_len=30"],
     'context = "ring" takes tokens that 2 x cp = 4 divides, and attention (in \'model.layers.0.self_attn\') is over 30: pad '
     'rows to 32, or take context = "auto"'),
])
def test_an_error_of_all_ranks_is_said_once(tiny, arguments, message):
    result = tiny(*TWO, *arguments)
    assert result.returncode == 2
    assert re.fullmatch(r"(rank 1: )?stepc: " + re.escape(message) + r"\nstepc: rank [01] of 2 failed with status 2\n",
                        result.stderr), result.stderr


def test_a_row_with_fewer_tokens_than_ranks(tiny):
    result = tiny(*TRAIN, "--ranks=3", "--parallel.cp=3", "--data.seq_len=2")
    assert result.returncode == 2
    assert re.fullmatch(r"(rank \d: )?stepc: parallel.cp = 3: the longest row has 2 tokens, and each rank needs one; cp can be at "
                        r"most 2\nstepc: rank \d of 3 failed with status 2\n", result.stderr), result.stderr


def test_a_mesh_of_other_ranks(tiny):
    result = tiny(*TWO, "--parallel.dp_shard=2", "--parallel.tp=2")
    assert (result.returncode, result.stderr) == (
        2, "stepc: run.toml: parallel.ranks = 2, and the axes multiply to 4: dp_shard=2,tp=2; of 2 ranks the nearest mesh "
        "is tp=2, and parallel.dp_shard = -1 takes what the others leave\n")
    assert not (tiny.path / "out").exists()


@pytest.mark.parametrize("ranks", [TRAIN, TWO])
def test_a_checkpoint_of_another_model(tiny, ranks):
    """It is not silently the one that is trained. Where the first model is gone, its checkpoint is enough."""
    assert tiny(*ranks).returncode == 0
    write_tiny_model(tiny.path / "model", tiny.path / "model", layers=2)
    result = tiny(*ranks, "--resume", "--train.steps=6")
    assert result.returncode == 2 and (
        "stepc: model.path = model: another model than that of the checkpoint to resume from, out/checkpoint-000004: its "
        "num_hidden_layers is 2, the checkpoint's 1; give that model, or choose another output.dir\n") in result.stderr, result
    assert steps_saved(tiny.path / "out") == [4]
    shutil.rmtree(tiny.path / "model")
    assert tiny(*ranks, "--resume", "--train.steps=6").returncode == 0


def test_a_port_that_is_taken(tiny):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run([tiny.binary, *TRAIN], cwd=tiny.path, env=os.environ | variables_of(0, 2, port),
                                capture_output=True, text=True, timeout=20)
    assert (result.returncode, result.stderr) == (
        2, f"stepc: port {port} of 127.0.0.1 is taken, by another run or by a second rank 0 of this one: give another "
        "port\n")


def test_an_output_that_cannot_be_made(tiny):
    for answer in by_hand(tiny, *TRAIN, "--output.dir=text.txt/out"):
        assert answer[0] == 2 and "output.dir: cannot create text.txt: Not a directory" in answer[2], answer
        assert answer[2].count("\n") == 1


def test_not_a_number_on_ranks(tiny):
    """The same step on all, said once, and what was saved before is good."""
    result = tiny(*TWO, "--train.steps=500", "--output.save_every=2", "--optim.lr=10", "--optim.clip=1e9",
                  "--optim.weight_decay=10", "--optim.warmup_steps=0")
    found = re.fullmatch(r"(?:rank 1: )?stepc: step (\d+): loss \S+, gradient norm \S+: stopped before saving; first not "
                         r"finite: (.* on rank [01]); "
                         r"the checkpoint of step (\d+) is good\nstepc: rank [01] of 2 failed with status 1\n",
                         result.stderr)
    assert result.returncode == 1 and found, result.stderr
    assert steps_saved(tiny.path / "out")[-1] == int(found.group(3))
    assert tiny("inspect", "out").returncode == 0 and not (tiny.path / "out/model").exists()


def small_files(bytes):
    """A disk on which no file can be longer, of one process."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes))
    return limit


@pytest.mark.parametrize("full", [0, 1])
def test_a_save_that_fails_on_one_rank(tiny, full):
    """All end with its line, at a step that all have done; what was saved before is good."""
    how = ["--output.save_every=3", "--optim.schedule=constant"]
    assert tiny(*TWO, *how, "--train.steps=3").returncode == 0
    shutil.rmtree(tiny.path / "out/model")
    for status, _, err in by_hand(tiny, *TRAIN, *how, "--train.steps=1000000", "--resume", timeout=20,
                                  before={full: small_files(12_000)}):
        assert status == 1 and re.fullmatch(
            rf"stepc: rank {full}: .*shard-0000{full + 1}-\S+: File too large.*\n", err), err
    assert steps_saved(tiny.path / "out") == [3] and tiny("inspect", "out/checkpoint-000003").returncode == 0


def test_a_bad_index_on_one_rank(tiny, two_machines):
    """Data that go bad on one machine while it trains: all stop before the step, and nothing is lost."""
    ranks = start_by_hand(tiny, *TRAIN, shared(tiny), "--data.cache=cache", "--train.steps=1000000",
                          "--output.save_every=2", folders=two_machines)
    until(ranks[0], "step 5/")
    tokens = max((two_machines[1] / "cache").rglob("*"), key=lambda path: path.stat().st_size)
    with open(tokens, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (tokens.stat().st_size - 4096))
    for rank in ranks:
        _, err = rank.communicate(timeout=20)
        assert rank.returncode == 1 and re.fullmatch(
            r"stepc: rank 1: cache/\w+\.tokens: damaged token shard: token 65535 in a vocabulary of 257\n", err), err
    assert tiny("inspect", "out").returncode == 0


def kill_one(tiny, victim, when, *arguments):
    """Of two ranks one, when `when` has returned: the other's status and what it says, within a minute."""
    ranks = start_by_hand(tiny, *TRAIN, "--train.batch_size=6", "--output.save_every=2", *arguments)
    try:
        when(ranks)
        ranks[victim].kill()
        began = time.monotonic()
        _, err = ranks[1 - victim].communicate(timeout=70)
        assert time.monotonic() - began < 65, err
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return ranks[1 - victim].returncode, err


@pytest.mark.parametrize("line", ["a run takes", "held-out loss before training", "saved "])
def test_a_rank_that_dies_on_the_way(tiny, line):
    """While the model is loaded, the first step compiled, a save under way: one line, and no half of a checkpoint."""
    status, err = kill_one(tiny, 1, lambda ranks: until(ranks[0], line), "--train.steps=1000000")
    assert status == LOST and err.count("\n") == 1 and err.startswith("stepc: "), err
    assert "rank 0 waited for rank 1, which is gone or late" in err
    for step in steps_saved(tiny.path / "out"):
        assert tiny("inspect", f"out/checkpoint-{step:06}").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_at_any_time(tiny, victim):
    """From before the ranks have met to the last file: nobody waits for long, and what is there is good."""
    for moment in [0, 0.2, 0.5, 1.0, 1.5]:
        status, err = kill_one(tiny, victim, lambda ranks: time.sleep(moment), "--resume")
        assert status in (0, LOST, 2) and err.count("\n") == (status != 0), (moment, status, err)
        for step in steps_saved(tiny.path / "out"):
            assert tiny("inspect", f"out/checkpoint-{step:06}").returncode == 0
    assert tiny(*TWO, "--train.batch_size=6", "--output.save_every=2", "--resume").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_at_the_merge(tiny, victim):
    """While rank 0 makes the final model of all ranks' slices (256 MB, so that there is a while): the checkpoint stays, what
    was half-written goes, and the run that goes on leaves what one leaves that nobody killed."""
    write_tiny_model(tiny.path / "model", tiny.path / "model", hidden=1024, inner=4096, layers=4)
    how = [*TWO, "--train.steps=2", "--train.batch_size=2", "--data.seq_len=8"]
    assert tiny(*how, "--output.dir=whole").returncode == 0
    launcher = tiny.start(*how)
    until(launcher, "saved ")
    ranks = ranks_of(launcher)
    while not list((tiny.path / "out").glob("model.tmp-*")):
        assert launcher.poll() is None
        time.sleep(0.001)
    os.kill(ranks[victim], signal.SIGKILL)
    _, err = launcher.communicate(timeout=60)
    assert err == f"stepc: rank {victim} of 2 was ended by signal 9 (Killed)\n"
    assert (tiny.path / "out/model").exists() == (victim == 1)  # rank 0 needs the other no more
    assert tiny("inspect", "out/checkpoint-000002").returncode == 0
    assert tiny(*how, "--resume").returncode == 0
    assert not list((tiny.path / "out").glob("*.tmp-*"))
    for file in (tiny.path / "whole/model").iterdir():
        assert file.read_bytes() == (tiny.path / "out/model" / file.name).read_bytes(), file


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("how", [["--optim.master_weights=false"], ["--optim.master_weights=true"]])
def test_bfloat16_on_ranks(tiny, ranks, how):
    """Rounded at random too: what is held out loses as much as on one."""
    how = [*TRAIN, *how, "--model.compute=bfloat16", "--train.batch_size=8", "--train.steps=30"]
    assert tiny(*how, "--output.dir=one").returncode == 0
    assert tiny(*how, "--ranks", str(ranks)).returncode == 0
    one, many = ({step: value for (step, key), value in losses(tiny.path / path).items() if key == "held_out_loss"}
                 for path in ["one", "out"])
    assert one.keys() == many.keys() and len(one) == 2
    for step, value in one.items():
        assert abs(many[step] - value) <= 0.005 * value, (step, many[step], value)


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_damaged_checkpoint_of_another_mesh(tiny, harm):
    """The one before it counts, whatever the mesh is that goes on."""
    how = ["--train.batch_size=6", "--output.save_every=2", "--output.keep_last=2"]
    assert tiny(*TWO, *how).returncode == 0
    slice_of_one = tiny.path / "out/checkpoint-000004/shard-00002-optimizer-00001-of-00001.safetensors"
    good = slice_of_one.read_bytes()
    slice_of_one.unlink() if harm == "missing" else slice_of_one.write_bytes(good[:-8])
    result = tiny(*TRAIN, "--ranks", "3", *how, "--resume", "--train.steps=6")
    assert result.returncode == 0 and "resumed from out/checkpoint-000002 at step 2" in result.stdout, result
