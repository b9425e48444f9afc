"""`stepc train` on models that transformers made, and what it leaves in the hands of transformers and peft.

    pytest tests/parity/test_train.py
"""

import fcntl
import json
import re
import shutil

import pytest
import sentencepiece
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from test_baichuan import CONFIG as BAICHUAN, SIZES as BAICHUAN_SIZES, random_weights
from test_families import build_model, config_of
from transformers import AutoModelForCausalLM, AutoTokenizer

FAMILIES = ["llama", "llama3.1", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "glm", "glm4", "gemma2", "gpt2", "bloom"]
VOCAB = 320  # the bytes of the workspace's tokenizer, and some


@pytest.fixture
def chats(stepc):
    """A workspace whose data are texts and chats, several documents a row."""
    with open(stepc.path / "lines.jsonl", "w") as file:
        for i in range(120):
            file.write(json.dumps({"text": f"The square of {i} is {i * i}, and that of {i + 1} is more."}) + "\n")
    with open(stepc.path / "chats.jsonl", "w") as file:
        for i in range(120):
            file.write(json.dumps({"messages": [{"role": "user", "content": f"What is {i} + {i}?"},
                                                {"role": "assistant", "content": f"It is {2 * i}."}]}) + "\n")
    stepc.mixture = ["--data.train=['lines.jsonl', 'chats.jsonl']", "--data.weights=[1, 1]", "--data.chat=chatml"]
    return stepc


def put_model(stepc, model):
    """The model in place of the workspace's, with that one's tokenizer."""
    for file in ["model.safetensors", "config.json", "generation_config.json"]:
        (stepc.path / "model" / file).unlink()
    model.save_pretrained(stepc.path / "model")


def held_out(stepc, *arguments):
    result = stepc("eval", "run.toml", "--data.eval_windows=1000", *arguments)
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split("held-out loss ")[1].split()[0])


def losses(stepc, run="out"):
    lines = [json.loads(line) for line in (stepc.path / run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_from_its_directory(chats, family):
    config = config_of(family)
    config.vocab_size = VOCAB
    put_model(chats, build_model(config))
    result = chats("train", "run.toml", *chats.mixture, "--train.steps=6", "--optim.lr=3e-3", "--optim.clip=100")
    assert result.returncode == 0, result.stderr
    assert "captured" in result.stdout + result.stderr and "runs eagerly" not in result.stdout + result.stderr
    before, after = (load_file(chats.path / name / "model.safetensors") for name in ["model", "out/model"])
    assert before.keys() == after.keys()
    assert {name: tensor.shape for name, tensor in before.items()} == \
        {name: tensor.shape for name, tensor in after.items()}
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == len(before), set(before) - set(changed)
    model, info = AutoModelForCausalLM.from_pretrained(chats.path / "out/model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.model_type == config.model_type
    assert losses(chats)[-1] < losses(chats)[0]


def test_one_source_of_the_prediction_from_the_start_to_the_end(chats):
    said = chats("train", "run.toml", *chats.mixture, "--train.steps=6").stdout
    assert re.search(r"predicted: \S+ \S+ a step, at least .*; from default rates, scaled by the matmuls measured here", said), said
    assert re.search(r"step time   predicted \S+ \S+ a step, from default rates, scaled by the matmuls measured here", said), said
    assert "measures this machine's" not in said


def test_baichuan_trains_from_its_directory(chats):
    config = {**BAICHUAN, **BAICHUAN_SIZES["13b"], "vocab_size": VOCAB}
    for file in (chats.path / "model").glob("*.safetensors"):
        file.unlink()
    save_file({name: weight.detach() for name, weight in random_weights(VOCAB).items()},
              chats.path / "model/model.safetensors")
    (chats.path / "model/config.json").write_text(json.dumps(config))
    result = chats("train", "run.toml", *chats.mixture, "--train.steps=4")
    assert result.returncode == 0, result.stderr
    before, after = (load_file(chats.path / name / "model.safetensors") for name in ["model", "out/model"])
    assert before.keys() == after.keys()
    written = json.loads((chats.path / "out/model/config.json").read_text())
    assert {name: value for name, value in written.items() if config.get(name) != value} == {}


def test_the_loss_of_packed_chats_is_that_of_the_chats_alone(chats):
    """transformers on each chat for itself, with the assistant's turns as labels: the same mean."""
    arguments = ["--data.train=chats.jsonl", "--data.eval=chats.jsonl", "--data.chat=chatml", "--data.seq_len=2000"]
    said = held_out(chats, *arguments)
    model = AutoModelForCausalLM.from_pretrained(chats.path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(chats.path / "model")
    total, count, position = 0.0, 0, 0
    texts = []
    for line in (chats.path / "chats.jsonl").read_text().splitlines():
        user, assistant = json.loads(line)["messages"]
        prompt = f"<|im_start|>user\n{user['content']}<|im_end|>\n<|im_start|>assistant\n"
        texts.append((prompt, f"{assistant['content']}<|im_end|>\n"))
    windows = (sum(len(prompt + answer) for prompt, answer in texts) - 1) // 2000 * 2000
    for prompt, answer in texts:
        size = len(prompt) + len(answer)
        # A chat that a window's border cuts is two documents there; the part behind it starts anew.
        cuts = [0] + [at for at in range(1, size) if (position + at) % 2000 == 0] + [size]
        ids = tokenizer(prompt + answer, return_tensors="pt")["input_ids"]
        for begin, end in zip(cuts, cuts[1:]):
            # The token behind the border is still the label of the one before it.
            labels = [at for at in range(begin + 1, min(end + 1, size))
                      if at >= len(prompt) and position + at - 1 < windows]
            if not labels:
                continue
            with torch.no_grad():
                logits = model(ids[:, begin:end]).logits[0]
            total += torch.nn.functional.cross_entropy(
                logits[[at - 1 - begin for at in labels]], ids[0, labels], reduction="sum").item()
            count += len(labels)
        position += size
    assert abs(said - total / count) < 2e-4, (said, total / count)


@pytest.mark.parametrize("family, targets", [("llama", ["all-linear"]), ("qwen3", ["q_proj", "down_proj"]),
                                             ("gpt2", ["c_attn"])])
def test_an_adapter_loads_in_peft(chats, family, targets):
    config = config_of(family)
    config.vocab_size = VOCAB
    put_model(chats, build_model(config))
    result = chats("train", "run.toml", *chats.mixture, "--train.steps=6", "--optim.lr=1e-2", "--lora.rank=4",
                   f"--lora.targets={targets}", "--output.save_every=3")
    assert result.returncode == 0, result.stderr
    assert not (chats.path / "out/model/model.safetensors").exists()
    assert losses(chats)[-1] < losses(chats)[0]

    # What stepc says about the adapter is what it says about the model that peft merges it into.
    said = held_out(chats, *chats.mixture)
    base = AutoModelForCausalLM.from_pretrained(chats.path / "model", dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, chats.path / "out/model").merge_and_unload()
    shutil.copytree(chats.path / "model", chats.path / "merged")
    merged.save_pretrained(chats.path / "merged")
    assert abs(said - held_out(chats, *chats.mixture, "--model", "merged")) < 2e-4
    assert abs(said - held_out(chats, *chats.mixture, "--model", "model")) > 1e-3


def test_two_runs_tokenise_once(chats):
    """Two processes that share a cache wait for who is at work in it; what one has made, the others take."""
    with open(chats.path / "lines.txt", "w") as file:
        for i in range(2_000):
            file.write(f"Line {i} says that {i * i} is a square.\n")
    (chats.path / "cache").mkdir()
    arguments = ["--data.train=lines.txt", "--data.cache=cache", "--train.steps=2"]
    with open(chats.path / "cache/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a third process at work
        runs = [chats.start("train", "run.toml", *arguments, f"--output.dir=run{i}") for i in range(2)]
        for run in runs:
            assert any("waiting for it" in line for line in run.stdout), run.communicate()
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert losses(chats, "run0") == losses(chats, "run1")

    made = {path: path.stat().st_mtime_ns for path in (chats.path / "cache").glob("*.tokens")}
    assert len(made) == 1
    assert chats("train", "run.toml", *arguments, "--output.dir=run2").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (chats.path / "cache").glob("*.tokens")} == made


def test_the_loss_of_chats_in_buckets_is_that_of_the_chats_alone(chats):
    arguments = ["--data.train=chats.jsonl", "--data.eval=chats.jsonl", "--data.chat=chatml", "--data.buckets=[90, 100]",
                 "--train.batch_size=3"]
    said = held_out(chats, *arguments)
    model = AutoModelForCausalLM.from_pretrained(chats.path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(chats.path / "model")
    total, count = 0.0, 0
    for line in (chats.path / "chats.jsonl").read_text().splitlines():
        user, assistant = json.loads(line)["messages"]
        prompt = f"<|im_start|>user\n{user['content']}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer(f"{prompt}{assistant['content']}<|im_end|>\n", return_tensors="pt")["input_ids"][0]
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
        total += torch.nn.functional.cross_entropy(logits[len(prompt) - 1:-1], ids[len(prompt):], reduction="sum").item()
        count += len(ids) - len(prompt)
    assert abs(said - total / count) < 2e-4, (said, total / count)


@pytest.mark.parametrize("how", [[], ["--train.capture=run", "--train.micro_batches=2"], ["--train.mode=exact"]])
def test_all_buckets_are_compiled_before_the_first_step(chats, how):
    result = chats("train", "run.toml", "--data.train=lines.jsonl", "--data.buckets=[60, 62, 70]", "--train.steps=8",
                   "--data.eval_fraction=0.05", *how)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    compiled = [line for line in lines if line.startswith("compiled the step for rows of ")]
    assert [line.split()[6] for line in compiled] == ["60", "62", "70"]
    assert lines.index(compiled[-1]) < next(i for i, line in enumerate(lines) if line.startswith("step 1/8"))
    plans = [line.split() for line in lines if line.startswith("  plans ")]
    assert plans and all(words[3:] == "0 of them after the warm-up".split() for words in plans), plans
    assert plans[0][1] == "3", plans


def test_a_tokenizer_model_and_no_tokenizer_json(chats, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("spm") / "tokenizer"
    words = (chats.path / "text.txt").read_text().split()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(words), model_prefix=str(prefix), vocab_size=48,
                                             model_type="bpe", minloglevel=2)
    (chats.path / "model/tokenizer.json").unlink()
    shutil.copy(f"{prefix}.model", chats.path / "model/tokenizer.model")
    result = chats("train", "run.toml", "--train.steps=2", "--data.seq_len=16")
    assert result.returncode == 0, result.stderr
    assert (chats.path / "out/model/tokenizer.model").read_bytes() == \
        (chats.path / "model/tokenizer.model").read_bytes()


@pytest.mark.parametrize("arguments, message", [
    (["--data.train=chats.jsonl"], "tokenizer_config.json: the model has no chat template; choose one of chatml"),
    (["--data.weights=[1, 2]"], "data.weights has 2 numbers and data.train 1 entries; give one for each"),
    (["--data.weights=[0]"], "data.weights: must be a list of numbers, above 0, at most 1000000, may be empty"),
    (["--data.eval=none.txt"], "cannot open none.txt: No such file or directory"),
    (["--data.train=none-*.txt"], "none-*.txt: no file has such a name"),
    (["--data.train=lines.jsonl", "--data.field=body"], 'lines.jsonl:1: "body" is missing'),
    (["--data.buckets=[40, 4096]"], "data.buckets = [40, 4096]: must be at most 2048, max_position_embeddings of model"),
    (["--data.buckets=[40, 20]"], "data.buckets = [40, 20]: 20 does not come behind 40; give them in ascending order"),
    (["--data.train=lines.jsonl", "--data.buckets=[8, 40]"], "tokens, and the largest of data.buckets is 40: add one of"),
    (["--optim.master_weights=false"], 'optim.master_weights = false is for model.compute = "bfloat16"'),
    (["--optim.name=adam"], "optim.name: must be one of adamw, sgd, agd, wsam, lion"),
    (["--lora.rank=2", "--lora.targets=['q']"], 'the adapter\'s target module "q" names no matrix'),
])
def test_mistakes_are_one_line(chats, arguments, message):
    result = chats("train", "run.toml", *arguments)
    assert result.returncode == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.stderr
