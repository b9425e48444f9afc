"""`stepc memory`: what a run's memory will be, before it runs, and what it then is."""

import json
import re

import pytest
import torch
import transformers


def arena_in(text):
    return re.search(r"arena +([\d.]+ \w+)", text).group(1)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_run_takes_what_was_planned(stepc, compute):
    options = ("run.toml", f"--model.compute={compute}", "--train.mode=fast", "--train.steps=6",
               "--train.batch_size=16")
    planned = stepc("memory", *options, "--picture", "memory.svg")
    assert planned.returncode == 0, planned.stderr
    for word in ("parameters", "optimizer state", "activations", "workspaces"):
        assert word in planned.stdout, planned.stdout
    assert (stepc.path / "memory.svg").read_text().startswith("<svg")
    run = stepc("train", *options)
    assert run.returncode == 0, run.stderr
    assert arena_in(run.stdout) == arena_in(planned.stdout)
    staging = re.search(r"staging for saves ([\d.]+ \w+)", planned.stdout).group(1)
    assert f"from a copy of the state: {staging}" in run.stdout


def test_a_gpu_that_is_not_here(stepc):
    planned = {}
    for target in ("a100", "b200"):
        result = stepc("memory", "run.toml", "--model.compute=bfloat16", "--target", target, "--picture", "gpu.svg")
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"planned for NVIDIA {target.upper()} ")
        for word in ("memory ", "predicted ", "matmul", "activations", "predicted time", "a step takes"):
            assert word in result.stdout, result.stdout
        assert (stepc.path / "gpu.svg").read_text().startswith("<svg")
        planned[target] = re.search(r"predicted ([\d.]+) ms", result.stdout).group(1)
    assert float(planned["a100"]) > float(planned["b200"])
    parts = stepc("memory", "run.toml", "--train.micro_batches=4", "--target", "h100")
    assert parts.returncode == 0, parts.stderr
    assert "a micro-batch, 4 a step\n" in parts.stdout and "the update, 1 a step\n" in parts.stdout
    assert re.search(r"a step takes [\d.]+ MiB; NVIDIA H100 80GB has 74.5 GiB\n", parts.stdout), parts.stdout


def test_the_best_mesh_of_a_cluster(stepc):
    """Only config.json is read: neither weights nor data are there."""
    for name in ("text.txt", "model/model.safetensors", "model/tokenizer.json"):
        (stepc.path / name).unlink()
    config = stepc.path / "model/config.json"
    deep = json.loads(config.read_text()) | {"num_hidden_layers": 24}
    config.write_text(json.dumps(deep))
    plan = ("plan", "run.toml", "--cluster", "h100x2", "--train.batch_size=4", "--pin", "cp=1", "--json", "ways.json")
    result = stepc(*plan)
    assert result.returncode == 0, result.stderr
    assert " 4 rows of 32 tokens a step, on 1 node of 2 NVIDIA H100 80GB, " in result.stdout
    assert "\nother families, the best of each\n" in result.stdout
    ways = json.loads((stepc.path / "ways.json").read_text())["outcomes"]
    assert all(way["pp"] * way["dp_replicate"] * way["dp_shard"] * way["tp"] == 2 and way["cp"] == 1 for way in ways)
    assert any(way["pp"] == 2 and way["verdict"] == "planned" and way["waiting_seconds"] > 0 for way in ways)
    seconds = [way["seconds"] for way in ways if way["verdict"] == "planned"]
    assert seconds == sorted(seconds) and seconds
    best = re.search(r"the first, in run.toml\n(.*)\n\nThese are", result.stdout, re.DOTALL).group(1)
    for key in ("pp", "dp_replicate", "dp_shard", "tp"):
        assert (f"{key} = {ways[0][key]}" in best) == (ways[0][key] > 1)
    table = stepc(*plan, "--cluster", "h200x2", "--seq", "16", "--seq", "32", "--budget", "1GiB", "--budget", "1MiB")
    assert table.returncode == 1, table.stderr
    rows = table.stdout.splitlines()
    assert len(rows) == 1 + 8 + 1 and rows[0].split()[:3] == ["cluster", "rows", "tokens"] and rows[-1] == "all ways: ways.json"
    assert ["nothing fits" in row for row in rows[1:9]] == [False, True] * 4
    asked = json.loads((stepc.path / "ways.json").read_text())
    assert [(one["cluster"], one["row_tokens"], one["memory_bytes"]) for one in asked] == [
        (card, tokens, memory) for card in ("h100x2", "h200x2") for tokens in (16, 32) for memory in (1 << 30, 1 << 20)]
    pinned = (*plan[:4], "--train.batch_size=4", "--pin", "dp_shard=2", "--pin", "cp=1", "--pin", "micro_batches=1")
    computes = [row.split()[3] for row in stepc(*pinned, "--precision", "bfloat16", "--precision", "fp8").stdout.splitlines()]
    assert computes == ["compute", "bfloat16", "fp8"]
    assert " in float32, linear layers in float8, 4 rows" in stepc(*pinned, "--precision", "fp8").stdout

    def seconds_of(*more):
        assert stepc(*pinned, *more, "--json", "ways.json").returncode == 0
        return json.loads((stepc.path / "ways.json").read_text())["outcomes"][0]["seconds"]

    assert seconds_of("--seq", "2048", "--documents", "16") < seconds_of("--seq", "2048")
    assert seconds_of("--without", "fuse") > seconds_of()
    (stepc.path / "small.toml").write_text(
        'name = "small"\nnodes = 1\ndevices_per_node = 2\ntarget = "small-card.toml"\n[[links]]\nname = "wire"\n'
        "devices = 2\nbytes_per_second = 1e9\nlatency_seconds = 1e-5\n")
    missing = stepc("plan", "run.toml", "--cluster", "small.toml")
    assert missing.returncode == 2 and missing.stderr.startswith('stepc: small.toml: target "small-card.toml": there is no')


def test_a_target_file_without_a_key(stepc):
    (stepc.path / "mine.toml").write_text('device = "cuda"\nname = "mine"\n')
    wrong = stepc("memory", "run.toml", "--target", "mine.toml")
    assert (wrong.returncode, wrong.stderr) == (2, "stepc: mine.toml: target, line 1: a GPU: sm is missing\n")


def test_a_budget_makes_it_smaller(stepc):
    def peak(*more):
        result = stepc("memory", "run.toml", "--train.batch_size=32", *more)
        assert result.returncode == 0, result.stderr
        number, unit = re.search(r"peak ([\d.]+) (\w+)", result.stdout).groups()
        return float(number) * {"KiB": 1, "MiB": 1024}[unit]

    whole = peak()
    assert peak(f"--memory.budget={int(whole * 0.9)}KiB") <= whole * 0.9
    wrong = stepc("memory", "run.toml", "--memory.budget=12")
    assert wrong.returncode == 2
    assert wrong.stderr == 'stepc: memory budget is "12"; it is "none", "auto" or a size such as "12GiB"\n'


PARALLEL = ("memory", "run.toml", "--train.batch_size=8")


def test_what_one_rank_takes_and_sends(stepc):
    result = stepc(*PARALLEL, "--parallel.dp_shard=8", "--picture", "rank.svg")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("one of 8 ranks (dp_shard=8), zero 3\npeak ")
    for word in ("parameters", "optimizer state", "activations", "arena", "predicted time"):
        assert word in result.stdout, result.stdout
    assert "padded" not in result.stdout
    assert (stepc.path / "rank.svg").read_text().startswith("<svg")
    sent = {line.split()[0] for line in result.stdout.splitlines() if " dp_shard " in line}
    assert sent == {"all_gather", "all_reduce", "reduce_scatter"}


def test_zero_divides_what_it_says(stepc):
    def of(pattern, *more):
        result = stepc(*PARALLEL, "--model.compute=float32", *more)
        assert result.returncode == 0, result.stderr
        return bytes_in(pattern, result.stdout)

    parameters, state = of("parameters"), of("optimizer state")
    for zero, parts in ((1, 1), (3, 4)):
        options = ("--parallel.dp_shard=4", f"--parallel.zero={zero}")
        assert of("optimizer state", *options) == pytest.approx(state / 4, rel=0.05)
        assert of("parameters", *options) == pytest.approx(parameters / parts, rel=0.05)
    assert of("optimizer state", "--parallel.dp_replicate=4") == pytest.approx(state, rel=0.05)
    assert of("parameters", "--parallel.tp=4") == pytest.approx(parameters / 4, rel=0.05)


@pytest.mark.parametrize("options, sent", [
    (["dp_replicate=8"], {"all_reduce": 2 * 7 / 8}),
    (["dp_shard=8", "zero=1"], {"reduce_scatter": 7 / 8, "all_gather": 7 / 8}),
    (["dp_shard=8", "zero=2"], {"reduce_scatter": 7 / 8, "all_gather": 7 / 8}),
])
def test_data_parallelism_sends_what_its_formula_says(stepc, options, sent):
    result = stepc(*PARALLEL, *(f"--parallel.{option}" for option in options))
    assert result.returncode == 0, result.stderr
    parameters = bytes_in("parameters", stepc(*PARALLEL).stdout)
    for op, times in sent.items():
        assert bytes_in(rf"\n  {op} +dp_\w+ +\d+", result.stdout) == pytest.approx(times * parameters, rel=0.02)


def test_fully_sharded_parameters_are_gathered_in_each_pass_that_uses_them(stepc):
    result = stepc(*PARALLEL, "--parallel.dp_shard=8")
    parameters = bytes_in("parameters", stepc(*PARALLEL).stdout)
    used_once = 2 * 4096 * 128 * 4  # the embedding, and the head in the loss that holds its own backward pass
    assert bytes_in(r"\n  all_gather +dp_shard +\d+", result.stdout) == \
        pytest.approx(7 / 8 * (2 * parameters - used_once), rel=0.02)


def test_what_does_not_divide_is_padded(stepc):
    batch = stepc(*PARALLEL, "--parallel.dp_shard=3")
    assert re.search("^padded: batch '0'.*, dimension 0: 8 over 3 ranks are 3 on each$", batch.stdout, re.MULTILINE)
    heads = stepc(*PARALLEL, "--parallel.tp=3")
    assert re.search(r"^padded: parameter 'model\.layers\.0\.self_attn\.q_proj\.weight' and \d+ more, dimension 0: "
                     "4 x 32 over 3 ranks are 64 on each$", heads.stdout, re.MULTILINE), heads.stdout


def sent_with_micro_batches(stepc, *options):
    """Of parameters in float32: what a rank sends with each micro-batch, and with the update, in parts of them."""
    command = (*PARALLEL, "--model.compute=float32", "--train.micro_batches=4")
    parameters = bytes_in("parameters", stepc(*command).stdout)
    result = stepc(*command, *(f"--parallel.{option}" for option in options))
    assert (result.returncode, result.stderr) == (0, "")
    micro, update = result.stdout.split("a micro-batch, 4 a step, sends")[1].split("the update, 1 a step, sends")
    return [{op: round(bytes_in(rf"{op} +dp_\w+ +\d+", part) / parameters, 2)
             for op in ("all_gather", "all_reduce", "reduce_scatter") if re.search(rf"{op} +dp_", part)}
            for part in (micro, update)]


@pytest.mark.parametrize("options, micro, update", [
    (["dp_replicate=2"], {"all_reduce": 0}, {"all_reduce": 1}),
    (["dp_shard=2", "zero=1"], {"all_reduce": 0},
     {"reduce_scatter": 0.5, "all_gather": 0.5, "all_reduce": 0}),
    (["dp_shard=2", "zero=2"], {"reduce_scatter": 0.5, "all_reduce": 0}, {"all_gather": 0.5, "all_reduce": 0}),
])
def test_micro_batches_reduce_once_a_step_or_each(stepc, options, micro, update):
    sent = sent_with_micro_batches(stepc, *options)
    assert sent == [pytest.approx(micro, abs=0.02), pytest.approx(update, abs=0.02)]


def test_held_gradients_are_split_as_zero_says(stepc):
    def gradients(*options):
        result = stepc(*PARALLEL, "--train.micro_batches=4", *(f"--parallel.{option}" for option in options))
        assert result.returncode == 0, result.stderr
        return bytes_in("gradients", result.stdout)

    whole = gradients("dp_replicate=2")
    assert gradients("dp_shard=2", "zero=1") == pytest.approx(whole, rel=0.03)
    assert gradients("dp_shard=2", "zero=2") == pytest.approx(whole / 2, rel=0.03)
    assert gradients("dp_shard=2", "tp=2") == pytest.approx(whole / 4, rel=0.03)


def test_a_rule_of_a_person_splits_what_it_says(stepc):
    config = stepc.path / "run.toml"
    config.write_text(config.read_text() + """
[parallel]
tp = 2
[[parallel.shard]]
param = "*.mlp.*_proj.weight"
dims = {1 = "tp"}
""")
    ruled = stepc(*PARALLEL)
    assert ruled.returncode == 0, ruled.stderr
    config.write_text(config.read_text().split("[[parallel.shard]]")[0])
    assert ruled.stdout != stepc(*PARALLEL).stdout


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def bytes_in(pattern, text):
    number, unit = re.search(pattern + r" *([\d.]+) (\w+)", text).groups()
    return float(number) * UNITS[unit]


@pytest.fixture
def words(stepc):
    words = "the cat sat on the mat and the dog ran over the hill to see it ".split()
    (stepc.path / "words.txt").write_text(" ".join(words[i * i % len(words)] for i in range(60_000)))


@pytest.fixture
def larger(stepc, words):
    """Runs whose steps are much larger than what a process takes by chance."""
    def options(preset, compute, batch_size):
        stepc("init", "larger", f"--preset={preset}")
        return ("run.toml", "--model.path=larger", f"--model.compute={compute}", '--data.train=["words.txt"]',
                "--data.seq_len=256", f"--train.batch_size={batch_size}", "--train.steps=3", "--output.save_every=0")
    return options


@pytest.mark.parametrize("preset, compute, batch_size, budget", [
    ("llama-2m", "float32", 40, "none"),
    ("llama-2m", "float32", 40, "300MiB"),
    ("qwen3-10m", "bfloat16", 8, "none"),
    ("qwen3-10m", "bfloat16", 8, "350MiB"),
])
def test_a_run_takes_its_plan_from_the_start(stepc, larger, preset, compute, batch_size, budget):
    run = stepc("train", *larger(preset, compute, batch_size), f"--memory.budget={budget}")
    assert run.returncode == 0, run.stderr
    assert_takes_its_plan(run)


def test_a_run_whose_parameters_outweigh_its_activations_takes_its_plan(stepc, larger):
    options = larger("bench-10m", "bfloat16", 1)
    config = json.loads((stepc.path / "larger/config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 16000,
               "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    (stepc.path / "larger/config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(stepc.path / "larger"))
    model.save_pretrained(stepc.path / "larger")
    run = stepc("train", *options)
    assert run.returncode == 0, run.stderr
    assert_takes_its_plan(run)


def assert_takes_its_plan(run):
    assert "a run takes" in run.stdout
    assert "compared before the first of them with the plain graph" in run.stdout, run.stdout
    assert "0 recorded, 0 eager" in run.stdout, run.stdout
    # Start, capture, verification and loading included; "at most" is the system's count for the process.
    resident = r"resident memory .* the plan's [\d.]+ \w+:"
    loaded_and_plan, peak = bytes_in(resident, run.stdout), bytes_in(resident + r" [\d.]+ \w+; at most", run.stdout)
    assert peak <= 1.05 * loaded_and_plan, run.stdout


def test_what_the_machine_does_not_have_is_refused_before_it_is_taken(stepc, larger):
    refused = stepc("train", *larger("llama-2m", "float32", 20000))
    assert refused.returncode == 2
    assert re.fullmatch(r"stepc: training larger needs at least [\d.]+ [GT]iB of memory, there is [\d.]+ [GT]iB\n",
                        refused.stderr), refused.stderr
