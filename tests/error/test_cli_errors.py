"""Bad input to the stepc command: the exit code, one exact line on standard error, and nothing lost."""

import fcntl
import json
import os
import re
import signal

import pytest

NO_MODEL = ("{}: not a directory; a model directory has config.json, tokenizer.json and model.safetensors "
            "(`stepc init` makes one)")

USAGE = {
    "no command": ([], "give a command: init, train, eval, memory, plan, generate, inspect, blame, export, data, run-schedule, "
                   "calibrate, config, completions; `stepc --help` says more"),
    "unknown command": (["trian", "run.toml"],
                        'unknown command "trian", did you mean train?; the commands are init, train, eval, memory, plan, '
                        'generate, inspect, blame, export, data, run-schedule, calibrate, config, completions'),
    "no config": (["train"], "config is required; `stepc train --help` says more"),
    "missing config": (["train", "nope.toml"], "cannot open nope.toml: No such file or directory"),
    "extra argument": (["train", "run.toml", "more"],
                       'unexpected argument "more"; `stepc train --help` says more'),
    "unknown option": (["train", "run.toml", "--fast"], "unknown option --fast; `stepc train --help` says more"),
    "override without value": (["train", "run.toml", "--train.steps"],
                               "--train.steps: give the value as --train.steps=value"),
    "override of an unknown key": (["train", "run.toml", "--train.step=3"],
                                   "--train.step=3: unknown key train.step; did you mean train.steps?"),
    "override of a wrong type": (
        ["train", "run.toml", "--train.steps=x"],
        "--train.steps=x: train.steps: must be an integer, at least 1, at most 1000000000"),
    "override out of range": (["train", "run.toml", "--optim.lr=0"],
                              "--optim.lr=0: optim.lr: must be a number, above 0, at most 10"),
    "override of a key as torchtitan has it": (
        ["train", "run.toml", "--parallel.tensor_parallel_degree=2"],
        "--parallel.tensor_parallel_degree=2: unknown key parallel.tensor_parallel_degree; here it is parallel.tp: ranks "
        "that split matmuls, heads and classes: tensor parallelism"),
    "key of what is not there": (["train", "run.toml", "--parallel.ep=2"],
                                 "--parallel.ep=2: unknown key parallel.ep; there is no expert parallelism yet"),
    "too few micro-batches": (["memory", "run.toml", "--parallel.pp=2"],
                              "run.toml: parallel.pp = 2: 1 micro-batch for 2 stages in the order \"1f1b\", which needs "
                              "one a stage: micro_batches must be at least 2"),
    "more stages than layers": (["memory", "run.toml", "--parallel.pp=5", "--train.micro_batches=5"],
                                "parallel.pp = 5: the model has 4 layers, and each stage needs one; pp can be at most 4"),
    "an order that is none": (["memory", "run.toml", "--parallel.pp=2", "--parallel.order=zb"],
                              "run.toml: parallel.pp = 2: the order \"zb\" is none; it is \"1f1b\", \"gpipe\", \"zb-h1\", "
                              "\"zb-v\", \"dualpipe-v\" or a file that ends in .csv"),
    "axis that is none": (["train", "run.toml", "--parallel.tpp=2"],
                          "--parallel.tpp=2: unknown key parallel.tpp; did you mean parallel.tp?"),
    "no ranks along an axis": (["memory", "run.toml", "--parallel.tp=0"],
                               "--parallel.tp=0: parallel.tp: must be an integer, at least 1, at most 1048576"),
    "ranks left over of none": (
        ["memory", "run.toml", "--parallel.dp_shard=-1"],
        "parallel.dp_shard = -1 is the ranks that the other axes leave: give parallel.ranks, how many there are"),
    "a mesh of other ranks": (
        ["memory", "run.toml", "--parallel.dp_shard=2", "--parallel.tp=2", "--parallel.ranks=8"],
        "run.toml: parallel.ranks = 8, and the axes multiply to 4: dp_shard=2,tp=2; of 8 ranks the nearest mesh is "
        "dp_shard=4,tp=2, and parallel.dp_shard = -1 takes what the others leave"),
    "more ranks than heads": (
        ["memory", "run.toml", "--parallel.tp=8"],
        "parallel.tp = 8: the model has 4 heads, and none is split; tp can be at most 4, and nothing is padded at 2, 4"),
    "a rule along no axis": (
        ["memory", "run.toml", "--parallel.tp=2", '--parallel.shard=[{param="*.up_proj.weight",dims={0="ttp"}}]'],
        "run.toml: the rule '*.up_proj.weight' splits dimension 0 along 'ttp', which is no axis of a mesh; did you mean "
        "'tp'?"),
    "a rule that is none": (
        ["memory", "run.toml", "--parallel.tp=2", "--parallel.shard=tp"],
        '--parallel.shard=tp: parallel.shard: must be a list of tables {param = "*.q_proj.weight", dims = {0 = "tp"}}, '
        "may be empty"),
    "training on ranks": (
        ["train", "run.toml", "--parallel.dp_shard=8", "--parallel.zero=2"],
        "[parallel] asks for 8 ranks (dp_shard=8), zero 2, and this process runs alone: start it with --ranks 8, "
        "torchrun or mpirun"),
    "more ranks than the mesh has": (
        ["train", "run.toml", "--ranks", "4", "--parallel.tp=2"],
        "run.toml: parallel.ranks = 4, and the axes multiply to 2: tp=2; of 4 ranks the nearest mesh is dp_shard=2,tp=2, "
        "and parallel.dp_shard = -1 takes what the others leave"),
    "ranks given twice": (["train", "run.toml", "--ranks", "4", "--parallel.dp_shard=-1", "--parallel.ranks=8"],
                          "--ranks 4 is parallel.ranks as well: leave out --parallel.ranks=8"),
    "no ranks": (["train", "run.toml", "--ranks", "0"],
                 "--ranks: Value 0 not in range 1 to 1024; `stepc train --help` says more"),
    "ranks of a run that is none": (["train", "run.toml", "--ranks", "2", "--fast"],
                                    "unknown option --fast; `stepc train --help` says more"),
    "logs cannot be made": (["train", "run.toml", "--ranks", "2", "--parallel.dp_shard=-1", "--output.dir=text.txt"],
                            "output.dir: cannot create text.txt: Not a directory"),
    "no model": (["train", "run.toml", "--model.path=nowhere"], NO_MODEL.format("nowhere")),
    "no text": (["train", "run.toml", "--data.train=nowhere.txt"],
                "cannot open nowhere.txt: No such file or directory"),
    "long sequences": (["train", "run.toml", "--data.seq_len=4096"],
                       "data.seq_len = 4096: must be at most 2048, max_position_embeddings of model"),
    "a target that is not there": (
        ["memory", "run.toml", "--target", "h110"],
        'target "h110": there is no such target and no such file; did you mean h100? there are a100, h100, h100-96, h200, '
        "b200, gb200, a800, h800, or give a Target file's path"),
    "a target that torch has left behind": (
        ["memory", "run.toml", "--target", "v100"],
        'target "v100": torch has no kernels for a V100 any more; there are a100, h100, h100-96, h200, b200, gb200, '
        "a800, h800"),
    "a cluster that is not there": (
        ["plan", "run.toml", "--cluster", "h100"],
        'cluster "h100": there is no such cluster and no such file; give a card and how many, as in a100x8, a800x8, '
        "h100x8, h100-80x8, h100-96x8, h800x8, h200x8, b200x8, gb200x72, or a cluster file's path"),
    "half a node": (["plan", "run.toml", "--cluster", "h100x12"], 'cluster "h100x12": 12 devices do not fill nodes of 8; write a '
                    "cluster file for others"),
    "a pin of nothing": (["plan", "run.toml", "--cluster", "h100x8", "--pin", "tpp=2"],
                         '--pin "tpp=2": there is no "tpp"; did you mean pp? there are pp, dp_replicate, dp_shard, '
                         "cp, tp, zero, micro_batches"),
    "pins that contradict": (["plan", "run.toml", "--cluster", "h100x8", "--pin", "tp=2", "--pin", "dp_shard=8"],
                             "parallel.dp_shard = 8 and parallel.tp = 2 contradict each other: the cluster has 8 devices, "
                             "which is no multiple of 16"),
    "more stages than a searched model's layers": (["plan", "run.toml", "--cluster", "h100x8", "--pin", "pp=8"],
                                                   "parallel.pp = 8: the model has 4 layers, and each of 8 stages needs one"),
    "memory without a unit": (["plan", "run.toml", "--cluster", "h100x8", "--budget", "40"],
                              '--budget "40": must be a size such as 40GiB'),
    "too long a row of a question": (["plan", "run.toml", "--cluster", "h100x8", "--seq", "32", "--seq", "99999"],
                                     "data.seq_len = 99999: the model has 2048 positions"),
    "a target of ranks": (
        ["memory", "run.toml", "--target", "h100", "--parallel.dp_shard=2"],
        "--target: a plan for another machine is of one device; [parallel] spreads the step over 2"),
    "memory of long sequences": (["memory", "run.toml", "--data.seq_len=4096"],
                                 "data.seq_len = 4096: must be at most 2048, max_position_embeddings of model"),
    "memory of long sequences on ranks": (
        ["memory", "run.toml", "--data.seq_len=4096", "--parallel.dp_shard=2"],
        "data.seq_len = 4096: must be at most 2048, max_position_embeddings of model"),
    "memory of a long bucket": (
        ["memory", "run.toml", "--data.buckets=[64, 4096]"],
        "data.buckets = [64, 4096]: must be at most 2048, max_position_embeddings of model"),
    "output cannot be made": (["train", "run.toml", "--output.dir=/proc/stepc"],
                              "output.dir: cannot create /proc/stepc: No such file or directory"),
    "output is a file": (["train", "run.toml", "--output.dir=text.txt"],
                         "output.dir: cannot create text.txt: Not a directory"),
    "eval of no model": (["eval", "run.toml", "--model", "nowhere"], NO_MODEL.format("nowhere")),
    "init into a model": (["init", "model"],
                          "model: not empty; choose another directory, or --force to replace the model files in it"),
    "init onto a file": (["init", "text.txt"], "text.txt: exists and is not a directory"),
    "unknown preset": (["init", "new", "--preset", "llama-10"],
                       re.compile(r'there is no preset "llama-10" \("llama-10m"\?\); the presets are llama-10m, .*')),
    "seed is no number": (["init", "new", "--seed", "abc"],
                          "Could not convert: --seed = abc; `stepc init --help` says more"),
    "seed below zero": (["init", "new", "--seed", "-1"],
                        "--seed: must be from 0 to 18446744073709551615, found -1; `stepc init --help` says more"),
    "seed beyond 64 bits": (["init", "new", "--seed", "18446744073709551616"],
                            "--seed: must be from 0 to 18446744073709551615, found 18446744073709551616; "
                            "`stepc init --help` says more"),
    "seed of draws below zero": (["generate", "model", "--prompt", "a", "--seed", "-1"],
                                 "--seed: must be from 0 to 18446744073709551615, found -1; `stepc generate --help` says more"),
    "generate without prompt": (["generate", "model"], "--prompt is required; `stepc generate --help` says more"),
    "empty prompt": (["generate", "model", "--prompt", ""], "--prompt is empty: give some text to continue"),
    "no tokens": (["generate", "model", "--prompt", "a", "--tokens", "0"],
                  "--tokens: Value 0 not in range 1 to 1000000; `stepc generate --help` says more"),
    "generate from no model": (["generate", "nowhere", "--prompt", "a"], NO_MODEL.format("nowhere")),
    "calibrate into a file": (["calibrate", "--kernels", "text.txt"], "cannot create text.txt: Not a directory"),
    "calibrate where nothing can be written": (["calibrate", "--kernels", "/proc/stepc"],
                                               "cannot create /proc/stepc: No such file or directory"),
    "no rounds": (["calibrate", "--rounds", "0"],
                  "--rounds: Value 0 not in range 1 to 1000; `stepc calibrate --help` says more"),
}


def files_of(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def expect_error(result, code, message):
    assert result.returncode == code, result.stderr
    assert result.stderr.endswith("\n") and result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("stepc: "), result.stderr
    text = result.stderr[len("stepc: "):-1]
    if isinstance(message, re.Pattern):
        assert message.fullmatch(text), text
    else:
        assert text == message


@pytest.mark.parametrize("case", USAGE)
def test_usage(stepc, case):
    arguments, message = USAGE[case]
    before = files_of(stepc.path)
    expect_error(stepc(*arguments), 2, message)
    after = {name: data for name, data in files_of(stepc.path).items() if name.name != ".lock"}
    assert after == before


def test_one_calibration_at_a_time(stepc):
    kernels = stepc.path / "kernels"
    kernels.mkdir()
    held = os.open(kernels, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        expect_error(stepc("calibrate", "--kernels", "kernels"), 2,
                     "kernels: another calibration runs for this directory; begin this one when it has ended")
    finally:
        os.close(held)
    assert not list(kernels.iterdir())


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_launches_no_ranks(stepc, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    expect_error(stepc("train", "run.toml", "--ranks", "2", "--parallel.dp_shard=-1"), 2,
                 f"--ranks 2: this process is a rank of a launch already ({name} = 3); leave --ranks out there")
    assert not (stepc.path / "out").exists()


def test_ranks_that_fail(stepc):
    result = stepc("train", "run.toml", "--ranks", "2", "--parallel.dp_shard=-1", "--model.path=nowhere")
    assert result.returncode == 2
    assert re.search(r"^stepc: rank [01] of 2 failed with status 2\n\Z", result.stderr, re.MULTILINE), result.stderr
    assert re.search(r"^(rank 1: )?stepc: (?!rank)", result.stderr, re.MULTILINE), result.stderr
    assert result.stdout.startswith("2 ranks on this machine, whose output is in out/logs\n")
    assert {file.name for file in (stepc.path / "out/logs").iterdir()} == {"rank-0.log", "rank-1.log"}


@pytest.mark.parametrize("rule, message", [
    ('{param="*.up_prj.weight",dims={0="tp"}}',
     "the rule '*.up_prj.weight' matches no parameter; did you mean '*.up_proj.weight'?"),
    ('{param="lm_head.weight",dims={2="tp"}}',
     "the rule 'lm_head.weight' splits dimension 2 of 'lm_head.weight', which has 2 dimensions, from 0 on"),
])
def test_a_rule_that_does_not_fit_the_model(stepc, rule, message):
    expect_error(stepc("memory", "run.toml", "--parallel.tp=2", f"--parallel.shard=[{rule}]"), 2, message)


CONFIG = {
    "unknown key": ("seq_len = 32", "seq_length = 32",
                    "run.toml:9: unknown key data.seq_length = 32; did you mean data.seq_len?"),
    "unknown section": ("[optim]", "[optims]",
                        "run.toml:15: unknown section [optims]; did you mean [optim]?"),
    "wrong type": ("steps = 4", 'steps = "four"',
                   "run.toml:12: train.steps = 'four': must be an integer, at least 1, at most 1000000000"),
    "out of range": ("steps = 4", "steps = -4",
                     "run.toml:12: train.steps = -4: must be an integer, at least 1, at most 1000000000"),
    "missing key": ('path = "model"', "", "run.toml: model.path is missing: Hugging Face model directory to start "
                                          "from (`stepc init` makes one)"),
    "not TOML": ("steps = 4", "steps = ", re.compile(r"run\.toml:12: not TOML: .*")),
}


@pytest.mark.parametrize("case", CONFIG)
def test_config(stepc, case):
    old, new, message = CONFIG[case]
    config = stepc.path / "run.toml"
    config.write_text(config.read_text().replace(old, new))
    expect_error(stepc("train", "run.toml"), 2, message)
    expect_error(stepc("eval", "run.toml"), 2, message)


def rewrite(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


MODEL = {
    "cut weights": (lambda model: os.truncate(model / "model.safetensors", 1000),
                    "model/model.safetensors: header of 4136 bytes in a file of 1000: it was cut off"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(),
                   "cannot open model/model.safetensors: No such file or directory"),
    "noise for weights": (lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 100),
                          re.compile(r"model/model\.safetensors: header of .* bytes, .*: not safetensors\?")),
    "cut tokenizer": (lambda model: os.truncate(model / "tokenizer.json", 100),
                      re.compile(r"model/tokenizer\.json: not valid JSON: .*")),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(),
                     "model: neither tokenizer.json nor tokenizer.model is there"),
    "no config": (lambda model: (model / "config.json").unlink(),
                  "cannot open model/config.json: No such file or directory"),
    "another kind of model": (lambda model: rewrite(model / "config.json", lambda c: c.update(model_type="bert")),
                              re.compile('model: config.json: model_type is "bert"; stepc supports llama, .*')),
    "another kind's architecture": (lambda model: rewrite(model / "config.json", lambda c: c.update(model_type="gpt2")),
                                    'model: config.json: architectures is "LlamaForCausalLM"; '
                                    'stepc supports only "GPT2LMHeadModel"'),
    "other shapes": (
        lambda model: rewrite(model / "config.json", lambda c: c.update(vocab_size=4097)),
        "model: model.embed_tokens.weight has shape (4096, 128) in the weights and (4097, 128) by the config"),
    "too many tokens": (lambda model: rewrite(model / "config.json", lambda c: c.update(
        vocab_size=200, bos_token_id=1, eos_token_id=2)),
        "model: tokenizer.json has 257 tokens, but config.json has vocab_size 200"),
}


@pytest.mark.parametrize("case", MODEL)
def test_model(stepc, case):
    damage, message = MODEL[case]
    damage(stepc.path / "model")
    expect_error(stepc("train", "run.toml"), 2, message)
    expect_error(stepc("generate", "model", "--prompt", "a"), 2, message)


def test_empty_text(stepc):
    (stepc.path / "text.txt").write_text("")
    expect_error(stepc("train", "run.toml"), 2, "text.txt is empty")


def test_loss_that_is_not_a_number(stepc):
    result = stepc("train", "run.toml", "--optim.lr=10", "--optim.clip=1e9", "--optim.weight_decay=10",
                   "--optim.warmup_steps=0", "--train.steps=100")  # weights grow a hundredfold a step
    expect_error(result, 1, re.compile(r"step \d+: loss .*, gradient norm (inf|nan): stopped before saving; "
                                       r"first not finite: (the backward of )?\S+ \(\w+\); a lower optim\.lr may help"))
    assert not (stepc.path / "out/model").exists()
    assert not list((stepc.path / "out").glob("checkpoint-*"))


def test_a_finished_run_is_kept(stepc):
    assert stepc("train", "run.toml").returncode == 0
    before = files_of(stepc.path)
    expect_error(stepc("train", "run.toml"), 2,
                 "output.dir = out: holds a finished run; continue it with --resume or choose another output.dir")
    assert stepc("train", "run.toml", "--resume").stdout.splitlines()[-1] == \
        "finished already: out/model has step 4 of 4"
    expect_error(stepc("train", "run.toml", "--resume", "--train.steps=8", "--train.batch_size=4"), 2,
                 "train.batch_size = 4: the checkpoint to resume from has 2; give that, or choose another output.dir")
    expect_error(stepc("export", "out", "exported"), 2,
                 "out: the directory of a run, and no model: give one of its checkpoints, out/checkpoint-000004")
    after = files_of(stepc.path)
    assert {name: data for name, data in after.items() if "tokens" not in name.parts} == \
        {name: data for name, data in before.items() if "tokens" not in name.parts}  # the cache may remember more


def read_until(process, start):
    for line in process.stdout:
        if line.startswith(start):
            return
    pytest.fail(f"the process ended before a line {start!r}: {process.stderr.read()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_stops(stepc, number):
    process = stepc.start("train", "run.toml", "--train.steps=100000", "--output.log_every=1")
    read_until(process, "step 7/")
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (128 + number, "")
    saved = re.fullmatch(rf"stopped by {number.name}: step (\d+) is saved, continue with --resume",
                         output.splitlines()[-1])
    assert saved, output
    step = int(saved.group(1))
    assert (stepc.path / f"out/checkpoint-{step:06}/manifest.json").exists()

    result = stepc("train", "run.toml", "--resume", f"--train.steps={step + 2}")
    assert result.returncode == 0, result.stderr
    steps = [json.loads(line) for line in (stepc.path / "out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "loss" in line] == list(range(1, step + 3))


def test_a_second_run_is_refused(stepc):
    process = stepc.start("train", "run.toml", "--train.steps=100000")
    read_until(process, "step 1/")
    expect_error(stepc("train", "run.toml"), 2,
                 "output.dir = out: another run is writing there; wait for it or choose another output.dir")
    process.kill()
    process.communicate(timeout=60)
    assert stepc("train", "run.toml").returncode == 0  # the lock went with the process


def test_init_by_force_keeps_other_files(stepc):
    notes = stepc.path / "model/notes.txt"
    notes.write_text("mine")
    weights = (stepc.path / "model/model.safetensors").read_bytes()
    result = stepc("init", "model", "--preset", "llama-2m", "--seed", "2", "--force")
    assert result.returncode == 0, result.stderr
    assert notes.read_text() == "mine"
    assert (stepc.path / "model/model.safetensors").read_bytes() != weights


@pytest.mark.parametrize("command", [[], ["init"], ["train"], ["eval"], ["generate"], ["config"], ["completions"]])
def test_help(stepc, command):
    result = stepc(*command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: stepc" in result.stdout


def test_a_key_of_another_optimizer_is_a_warning(stepc):
    done = stepc("train", "run.toml", "--optim.momentum=0.5", "--train.steps=1")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert ('warning: optim.momentum = 0.5 has no effect: optim.name is "adamw", and the key is for sgd\n' in done.stdout)
    assert "warning" not in stepc("train", "run.toml", "--optim.eps=1e-6", "--output.dir=again").stdout
