"""step.save() and step.load() of one process: what goes on is what never stopped. test_on_ranks.py has those of ranks."""

import collections
import json
import math
import os
import random
import shutil
import subprocess
import warnings

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers

import stepc
from stepc import plain

VOCABULARY, LENGTH = 64, 8


class Training:
    """A model with dropout and batch norm, a shuffled loader, a scheduler that the step does not reach."""

    def __init__(self, seed, width=8):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3),
                                         torch.nn.Linear(width, 1))
        self.model.register_buffer("seen", torch.zeros(()), persistent=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 5], gamma=0.5)
        data = torch.utils.data.TensorDataset(torch.randn(20, 6, generator=torch.Generator().manual_seed(0)))
        self.loader = stepc.AsyncLoader(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
        self.step = stepc.accelerate(self.train_step, config=stepc.Config(capture="virtual"))

    def train_step(self, x):
        loss = (self.model(x) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.model.seen += 1
        return loss.detach()

    def epochs(self, until, save_after=None, at=None):
        """Losses by number of batches, of epochs of 5; saved in the midst of one."""
        losses = []
        while len(losses) < until:
            for (x,) in self.loader:
                losses.append(self.step(x).item())
                self.scheduler.step()
                if len(losses) == save_after:
                    self.step.save(at, scheduler=self.scheduler, loader=self.loader, note={"epoch": 1})
                if len(losses) == until:
                    break
        return losses

    def load(self, at):
        return self.step.load(at, scheduler=self.scheduler, loader=self.loader)


def test_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    first = Training(0)
    losses = first.epochs(13, save_after=7, at=tmp_path)
    assert len(set(losses)) == 13
    again = Training(1)
    loaded = again.load(tmp_path)
    assert loaded.directory == str(tmp_path / "checkpoint-000007") and loaded.step == 7
    assert loaded.state["note"] == {"epoch": 1} and again.model.seen == 7
    assert again.epochs(6) == losses[7:]
    assert again.scheduler.get_last_lr() == first.scheduler.get_last_lr()
    states = [one.state_dict() for one in (first.model, again.model)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert again.step.save(tmp_path).endswith("checkpoint-000013")


def test_checkpoint_of_transformers_is_a_model_directory(tmp_path):
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stepc.accelerate(train_step)
    step(torch.randint(VOCABULARY, (2, LENGTH)))
    path = step.save(tmp_path)
    assert {"config.json", "model.safetensors", "manifest.json"} <= set(os.listdir(path))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path)
    for name, one in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], one), name


def test_what_no_step_changes_is_one_file_of_all_checkpoints(tmp_path, build_dir):
    config = transformers.LlamaConfig(vocab_size=6000, hidden_size=48, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    model.model.embed_tokens.requires_grad_(False)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)

    def train_step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stepc.accelerate(train_step)
    ids = torch.randint(6000, (2, LENGTH))
    paths = []
    for _ in range(3):
        step(ids)
        paths.append(step.save(tmp_path))
    kept, trained = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert len({os.stat(os.path.join(path, kept)).st_ino for path in paths}) == 1
    assert len({os.stat(os.path.join(path, trained)).st_ino for path in paths}) == 3
    for path in paths[:2]:  # the last one is enough
        shutil.rmtree(path)
    merged = {name: torch.zeros_like(one) for name, one in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.load(merged, storage_reader=dcp.HuggingFaceStorageReader(str(paths[2])), no_dist=True)
    subprocess.run([build_dir / "src/stepc", "export", paths[2], tmp_path / "exported"], check=True, capture_output=True)
    loaded, exported = (transformers.AutoModelForCausalLM.from_pretrained(each).state_dict()
                        for each in (paths[2], tmp_path / "exported"))
    for name, one in model.state_dict().items():
        assert torch.equal(loaded[name], one) and torch.equal(exported[name], one) and torch.equal(merged[name], one), name
    assert step.load(tmp_path).step == 3


def test_newest_whole_checkpoint_counts(tmp_path):
    training = Training(0)
    training.epochs(2)
    training.step.save(tmp_path)
    with open(os.path.join(training.step.save(tmp_path, step=9), "model.safetensors"), "r+b") as file:
        file.write(b"x")
    assert Training(1).step.load(tmp_path).step == 2


@pytest.mark.parametrize("change, said", [
    (lambda at: at / "nowhere", "nowhere is no checkpoint, and none is in it"),
    (lambda at: at / "checkpoint-000001", "checkpoint-000001: parameter '0.weight' has the shape [8, 6], the program's is [9, 6]"),
])
def test_what_does_not_fit_changes_nothing(tmp_path, change, said):
    training = Training(0)
    training.epochs(1)
    training.step.save(tmp_path)
    other = Training(1, width=9)
    before = [one.clone() for one in other.model.parameters()]
    with pytest.raises(stepc.UserError) as error:
        other.step.load(change(tmp_path))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert all(torch.equal(*both) for both in zip(before, other.model.parameters())) and not other.optimizer.state


def test_names_are_compared_before_anything_changes(tmp_path):
    training = Training(0)
    training.epochs(1)
    training.step.save(tmp_path, scheduler=training.scheduler)
    again = Training(1)
    before = again.model[0].weight.clone()
    with pytest.raises(stepc.UserError, match="checkpoint-000001 has no 'loader': save\\(\\) was given scheduler"):
        again.load(tmp_path)
    assert torch.equal(again.model[0].weight, before)
    with pytest.raises(stepc.UserError, match=r"^state.note is a complex, and a checkpoint holds numbers, texts, tensors"):
        training.step.save(tmp_path, note=1j)


def test_values_come_back_as_they_were():
    values = {"a": [1, 0.1, math.inf, None, True, "text"], "betas": (0.9, 0.999), "by": {3: "three"},
              "count": collections.Counter({5: 2}), "tensor": torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16),
              "empty": torch.empty(0, 3)}
    text = plain.to_json(values, "state")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    back = plain.from_json(text)
    assert torch.equal(back.pop("tensor"), values.pop("tensor"))
    assert back.pop("empty").shape == values.pop("empty").shape
    assert back == values and type(back["betas"]) is tuple and type(back["count"]) is collections.Counter


@pytest.mark.parametrize("text", [None, "", "[]", '{"optimizers": {}}', '{"optimizers": {}, "schedulers": {}, "state": 3}',
                                  '{"optimizers": {"a": {"stepc": "tensor", "dtype": "load", "shape": [], "data": ""}}}',
                                  '{"optimizers": {"a": {"stepc": "module", "is": []}}}'])
def test_state_of_others_is_one_line_and_changes_nothing(tmp_path, text):
    """A checkpoint that is whole, and not of step.save(): one of `stepc train` has no such file."""
    training = Training(0)
    training.epochs(2)
    at = training.step._engine.save(os.fspath(tmp_path), 2, {} if text is None else {"program_state.json": text})
    training.epochs(2)
    before = {name: one.clone() for name, one in training.model.state_dict().items()}
    with pytest.raises(stepc.UserError, match="program_state.json is damaged or missing: ") as error:
        training.load(at)
    assert "\n" not in str(error.value)
    assert all(torch.equal(one, before[name]) for name, one in training.model.state_dict().items())


@pytest.mark.parametrize("options", ["3", "{}", '{"groups": [3], "numbers": []}', '{"groups": [], "numbers": [], "own": []}'])
def test_options_of_no_optimizer_are_one_line_and_change_nothing(tmp_path, options):
    training = Training(0)
    training.epochs(2)
    training.step.save(tmp_path)
    (path,) = tmp_path.glob("*/program_state.json")
    record = json.loads(path.read_text())
    record["optimizers"] = dict.fromkeys(record["optimizers"], json.loads(options))
    at = training.step._engine.save(os.fspath(tmp_path), 3, {"program_state.json": json.dumps(record)})
    training.epochs(2)
    before = {name: one.clone() for name, one in training.model.state_dict().items()}
    with pytest.raises(stepc.UserError, match="program_state.json is damaged: what it has of '.*' is not an optimizer's$"):
        training.step.load(at)
    assert all(torch.equal(one, before[name]) for name, one in training.model.state_dict().items())


class CountsBeside(torch.optim.Optimizer):
    """As MADGRAD: a tensor and a number in the state that belong to no parameter."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.05})
        self.state["k"], self.state["calls"] = torch.tensor([0.0]), 0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"] / (1 + self.state["k"]))
        self.state["k"] += 1
        self.state["calls"] += 1


def test_what_an_optimizer_counts_beside_its_parameters_comes_back(tmp_path):
    def made(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 1)
        optimizer = CountsBeside(model.parameters())

        def step(x):
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return stepc.accelerate(step, config=stepc.Config(mode="exact")), optimizer

    batches = [torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) for i in range(16)]
    step, _ = made(0)
    losses = [step(x).item() for x in batches[:10]]
    step.save(tmp_path)
    losses += [step(x).item() for x in batches[10:]]
    again, optimizer = made(1)
    again(batches[0])
    again.load(tmp_path)
    assert optimizer.state["calls"] == 10 and optimizer.state["k"].item() == 10
    assert [again(x).item() for x in batches[10:]] == losses[10:]


def made_over(ids, seed, workers):
    """A step that counts what it is given, and a shuffled loader of ids."""
    torch.manual_seed(seed)
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train_step(x):
        loss = (weight * x.float()).sum() + torch.rand(())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    options = {"num_workers": 1, "persistent_workers": True} if workers else {"generator": torch.Generator().manual_seed(1)}
    data = torch.utils.data.DataLoader(ids, batch_size=2, shuffle=True, **options)
    return stepc.accelerate(train_step, config=stepc.Config(mode="exact")), stepc.AsyncLoader(data)


@pytest.mark.parametrize("workers, place, goes_on_in", [(False, (0, 6), 0), (False, (0, None), 1), (True, (1, 3), 1)])
def test_checkpoint_has_the_order_of_its_loader(tmp_path, workers, place, goes_on_in):
    def run(step, loader, first=0):
        seen = []
        for epoch in range(first, 3):
            for count, x in enumerate(loader, 1):
                seen.append((x.tolist(), step(x).item()))
                if (epoch, count) == place:
                    at.append((step.save(tmp_path, loader=loader), len(seen)))
            if (epoch, None) == place:
                at.append((step.save(tmp_path, loader=loader), len(seen)))
        return seen

    at = []
    seen = run(*made_over(range(11), 0, workers))
    (path, count), = at
    step, loader = made_over(range(11), 5, workers)
    step.load(path, loader=loader)
    place = None, None
    assert run(step, loader, first=goes_on_in) == seen[count:]


def test_generators_that_a_step_draws_from_come_back(tmp_path):
    def made(seed):
        own, dice, source = torch.Generator().manual_seed(seed), random.Random(seed), numpy.random.default_rng(seed)
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x):
            noise = torch.rand(3, generator=own) * dice.random() + float(source.random()) + random.random() * numpy.random.rand()
            (weight * (x + noise)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return noise

        return stepc.accelerate(step, config=stepc.Config(mode="exact"))

    step, x = made(0), torch.ones(3)
    for _ in range(6):
        step(x)
    step.save(tmp_path)
    drawn = [step(x).tolist() for _ in range(4)]
    random.seed(9)
    again = made(1)
    again.load(tmp_path)
    assert [again(x).tolist() for _ in range(4)] == drawn


class Float32Momentum(torch.optim.Optimizer):
    """Its state has another type than bfloat16 parameters."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(one, dtype=torch.float32)
                state["momentum"].mul_(0.9).add_(one.grad.float())
                one.sub_((group["lr"] * state["momentum"]).to(one.dtype))


@pytest.mark.parametrize("kind, rate", [(torch.optim.AdamW, 1e-7), (Float32Momentum, 1e-7), (Float32Momentum, 0.5)])
def test_bfloat16_goes_on_in_its_types_and_bits(tmp_path, kind, rate):
    """With a rate below the weights' resolution too, which only the moments remember."""
    def made(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(8, 4).bfloat16()
        optimizer = kind(model.parameters(), lr=rate)

        def step(x):
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return stepc.accelerate(step, config=stepc.Config(mode="exact")), model, optimizer

    def state_of(model, optimizer):
        states = [optimizer.state[one] for one in model.parameters()]
        return {f"{i}.{name}": one for i, state in enumerate([dict(model.named_parameters()), *states])
                for name, one in state.items()}

    batches = [torch.randn(8, 8, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(12)]
    step, *first = made(0)
    for x in batches[:6]:
        step(x)
    step.save(tmp_path)
    losses = [step(x).item() for x in batches[6:]]
    again, *second = made(1)
    again.load(tmp_path)
    assert [again(x).item() for x in batches[6:]] == losses
    wanted, got = state_of(*first), state_of(*second)
    assert wanted.keys() == got.keys() and any(one.dtype is torch.float32 for one in got.values())
    assert all(one.dtype is got[name].dtype and torch.equal(one, got[name]) for name, one in wanted.items())


def test_a_step_that_virtual_capture_cannot_hold_says_so_at_once(tmp_path):
    """Its first calls round as eager's, so that a run that goes on is not bit-equal."""
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = Float32Momentum([weight], lr=0.1)

    def step(x):
        loss = (weight * x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    fast = stepc.accelerate(step, config=stepc.Config(capture="virtual"))
    fast(torch.ones(8))
    (warning,) = fast.stats["warnings"]
    assert warning.startswith("the step is captured by running it: Float32Momentum") and "also after load()" in warning
