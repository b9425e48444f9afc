"""The package as a person meets it: what is found by itself, what is said about a plan, and how mistakes are answered."""

import functools
import inspect
import typing
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import BatchEncoding, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

import stepc
from harness import Arguments, Training, accelerate_given, decay, leaves, run_twins, source_of

STATS = ("recordings", "replays", "eager_calls", "plans", "guard_misses", "nodes", "instructions", "warnings")


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 4))


def make_batch(i):
    return torch.randn(8, 6, generator=source_of(i))


def update(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def parts():
    model = mlp()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


# ---- where modules and optimizers are found


def in_closure():
    model, optimizer = parts()
    return lambda x: update(model, optimizer, x), model, optimizer


def in_self():
    class Trainer:
        def __init__(self):
            self.parts = dict(zip(("model", "optimizer"), parts()))

        def step(self, x):
            return update(self.parts["model"], self.parts["optimizer"], x)

    trainer = Trainer()
    return trainer.step, *trainer.parts.values()


def in_globals():
    scope = {"update": update}
    scope["model"], scope["optimizer"] = parts()
    exec("def step(x):\n    return update(model, optimizer, x)", scope)
    return scope["step"], scope["model"], scope["optimizer"]


def in_partial():
    model, optimizer = parts()
    return functools.partial(update, model, optimizer), model, optimizer


def in_helper():
    """The step calls a function, whose closure holds them."""
    model, optimizer = parts()

    def inner(x):
        return update(model, optimizer, x)

    def step(x):
        return inner(x)

    return step, model, optimizer


def in_defaults():
    model, optimizer = parts()

    def step(x, model=model, optimizer=optimizer):
        return update(model, optimizer, x)

    return step, model, optimizer


def in_callable_object():
    class Step:
        def __init__(self):
            self.model, self.optimizer = parts()

        def __call__(self, x):
            return update(self.model, self.optimizer, x)

    step = Step()
    return step, step.model, step.optimizer


def in_decorated():
    model, optimizer = parts()

    def twice(function):
        @functools.wraps(function)
        def wrapped(x):
            return function(x) * 2

        return wrapped

    return twice(lambda x: update(model, optimizer, x)), model, optimizer


PLACES = [in_closure, in_self, in_globals, in_partial, in_helper, in_defaults, in_callable_object, in_decorated]


def build_from(place):
    step, model, optimizer = place()
    return Training(step, [model], [optimizer], [decay(optimizer)])


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_modules_and_optimizers_are_found(place):
    run_twins(lambda: build_from(place), make_batch)


def test_modules_and_optimizers_may_be_given():
    run_twins(lambda: build_from(in_closure), make_batch, accelerate=accelerate_given)


def test_a_tensor_of_a_module_that_was_not_given():
    """It is found all the same, or named by its shape: never read from where it lay while recorded."""

    def build():
        model, optimizer = parts()
        other = nn.Linear(6, 7)

        def step(x):
            return update(model, optimizer, x) + other(x).mean()

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=other)

    def accelerate(training, config):
        return stepc.accelerate(training.step, modules=training.modules, optimizers=training.optimizers,
                                config=stepc.Config(mode="exact"))

    def replace(i, training):
        training.watch.weight.data = torch.full((7, 6), 0.1 * i)

    step = run_twins(build, make_batch, steps=12, replays=0, accelerate=accelerate, before=replace)
    assert step.stats["replays"] >= 5 or any("[7, 6]" in warning for warning in step.stats["warnings"]), step.stats


# ---- decorators


@pytest.mark.parametrize("decorate", [stepc.accelerate, stepc.accelerate(config=stepc.Config(mode="exact"))],
                         ids=["plain", "configured"])
def test_methods_are_accelerated_for_each_object(decorate):
    class Trainer:
        def __init__(self):
            self.model, self.optimizer = parts()

        @decorate
        def step(self, x):
            """One step."""
            return update(self.model, self.optimizer, x)

    one, two = Trainer(), Trainer()
    before = one.model[0].weight.detach().clone()
    for i in range(6):
        two.step(make_batch(i))
    assert two.step.stats["replays"] > 0 and one.step.stats["recordings"] == 0
    assert torch.equal(one.model[0].weight, before) and one.step is one.step and one.step is not two.step
    assert Trainer.step.__doc__ == one.step.__doc__ == "One step."


def test_a_function_of_a_class_is_accelerated_as_it_is():
    class Task:
        def step(model, optimizer, x):
            return update(model, optimizer, x)

    step = stepc.accelerate(Task.step, config=stepc.Config(mode="exact"))
    model, optimizer = parts()
    for i in range(6):
        step(model, optimizer, make_batch(i))
    assert step.stats["recordings"] + step.stats["replays"] + step.stats["eager_calls"] >= 6


def test_a_configured_decorator_of_a_function():
    model, optimizer = parts()

    @stepc.accelerate(config=stepc.Config(mode="exact"))
    def step(x):
        return update(model, optimizer, x)

    for i in range(6):
        step(make_batch(i))
    assert step.config.mode == "exact" and step.stats["replays"] > 0


# ---- batches and results


@dataclass
class Sample:
    x: torch.Tensor
    extra: dict
    name: str = "sample"


Pair = namedtuple("Pair", ["first", "second"])
BATCHES = {
    "dataclass": lambda x, y: Sample(x, {"y": [y, None]}),
    "named_tuple": lambda x, y: [Pair(x, {"y": y})],
    "encoding": lambda x, y: BatchEncoding({"x": x, "y": y}),
    "ordered": lambda x, y: OrderedDict(b=x, a=(y, 3, "text")),
    "keywords": lambda x, y: Arguments((x,), {"y": y, "flag": True}),
}


def tensors_of(value):
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("kind", BATCHES)
def test_nests_go_in_and_come_out(kind):
    """Whatever holds the tensors; the result holds what the step computed and a part of the batch itself."""

    def build():
        model, optimizer = parts()

        def step(*args, **kwargs):
            x, y = tensors_of([args, kwargs])
            loss = update(model, optimizer, x + y)
            return {"loss": loss, "given": args[0] if args else None, "sum": [x.sum(), (y.sum(),)], "nothing": None}

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: BATCHES[kind](make_batch(i), make_batch(100 + i)))


@pytest.mark.parametrize("result", [
    lambda loss, model: None,
    lambda loss, model: (loss, loss),
    lambda loss, model: (loss, loss.detach(), loss.view(1)),
    lambda loss, model: {"weight": model[0].weight, "loss": loss},
    lambda loss, model: [parameter.detach()[0] for parameter in model.parameters()],
    lambda loss, model: torch.ones(2),
], ids=["nothing", "twice", "views", "parameter", "parameter_views", "constant"])
def test_results_of_every_kind(result):
    """No later step writes into what a step has made; a parameter that is returned shows what later steps make of it."""

    def build():
        model, optimizer = parts()
        return Training(lambda x: result(update(model, optimizer, x), model), [model], [optimizer], [decay(optimizer)])

    run_twins(build, make_batch)


@dataclass(frozen=True)
class Result:
    """Its constructor would not take back what it holds."""

    loss: torch.Tensor
    twice: torch.Tensor = field(init=False)
    unset: torch.Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "twice", self.loss * 2)
        object.__setattr__(self, "half", self.loss / 2)


def test_dataclasses_come_out_as_the_step_made_them():
    model, optimizer = parts()
    step = stepc.accelerate(lambda x: Result(update(model, optimizer, x).detach()),
                            config=stepc.Config(mode="exact"))
    for i in range(8):
        result = step(make_batch(i))
        assert type(result) is Result and not hasattr(result, "unset")
        assert result.twice == result.loss * 2 and result.half == result.loss / 2
    assert step.stats["replays"] > 0


@dataclass
class Derived:
    x: torch.Tensor
    rows: int = field(init=False)

    def __post_init__(self):
        self.rows = len(self.x)


def test_a_dataclass_with_derived_fields_in_a_loop():
    class Net(nn.Linear):
        def forward(self, sample):
            return Derived(super().forward(sample.x) / sample.rows)

    model, optimizer = stepc.accelerate(net := Net(6, 4), torch.optim.SGD(net.parameters(), lr=0.1))
    for i in range(8):
        result = model(Derived(make_batch(i).requires_grad_()))
        assert result.rows == 8 and result.x.requires_grad
        result.x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- what a step says about itself


@pytest.fixture(scope="module")
def accelerated():
    torch.manual_seed(0)
    model, optimizer = parts()
    step = stepc.accelerate(lambda x: update(model, optimizer, x), config=stepc.Config(mode="exact"))
    for i in range(8):
        step(make_batch(i))
    return step


def test_stats(accelerated):
    stats = accelerated.stats
    assert set(STATS) <= set(stats)
    assert stats["recordings"] - stats["checks"] in (2, 3) and stats["plans"] == 1 and stats["warnings"] == []
    assert stats["recordings"] + stats["replays"] + stats["eager_calls"] == 8
    assert 0 < stats["instructions"] < stats["nodes"]


def test_report_has_planned_beside_measured(accelerated):
    report = accelerated.report()
    assert "planned" in report and "measured" in report and str(accelerated.stats["nodes"]) in report.replace(",", "")


def test_graph_text_names_ops_modules_and_phases(accelerated, tmp_path):
    text = accelerated.graph_text()
    for word in ("aten::addmm", "aten::tanh", "forward", "backward", "update"):
        assert word in text, f"{word} is not in the graph's text"
    accelerated.save_graph(tmp_path / "step.txt")
    assert (tmp_path / "step.txt").read_text() == text


def test_graph_before_there_is_one():
    model, optimizer = parts()
    step = stepc.accelerate(lambda x: update(model, optimizer, x))
    assert step.graph_text() == "" and isinstance(step.report(), str)


def test_step_looks_like_the_function_it_stands_for():
    model, optimizer = parts()

    def train_step(x: torch.Tensor) -> torch.Tensor:
        """One step."""
        return update(model, optimizer, x)

    step = stepc.accelerate(train_step)
    assert step.__name__ == "train_step" and step.__doc__ == "One step."
    assert str(inspect.signature(step)) == str(inspect.signature(train_step))


def test_everything_public_is_documented_and_typed():
    for name in ("accelerate", "plan", "Config", "AsyncLoader", "UserError"):
        assert inspect.getdoc(getattr(stepc, name)), f"stepc.{name} has no docstring"
    for function in (stepc.accelerate, stepc.plan, stepc.AsyncLoader.__init__):
        hints = typing.get_type_hints(function)
        parameters = [name for name in inspect.signature(function).parameters if name != "self"]
        assert set(parameters) <= set(hints), f"{function.__qualname__}: {set(parameters) - set(hints)} have no type"


# ---- mistakes


@pytest.mark.parametrize("fields, text", [
    ({"mode": "fastest"}, "fastest"),
    ({"verify": "sometimes"}, "sometimes"),
    ({"verify": "every:0"}, "every:0"),
    ({"verify": "every:two"}, "every:two"),
    ({"python": "pur"}, 'python is "pur"; it is one of "auto", "watch", "trace", "pure"'),
    ({"pace": "on"}, 'pace is "on"; it is "auto" or "off"'),
    ({"pace": False}, 'pace is False; it is "auto" or "off"'),
    ({"precision": "fp4"}, 'precision is \'fp4\'; it is "bf16", "fp8" or None'),
    ({"fp8_recipe": "blockwise"}, 'fp8_recipe is "blockwise"; it is "tensorwise" or "rowwise"'),
    ({"fp8_recipe": None}, 'fp8_recipe is None; it is "tensorwise" or "rowwise"'),
    ({"precision": "fp8", "mode": "exact"}, 'mode is "exact", which runs the step\'s calls as they are, and precision'),
    ({"max_plans": 0}, "max_plans"),
    ({"mode": None}, 'mode is None; it is one of "fast", "exact", "eager"'),
    ({"verify": True}, 'verify is True; it is one of "first"'),
    ({"verify": 100}, "verify is 100"),
    ({"memory_budget": 2**34}, "memory_budget is 17179869184; it is .* such as \"12GiB\""),
    ({"max_plans": 2.5}, "max_plans is 2.5; it is a whole number"),
    ({"max_recordings": True}, "max_recordings is True"),
    ({"precision": torch.bfloat16}, "precision is torch.bfloat16"),
    ({"kernel_directory": 3}, "kernel_directory is 3"),
])
def test_bad_options_are_named_in_one_line(fields, text):
    with pytest.raises(stepc.UserError, match=text) as caught:
        stepc.accelerate(lambda x: x, modules=[mlp()], optimizers=[], config=stepc.Config(**fields))
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_refused():
    with pytest.raises((TypeError, stepc.UserError), match="mood"):
        stepc.Config(mood="exact")


@pytest.mark.parametrize("config", ["exact", {"mode": "exact"}], ids=["text", "dict"])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(stepc.UserError, match="it is a stepc.Config") as caught:
        stepc.accelerate(lambda x: x, config=config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 3, "train_step", torch.zeros(2)], ids=lambda wrong: type(wrong).__name__)
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(stepc.UserError) as caught:
        stepc.accelerate(wrong)
    assert "\n" not in str(caught.value)


def fully_sharded(_):
    from torch.distributed.fsdp import fully_shard
    model = mlp()
    fully_shard(model)
    return model


def parallelized(_):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    return parallelize_module(mlp(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})


def loaded_as_a_distributed_config_says(folder):
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2))


SHARDERS = [fully_sharded, parallelized]
if hasattr(DistributedConfig, "fsdp_size"):  # transformers 5
    SHARDERS.append(loaded_as_a_distributed_config_says)


@pytest.mark.parametrize("shard", SHARDERS)
def test_a_model_that_is_sharded_already_is_refused_in_one_line(shard, tmp_path):
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())  # which sends nothing
    try:
        model = shard(tmp_path)
        for accelerate in (lambda: stepc.accelerate(model), lambda: stepc.accelerate(lambda x: model(x).sum().backward())):
            with pytest.raises(stepc.UserError, match=r'is a DTensor, .*stepc\.Config\(parallel="fsdp"\)') as caught:
                accelerate()
            assert "\n" not in str(caught.value)
    finally:
        torch.distributed.destroy_process_group()


def test_user_error_is_an_exception_of_the_package():
    assert issubclass(stepc.UserError, Exception) and stepc.UserError.__module__.startswith("stepc")
