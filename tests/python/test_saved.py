"""step.save() and step.load() of one process: what goes on is what never stopped. test_on_ranks.py has those of ranks."""

import collections
import json
import math
import os

import pytest
import torch
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
