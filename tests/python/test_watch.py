"""What a step's Python reads and does: a step that only calls tensors' operators is replayed without its Python, and
every value that it read is noticed when it changes; of any other the report says why its Python has to run."""

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import os
import random
import re
import threading
import time
import types
import weakref
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss, relu
from torch.utils.checkpoint import checkpoint

import stepc
from stepc.watch import bytecode, opcodes
from stepc.module_calls import around_modules
from harness import Training, line_of, run_twins, source_of

EXACT = stepc.Config(mode="exact", python="watch")
CHANGED, STEPS, REPLAYS = 7, 14, 5


def make_batch(i):
    return torch.randn(4, 6, generator=source_of(i))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def parts(model=None):
    model = model or Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def reason_of(step, batches=3):
    """Records a step and returns why it is not earned; empty: it is."""
    accelerated = stepc.accelerate(step, config=EXACT)
    for i in range(batches):
        accelerated(make_batch(i))
    report = accelerated.report()
    reason = accelerated._scout.python_reason()
    assert ("python: watched" in report) == (reason == "") and reason in report
    return reason


# ---- earned


def plain():
    model, optimizer = parts()
    return lambda x: update(model(x).square().mean(), optimizer)


def clipped_and_scheduled_outside():
    model, optimizer = parts()
    torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def gradients_set_to_none_by_hand():
    model, optimizer = parts()

    def step(x):
        for parameter in model.parameters():
            parameter.grad = None
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@dataclasses.dataclass
class Settings:
    scale: float = 0.5
    smooth: bool = False
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2, 3])


class Trainer:
    unit = 2.0

    def __init__(self):
        self.model, self.optimizer = parts()
        self.settings = Settings()
        self.losses = {"square": lambda out: out.square().mean(), "abs": lambda out: out.abs().mean()}
        self.kind = "square"
        self.calls = 0
        self.history = []
        self.latest = None

    @property
    def factor(self):
        return self.settings.scale * self.unit

    def loss(self, out):
        return self.losses[self.kind](out) * self.factor

    def step(self, x):
        return update(self.loss(self.model(x)), self.optimizer)


def trainer_with_settings():
    return Trainer().step


def local_containers():
    model, optimizer = parts()

    def step(x):
        outputs, extra = [], {}
        for index in range(3):
            outputs.append(model(x) * index)
        extra["total"] = sum(output.square().mean() for output in outputs)
        extra.update(half=0.5)
        weights = sorted(extra)
        while outputs:
            outputs.pop()
        return update(extra["total"] * extra.pop("half") * len(weights), optimizer)

    return step


def local_objects_and_closures():
    model, optimizer = parts()

    class Sums:
        def __init__(self):
            self.total, self.count = 0.0, 0

        def add(self, value):
            self.total = self.total + value
            self.count += 1

    def step(x):
        sums, seen = Sums(), 0

        def add(value):
            nonlocal seen
            seen += 1
            sums.add(value)

        for part in model(x).unbind():
            add(part.square().sum())
        return update(sums.total / (sums.count + seen), optimizer)

    return step


def local_generators():
    model, optimizer = parts()

    def pieces(x):
        for row in x.split(2):
            yield model(row)

    def step(x):
        rows = iter(pieces(x))
        first = next(rows)
        return update(sum((row.square().mean() for row in rows), first.abs().mean()), optimizer)

    return step


def context_managers_and_decorators():
    model, optimizer = parts()

    @contextlib.contextmanager
    def scope(scale):
        yield scale

    @torch.no_grad()
    def norm(x):
        return x.norm()

    def step(x):
        with scope(2.0) as scale, torch.autocast("cpu", torch.bfloat16, enabled=False):
            loss = model(x).square().mean() * scale / norm(x)
        return update(loss, optimizer)

    return step


def partials_and_functionals():
    model, optimizer = parts()
    loss_of = functools.partial(mse_loss, reduction="sum")
    return lambda x: update(functools.reduce(torch.add, [loss_of(model(x), x[:, :3])]), optimizer)


def checkpointed():
    model, optimizer = parts()
    return lambda x: update(checkpoint(model, x, use_reentrant=False).square().mean(), optimizer)


class Swish(torch.autograd.Function):
    slope = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(Swish.slope * x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(Swish.slope * x)
        return gradient * (s + Swish.slope * x * s * (1 - s))


def own_autograd_function():
    model, optimizer = parts()
    return lambda x: update(Swish.apply(model(x)).square().mean(), optimizer)


def hooked():
    model, optimizer = parts()
    model.first.register_forward_hook(lambda module, inputs, output: output * 0.5)
    model.second.weight.register_hook(lambda gradient: gradient * 0.5)
    return lambda x: update(model(x).square().mean(), optimizer)


def two_optimizers():
    model, _ = parts()
    one = torch.optim.AdamW(model.first.parameters())
    two = torch.optim.SGD(model.second.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
        return {"loss": loss.detach(), "name": f"loss of {len(x)}"}

    return step


class CountingSGD(torch.optim.SGD):
    """Its Python runs at every replay."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


class Configuration:
    """Every look at an attribute is code of its own, as in the configurations of transformers."""

    def __init__(self):
        self.scale = 2.0

    def __getattribute__(self, name):
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)


def copied_settings():
    """What the step copies is its own."""
    (model, optimizer), settings = parts(), Configuration()

    def step(x):
        own = copy.deepcopy(settings)
        own.scale = own.scale + 1.0
        return update(model(x).square().mean() * own.scale, optimizer)

    return step


def optimizer_that_counts():
    model = Net()
    optimizer = CountingSGD(model.parameters())
    return lambda x: update(model(x).square().mean(), optimizer)


COLLECTOR = contextvars.ContextVar("collector", default=None)


def context_variable_for_a_while():
    """As transformers collects hidden states."""
    model, optimizer = parts()

    def collecting(module, inputs, output):
        if (collected := COLLECTOR.get()) is not None:
            collected.append(output)

    model.register_forward_hook(collecting)

    def step(x):
        collected = []
        token = COLLECTOR.set(collected)
        try:
            model(x)
        finally:
            COLLECTOR.reset(token)
        return update(collected[0].square().mean(), optimizer)

    return step


class Outputs(NamedTuple):
    logits: torch.Tensor
    scale: float = 1.0


def named_tuples():
    model, optimizer = parts()

    def step(x):
        out = Outputs(model(x), scale=0.5)
        out = out._replace(logits=out.logits * 2)
        return update(out.logits.square().mean() * out.scale, optimizer)

    return step


def batch_asked_for_what_it_lacks():
    """As transformers asks for arrays of other libraries."""
    model, optimizer = parts()
    return lambda x: update(model(x).square().mean() * (2.0 if hasattr(x, "jax") else 1.0), optimizer)


EARNED = [plain, clipped_and_scheduled_outside, gradients_set_to_none_by_hand, trainer_with_settings, local_containers,
          local_objects_and_closures, local_generators, context_managers_and_decorators, partials_and_functionals,
          checkpointed, own_autograd_function, hooked, two_optimizers, copied_settings, optimizer_that_counts,
          context_variable_for_a_while, batch_asked_for_what_it_lacks, named_tuples]


@pytest.mark.parametrize("build", EARNED, ids=lambda build: build.__name__)
def test_earned(build):
    assert reason_of(build()) == ""


def transformers_step(kind):
    transformers = pytest.importorskip("transformers")
    if kind == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 2}
        config = transformers.LlamaConfig(vocab_size=32, num_hidden_layers=2, num_attention_heads=4, **sizes)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=16)
        model = transformers.GPT2LMHeadModel(config)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step, scheduler


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_transformers_model_earns_it(kind):
    model, step, scheduler = transformers_step(kind)
    accelerated = stepc.accelerate(step, config=EXACT)
    for i in range(8):
        ids = torch.randint(0, 32, (2, 8), generator=source_of(i))
        accelerated({"input_ids": ids, "labels": ids})
        scheduler.step()
    assert accelerated._scout.python_reason() == ""
    assert accelerated.stats["replays"] >= 3 and not accelerated.stats["warnings"]


# ---- not earned

COUNT = 0


@functools.lru_cache
def cached_list():
    return []


LOG = logging.getLogger("test_watch")


def counts_on_self(trainer, x):
    trainer.calls += 1  # HERE


def counts_a_global(trainer, x):
    global COUNT
    COUNT += 1  # HERE


def appends(trainer, x):
    trainer.history.append(1)  # HERE


def extends_in_place(trainer, x):
    trainer.history += [1]  # HERE


def writes_a_slice(trainer, x):
    trainer.history[:0] = [1]  # HERE


def writes_an_item(trainer, x):
    trainer.losses["last"] = 1  # HERE


def pops(trainer, x):
    trainer.losses.pop("none", None)  # HERE


def keeps_a_tensor(trainer, x):
    trainer.latest = x.mean()  # HERE


def prints(trainer, x):
    print("step", end="")  # HERE


def logs(trainer, x):
    LOG.debug("step")  # HERE


def reads_the_clock(trainer, x):
    time.perf_counter()  # HERE


def draws_from_random(trainer, x):
    random.random()  # HERE


def draws_from_numpy(trainer, x):
    numpy.random.rand()  # HERE


def asks_for_the_process(trainer, x):
    os.getpid()  # HERE


def leaves_a_context_variable_set(trainer, x):
    COLLECTOR.set([])  # HERE


def opens_a_file(trainer, x):
    open(os.devnull).close()  # HERE


def sets_an_attribute_by_name(trainer, x):
    setattr(trainer, "calls", 1)  # HERE


def changes_the_class(trainer, x):
    Trainer.unit = 2.0  # HERE


def changes_the_batch(trainer, x):
    trainer.box["x"] = 1  # HERE


def counts_in_an_array(trainer, x):
    trainer.array[0] += 1  # HERE


def adds_to_a_set(trainer, x):
    trainer.seen.add(1)  # HERE


def rotates_a_deque(trainer, x):
    trainer.recent.append(1)  # HERE


def counts_with_itertools(trainer, x):
    next(trainer.counter)  # HERE


def advances_a_generator(trainer, x):
    next(trainer.generator)  # HERE


def loops_over_an_iterator(trainer, x):
    for _ in trainer.iterator:  # HERE
        break


def counts_by_a_bound_method(trainer, x):
    list(map(trainer.history.append, [1]))  # HERE


def counts_in_a_function_attribute(trainer, x):
    counts_in_a_function_attribute.calls = getattr(counts_in_a_function_attribute, "calls", 0) + 1  # HERE


def warns(trainer, x):
    LOG.warning("step")  # HERE


def uses_a_lock(trainer, x):
    with trainer.lock:  # HERE
        pass


def reads_a_large_array(trainer, x):
    torch.from_numpy(trainer.large)  # HERE


def writes_by_an_operator(trainer, x):
    operator.setitem(trainer.box, "x", 1)  # HERE


def copies_into_an_array(trainer, x):
    numpy.copyto(trainer.array, 1)  # HERE


def appends_by_a_partial(trainer, x):
    trainer.append()  # HERE


def appends_to_a_cached_list(trainer, x):
    cached_list().append(1)  # HERE


def counts_on_the_type(trainer, x):
    type(trainer).unit = 2.0  # HERE


def counts_behind_a_weak_reference(trainer, x):
    trainer.reference().history = [1]  # HERE


def counts_in_every_module(trainer, x):
    for module in trainer.model.modules():
        module.calls = [1]  # HERE


def asks_where_a_tensor_begins(trainer, x):
    trainer.scale = 2.0 if x.storage_offset() else 1.0  # HERE


def asks_whether_two_numbers_are_one(trainer, x):
    trainer.losses["square"] is trainer.scale or trainer.scale is trainer.other_scale  # HERE


def raises_an_error_that_is_kept(trainer, x):
    try:
        raise trainer.error  # HERE
    except ValueError:
        pass


def asks_for_a_window(trainer, x):
    return x._is_view()  # HERE


NOT_EARNED = {
    asks_where_a_tensor_begins: "reads x.storage_offset, which tells where a tensor's memory comes from",
    asks_whether_two_numbers_are_one: "asks whether two float are one object",
    raises_an_error_that_is_kept: "changes trainer.error",
    asks_for_a_window: "reads x._is_view, which tells where a tensor's memory comes from",
    leaves_a_context_variable_set: "sets the context variable 'collector', which the step leaves set",
    counts_on_self: "changes trainer.calls",
    counts_a_global: "changes the global COUNT",
    appends: "changes trainer.history",
    extends_in_place: "changes trainer.history",
    writes_a_slice: "changes trainer.history",
    writes_an_item: "changes trainer.losses",
    pops: "changes trainer.losses",
    keeps_a_tensor: "changes trainer.latest",
    prints: "prints",
    logs: "logs",
    reads_the_clock: "reads the clock",
    draws_from_random: "draws from",
    draws_from_numpy: "draws from",
    asks_for_the_process: "reads from the operating system",
    opens_a_file: "reads or writes a file",
    sets_an_attribute_by_name: "changes .*calls",
    changes_the_class: "changes Trainer.unit",
    writes_by_an_operator: "changes trainer.box",
    copies_into_an_array: "changes trainer.array",
    appends_by_a_partial: "changes",
    appends_to_a_cached_list: "changes what a cached function returns",
    counts_on_the_type: "changes .*unit",
    counts_behind_a_weak_reference: "changes .*history",
    counts_in_every_module: "changes module.calls",
    changes_the_batch: "changes trainer.box",
    counts_in_an_array: "changes trainer.array",
    adds_to_a_set: "changes trainer.seen",
    rotates_a_deque: "changes trainer.recent",
    counts_with_itertools: "advances trainer.counter",
    advances_a_generator: "advances trainer.generator",
    loops_over_an_iterator: "advances trainer.iterator",
    counts_by_a_bound_method: "changes trainer.history",
    counts_in_a_function_attribute: "changes counts_in_a_function_attribute.calls",
    warns: "logs",
    uses_a_lock: "enters trainer.lock",
    reads_a_large_array: "trainer.large, which is too large",
}


@pytest.mark.parametrize("effect", NOT_EARNED, ids=lambda effect: effect.__name__)
def test_not_earned(effect):
    trainer = Trainer()
    trainer.box, trainer.array, trainer.seen, trainer.recent = {}, numpy.zeros(2), set(), collections.deque(maxlen=3)
    trainer.counter, trainer.iterator = itertools.count(), iter(range(100))
    trainer.generator = (number for number in range(100))
    trainer.large = numpy.zeros(100_000)
    trainer.append = functools.partial(trainer.history.append, 1)
    trainer.scale, trainer.other_scale, trainer.error = 1.5, float("1.5"), ValueError("kept")
    trainer.lock, trainer.reference = threading.Lock(), weakref.ref(trainer)

    def step(x):
        effect(trainer, x)
        return trainer.step(x)

    reason = reason_of(step)
    assert re.search(NOT_EARNED[effect], reason), reason
    assert reason.startswith(f"{line_of(effect, 'HERE')} "), reason


def multiplies(x):
    return x * 1.0  # HERE


def test_an_opcode_that_is_not_known_ends_watching(monkeypatch, caplog):
    """As one of a later interpreter; said once."""
    monkeypatch.setattr(opcodes, "_SEES", {name: see for name, see in opcodes._SEES.items() if name != "BINARY_OP"})
    trainer = Trainer()
    step = stepc.accelerate(lambda x: trainer.step(multiplies(x)), config=stepc.Config(mode="exact", pace="off"))
    with caplog.at_level(logging.INFO, "stepc"):
        for i in range(STEPS):
            step(make_batch(i))
    reason = f"{line_of(multiplies, 'HERE')} runs BINARY_OP, an opcode that is not known"
    assert step.stats["traced"] == reason and step.stats["replays"] >= REPLAYS
    assert len([line for line in caplog.messages if "is not known" in line]) == 1


def test_an_opcode_at_an_unknown_depth_of_the_stack_ends_watching(monkeypatch):
    monkeypatch.setattr(bytecode, "_FRAMES_TELL_DEPTH", False)
    monkeypatch.setattr(bytecode, "_depths_of", lambda code, instructions: {})
    trainer = Trainer()
    reason = reason_of(lambda x: trainer.step(multiplies(x)))
    assert re.search("runs LOAD_DEREF at a depth of the stack that is not known", reason), reason


def in_a_set(a, b):
    return len({a, b})


def in_a_set_that_is_merged(a, b):
    return len({0.0, *[a, b]})


def in_a_set_of_a_comprehension(a, b):
    return len({number for number in [a, b]})


def in_a_dict(a, b):
    return len({a: 1, b: 2})


def in_a_dict_of_a_comprehension(a, b):
    return len({number: 1 for number in [a, b]})


@pytest.mark.parametrize("count", (
    in_a_set, in_a_set_that_is_merged, in_a_set_of_a_comprehension, in_a_dict, in_a_dict_of_a_comprehension,
))
def test_numbers_that_a_set_or_a_dict_merges_decide(count):
    """Returned, they would be bound; merged, how many there are follows from what they are."""

    def build():
        model, optimizer = parts()

        def step(x):
            first, second = x[0, 0].item(), x[0, 1].item()
            return update(model(x).square().mean() * count(first, second), optimizer), first, second

        return Training(step, [model], [optimizer])

    def make(i):
        x = make_batch(i)
        if i > CHANGED and i % 2:
            x[0, 1] = x[0, 0]
        return x

    run_twins(build, make, steps=STEPS, replays=0, config=EXACT, quiet=False)


def test_a_captured_counter_is_not_earned():
    trainer, count = Trainer(), 0

    def step(x):
        nonlocal count
        count += 1  # HERE
        return trainer.step(x)

    assert reason_of(step) == f"{line_of(step, 'HERE')} changes count, a variable of the function around it"


def test_a_counter_in_a_module_is_not_earned():
    class Counting(Net):
        calls = 0

        def forward(self, x):
            self.calls += 1  # HERE
            return super().forward(x)

    model, optimizer = parts(Counting())
    reason = reason_of(lambda x: update(model(x).square().mean(), optimizer))
    assert reason == f"{line_of(Counting.forward, 'HERE')} changes self.calls"


def test_a_counting_hook_is_not_earned():
    model, optimizer = parts()
    counts = {"calls": 0}

    def count(module, inputs, output):
        counts["calls"] += 1  # HERE

    model.first.register_forward_hook(count)
    reason = reason_of(lambda x: update(model(x).square().mean(), optimizer))
    assert reason.startswith(f"{line_of(count, 'HERE')} changes counts")


def test_a_scheduler_with_values_of_its_own_is_not_earned():
    model, optimizer = parts()
    rates = [0.1, 0.2]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step % 2])

    def step(x):
        loss = update(model(x).square().mean(), optimizer)
        scheduler.step()
        return loss

    assert "runs in a scheduler's step" in reason_of(step)


def test_a_step_that_writes_into_its_batch_is_not_earned():
    model, optimizer = parts()

    def step(batch):
        batch["seen"] = True  # HERE
        return update(model(batch["x"]).square().mean(), optimizer)

    accelerated = stepc.accelerate(step, config=EXACT)
    for i in range(2):
        accelerated({"x": make_batch(i)})
    reason = accelerated._scout.python_reason()
    assert reason == f"{line_of(step, 'HERE')} changes batch['seen'], an argument of the step"


def test_what_changes_from_step_to_step_is_not_earned():
    model, optimizer = parts()
    settings = {"epoch": 0}
    accelerated = stepc.accelerate(
        lambda x: update(model(x).square().mean() * settings["epoch"], optimizer), config=EXACT)
    for i in range(12):
        settings["epoch"] = i
        accelerated(make_batch(i))
    assert re.search(r"reads settings\['epoch'\], which changes from step to step", accelerated._scout.python_reason())


# ---- each kind of read is noticed: (how the loss is made, what changes between two steps)

SCALE = 1.0
TEXT = "mean"
FUNCTION = torch.relu
CRITERION = nn.MSELoss()
OTHER = types.ModuleType("other_settings")
OTHER.weight = 1.0


def set_global(name, value):
    def change(box):
        globals()[name] = value

    return change


def set_variable(value, name="STEP_WEIGHT"):
    return lambda box: os.environ.update({name: value})


# A function of torch that raises, as torch.xpu.is_current_stream_capturing() does in builds without that part.
OF_TORCH = {"__name__": "torch.made_up", "answer": None}
exec(compile("def is_made_up():\n    if answer is None:\n        raise RuntimeError('not in this build')\n    return answer",
             os.path.join(os.path.dirname(torch.__file__), "made_up.py"), "exec"), OF_TORCH)


def asks_with_care():
    try:
        return OF_TORCH["is_made_up"]()
    except RuntimeError:
        return False


def double(x):
    return 2 * x


def half(x):
    return 0.5 * x


def scaled_by_helper(x):
    return x * SCALE


class Slotted:
    __slots__ = ("weight", "inner")

    def __init__(self, weight):
        self.weight = weight


class Base:
    inherited = 1.0

    def of(self, x):
        return x * 3

    def scaled(self, x):
        return x * 3


class Derived(Base):
    own = 1.0

    def scaled(self, x):
        return super().scaled(x)

    @property
    def doubled(self):
        return 2 * self.own

    @staticmethod
    def static(x):
        return x * Derived.own

    @classmethod
    def made(cls, x):
        return x * cls.inherited


class Kind(enum.Enum):
    SQUARE = 1
    ABS = 2


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: float = 1.0


def set_attribute(name, value):
    """Of the box itself, or of what `a.b` names."""

    def change(box):
        *path, last = name.split(".")
        for part in path:
            box = getattr(box, part)
        setattr(box, last, value)

    return change


def set_class(kind, name, value):
    def change(box):
        setattr(kind, name, value)

    return change


def run(function):
    """The change is what the function does with the box."""
    return function


READS = {
    "global number": (lambda box, y: y * SCALE, set_global("SCALE", 3.0)),
    "global text": (lambda box, y: y.sum() if TEXT == "sum" else y, set_global("TEXT", "sum")),
    "global function": (lambda box, y: FUNCTION(y), set_global("FUNCTION", torch.tanh)),
    "global module": (lambda box, y: CRITERION(y, torch.ones_like(y)), set_global("CRITERION", nn.L1Loss())),
    "global of a helper": (lambda box, y: scaled_by_helper(y), set_global("SCALE", 3.0)),
    "global of another module": (lambda box, y: y * OTHER.weight, lambda box: setattr(OTHER, "weight", 3.0)),
    "method replaced on the class": (lambda box, y: box.derived.of(y), set_class(Derived, "of", lambda self, x: x * 5)),
    "method of the base class": (
        lambda box, y: box.derived.scaled(y), set_class(Base, "scaled", lambda self, x: x * 5)),
    "setting that raises": (lambda box, y: y * 2 if asks_with_care() else y, lambda box: OF_TORCH.update(answer=True)),
    "variable of the environment": (lambda box, y: y * float(os.environ.get("STEP_WEIGHT", "1")), set_variable("3")),
    "variable by getenv": (lambda box, y: y * float(os.getenv("STEP_WEIGHT") or 1), set_variable("3")),
    "variable by its name": (lambda box, y: y * float(os.environ["STEP_TIMES"]), set_variable("3", "STEP_TIMES")),
    "whether there is a variable": (lambda box, y: y * 2 if "STEP_WEIGHT" in os.environ else y, set_variable("3")),
    "attribute": (lambda box, y: y * box.weight, set_attribute("weight", 3.0)),
    "attribute by name": (lambda box, y: y * getattr(box, "weight"), set_attribute("weight", 3.0)),
    "optional attribute": (lambda box, y: y * getattr(box, "extra", 1.0), set_attribute("extra", 3.0)),
    "attribute that appears": (lambda box, y: y * 2 if hasattr(box, "more") else y, set_attribute("more", True)),
    "nested attribute": (lambda box, y: y * box.settings.scale, set_attribute("settings.scale", 3.0)),
    "object replaced": (lambda box, y: y * box.settings.scale, set_attribute("settings", Settings(3.0))),
    "None becomes a number": (lambda box, y: y if box.none is None else y * box.none, set_attribute("none", 3.0)),
    "None becomes a module": (lambda box, y: y if box.none is None else box.none(y), set_attribute("none", nn.Tanh())),
    "flag": (lambda box, y: y * 2 if box.flag else y, set_attribute("flag", True)),
    "slot": (lambda box, y: y * box.slotted.weight, set_attribute("slotted.weight", 3.0)),
    "class attribute": (lambda box, y: y * box.derived.own, set_class(Derived, "own", 3.0)),
    "inherited class attribute": (lambda box, y: y * box.derived.inherited, set_class(Base, "inherited", 3.0)),
    "class attribute hides an inherited one": (
        lambda box, y: y * box.derived.inherited, set_class(Derived, "inherited", 3.0)),
    "instance hides a class attribute": (lambda box, y: y * box.derived.own, set_attribute("derived.own", 3.0)),
    "property": (lambda box, y: y * box.derived.doubled, set_class(Derived, "own", 3.0)),
    "static method": (lambda box, y: Derived.static(y), set_class(Derived, "own", 3.0)),
    "class method": (lambda box, y: Derived.made(y), set_class(Base, "inherited", 3.0)),
    "frozen dataclass": (lambda box, y: y * box.frozen.weight, set_attribute("frozen", Frozen(3.0))),
    "enum": (lambda box, y: y.square() if box.kind is Kind.SQUARE else y.abs(), set_attribute("kind", Kind.ABS)),
    "named tuple": (lambda box, y: y * box.pair.a, set_attribute("pair", Pair(3.0, 1.0))),
    "tuple": (lambda box, y: y * box.tuple[1], set_attribute("tuple", (1.0, 3.0))),
    "list element": (lambda box, y: y * box.list[1], lambda box: box.list.__setitem__(1, 3.0)),
    "last list element": (lambda box, y: y * box.list[-1], lambda box: box.list.append(3.0)),
    "list that is looped over": (lambda box, y: sum(y * w for w in box.list), lambda box: box.list.append(3.0)),
    "list in a comprehension": (lambda box, y: sum([y * w for w in box.list]), lambda box: box.list.append(3.0)),
    "slice of a list": (lambda box, y: y * sum(box.list[1:]), lambda box: box.list.__setitem__(1, 3.0)),
    "list given by keyword": (lambda box, y: y * torch.tensor(data=box.list).sum(), lambda box: box.list.append(3.0)),
    "list in a text": (lambda box, y: y * len(f"{box.list!r}"), lambda box: box.list.append(3.0)),
    "length of a list": (lambda box, y: y * len(box.list), lambda box: box.list.append(3.0)),
    "empty list": (lambda box, y: y * 3 if box.empty else y, lambda box: box.empty.append(1)),
    "functions in a list": (
        lambda box, y: functools.reduce(lambda x, f: f(x), box.functions, y), lambda box: box.functions.append(double)),
    "list element replaced by a function": (
        lambda box, y: box.functions[0](y), lambda box: box.functions.__setitem__(0, half)),
    "nested list": (lambda box, y: y * box.nested[0][1], lambda box: box.nested[0].__setitem__(1, 3.0)),
    "list given to torch": (lambda box, y: y * torch.tensor(box.list).sum(), lambda box: box.list.append(3.0)),
    "unpacked list": (lambda box, y: y * max(*box.list), lambda box: box.list.append(3.0)),
    "dict value": (lambda box, y: y * box.dict["a"], lambda box: box.dict.__setitem__("a", 3.0)),
    "dict value by get": (lambda box, y: y * box.dict.get("z", 1.0), lambda box: box.dict.__setitem__("z", 3.0)),
    "key in a dict": (lambda box, y: y * 3 if "z" in box.dict else y, lambda box: box.dict.__setitem__("z", 3.0)),
    "dict that is looped over": (
        lambda box, y: sum(y * w for w in box.dict.values()), lambda box: box.dict.__setitem__("z", 3.0)),
    "order of a dict": (
        lambda box, y: functools.reduce(lambda x, w: x * w + 1, box.dict.values(), y),
        lambda box: box.dict.__setitem__("a", box.dict.pop("a"))),
    "nested dict": (lambda box, y: y * box.tree["a"]["b"], lambda box: box.tree["a"].__setitem__("b", 3.0)),
    "unpacked dict": (lambda box, y: gelu(y, **box.options), lambda box: box.options.update(approximate="tanh")),
    "deque": (lambda box, y: y * sum(box.deque), lambda box: box.deque.append(3.0)),
    "set": (lambda box, y: y * sum(box.set), lambda box: box.set.add(3.0)),
    "NumPy scalar": (lambda box, y: y * float(box.scalar), set_attribute("scalar", numpy.float32(3))),
    "NumPy array in place": (lambda box, y: y * float(box.array[0]), lambda box: box.array.__setitem__(0, 3.0)),
    "NumPy array's sum": (lambda box, y: y * float(box.array.sum()), lambda box: box.array.__setitem__(1, 3.0)),
    "partial": (lambda box, y: box.partial(y), set_attribute("partial", functools.partial(torch.mul, 3.0))),
    "partial's keyword": (
        lambda box, y: box.keyword(y), lambda box: box.keyword.keywords.update(approximate="tanh")),
    "lambda's default": (lambda box, y: box.defaulted(y), lambda box: setattr(box.defaulted, "__defaults__", (3.0,))),
    "keyword default": (
        lambda box, y: box.keyword_defaulted(y),
        lambda box: box.keyword_defaulted.__kwdefaults__.update(weight=3.0)),
    "code of a function": (
        lambda box, y: box.replaceable(y), lambda box: setattr(box.replaceable, "__code__", half.__code__)),
    "captured variable of a method": (lambda box, y: box.captured()(y), lambda box: box.set_captured(3.0)),
    "module's number": (lambda box, y: y * box.model.factor, set_attribute("model.factor", 3.0)),
    "module's settings": (
        lambda box, y: y * box.model.settings.scale, lambda box: setattr(box.model.settings, "scale", 3.0)),
    "dropout": (lambda box, y: box.dropout(y), set_attribute("dropout.p", 0.9)),
    "convolution's padding": (
        lambda box, y: box.convolution(y[None]).mean(), set_attribute("convolution.padding", (0,))),
    "convolution's dilation": (
        lambda box, y: box.convolution(y[None]).mean(), set_attribute("convolution.dilation", (2,))),
    "normalisation's epsilon": (lambda box, y: box.norm(y), set_attribute("norm.eps", 0.5)),
    "activation of a module": (lambda box, y: box.model.activation(y), set_attribute("model.activation", torch.tanh)),
    "submodule replaced": (lambda box, y: box.model.act(y), set_attribute("model.act", nn.Tanh())),
    "layer appended": (lambda box, y: box.layers(y), lambda box: box.layers.append(nn.Tanh())),
    "buffer that was None": (
        lambda box, y: y if box.model.mask is None else y * box.model.mask,
        lambda box: setattr(box.model, "mask", torch.full((3,), 0.5))),
    "hook added": (
        lambda box, y: box.model.act(y),
        lambda box: box.model.act.register_forward_hook(lambda module, inputs, output: output * 3)),
    "order of hooks": (
        lambda box, y: box.two_hooks(y),
        lambda box: box.two_hooks._forward_hooks.move_to_end(next(iter(box.two_hooks._forward_hooks)))),
    "a hook's own number": (lambda box, y: box.hooked(y), lambda box: box.hook_settings.update(weight=3.0)),
    "forward replaced": (lambda box, y: box.model.act(y), set_attribute("model.act.forward", torch.tanh)),
    "class of a module": (lambda box, y: box.model.act(y), set_attribute("model.act.__class__", nn.Tanh)),
    "autograd function's class": (lambda box, y: Swish.apply(y), set_class(Swish, "slope", 3.0)),
    "dtype": (lambda box, y: y.to(box.dtype).float(), set_attribute("dtype", torch.bfloat16)),
    "function that reads a helper": (lambda box, y: box.derived.static(y), set_class(Derived, "own", 3.0)),
}


class Box:
    """Everything that a loss may read."""

    def __init__(self):
        model = Net()
        model.factor, model.settings, model.activation, model.act = 1.0, Settings(1.0), torch.relu, nn.ReLU()
        model.register_buffer("mask", None)
        self.model = model
        self.weight, self.none, self.flag, self.settings = 1.0, None, False, Settings(1.0)
        self.slotted, self.derived, self.frozen, self.kind = Slotted(1.0), Derived(), Frozen(), Kind.SQUARE
        self.pair, self.tuple, self.list, self.empty = Pair(1.0, 1.0), (1.0, 2.0), [1.0, 2.0], []
        self.functions, self.nested, self.dict = [torch.relu], [[1.0, 2.0]], {"a": 1.0, "b": 2.0}
        self.tree, self.options, self.deque, self.set = {"a": {"b": 1.0}}, {}, collections.deque([1.0]), {1.0}
        self.scalar, self.array = numpy.float32(1), numpy.array([1.0, 2.0])
        self.partial, self.keyword = functools.partial(torch.mul, 1.0), functools.partial(gelu, approximate="none")
        self.defaulted = lambda x, weight=1.0: x * weight
        self.replaceable = types.FunctionType(double.__code__, globals())
        self.dropout, self.convolution, self.norm = nn.Dropout(0.1), nn.Conv1d(4, 2, 2, padding=1), nn.LayerNorm(3)
        self.layers, self.two_hooks, self.hooked = nn.Sequential(nn.ReLU()), nn.ReLU(), nn.ReLU()
        self.two_hooks.register_forward_hook(lambda module, inputs, output: output * 3)
        self.two_hooks.register_forward_hook(lambda module, inputs, output: output + 1)
        self.hook_settings = {"weight": 1.0}
        self.hooked.register_forward_hook(lambda module, inputs, output: output * self.hook_settings["weight"])
        self.dtype = torch.float32

        def keyword_defaulted(x, *, weight=1.0):
            return x * weight

        self.keyword_defaulted = keyword_defaulted
        weight = 1.0

        def captured():
            return lambda x: x * weight

        def set_captured(value):
            nonlocal weight
            weight = value

        self.captured, self.set_captured = captured, set_captured


@contextlib.contextmanager
def as_it_was():
    """Globals and classes of this file, which both twins share, are put back."""
    names = ("SCALE", "TEXT", "FUNCTION", "CRITERION")
    before = {name: globals()[name] for name in names}
    environment = dict(os.environ)
    os.environ["STEP_TIMES"] = "1"
    kinds = {kind: {k: v for k, v in vars(kind).items() if not k.startswith("__")} for kind in (Base, Derived, Swish)}
    try:
        yield
    finally:
        globals().update(before)
        OF_TORCH["answer"] = None
        os.environ.clear()
        os.environ.update(environment)
        OTHER.weight = 1.0
        for kind, values in kinds.items():
            for name in [name for name in vars(kind) if not name.startswith("__") and name not in values]:
                delattr(kind, name)
            for name, value in values.items():
                if vars(kind)[name] is not value:
                    setattr(kind, name, value)


@pytest.mark.parametrize("name", READS)
def test_a_changed_read_is_noticed(name, caplog):
    loss_of, change = READS[name]

    def build():
        box = Box()
        optimizer = torch.optim.SGD(box.model.parameters(), lr=0.05, momentum=0.9)

        def step(x):
            return update(loss_of(box, box.model(x)).square().mean(), optimizer)

        training = Training(step, [box.model, box.dropout], [optimizer])
        training.box = box
        return training

    def before(i, training):
        if i == CHANGED:
            change(training.box)

    with as_it_was(), caplog.at_level(logging.INFO, logger="stepc"):
        # Both twins take a step before the next: what they share is set back for neither.
        accelerated = run_twins(build, make_batch, steps=STEPS, replays=REPLAYS, config=EXACT, before=before)
    assert accelerated._scout.python_reason() == ""
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("recording again")]
    assert len(lines) == 1 and "read at test_watch.py:" in lines[0], lines


# ---- a name is bound to another object


def run_bound(build, change):
    """Does `change(training)` between two steps; the step reads everything from `training.box`."""

    def before(i, training):
        if i == CHANGED:
            change(training)

    accelerated = run_twins(build, make_batch, steps=16, replays=REPLAYS, config=EXACT, before=before)
    assert accelerated._scout.python_reason() == ""
    return accelerated


def build_fold():
    trainer = Trainer()
    training = Training(trainer.step, [trainer.model], [trainer.optimizer])
    training.box = trainer
    return training


def next_fold(training):
    training.box.model, training.box.optimizer = parts()
    training.modules.append(training.box.model)
    training.optimizers.append(training.box.optimizer)


def next_optimizer(training):
    training.box.optimizer = torch.optim.AdamW(training.box.model.parameters(), lr=0.02)
    training.optimizers.append(training.box.optimizer)


@pytest.mark.parametrize("change", [next_fold, next_optimizer], ids=lambda change: change.__name__)
def test_model_and_optimizer_are_bound_anew(change):
    run_bound(build_fold, change)


def test_an_optimizer_that_is_made_after_the_door_is_found():
    def build():
        trainer = Trainer()
        holder = types.ModuleType("holder")
        training = Training(lambda x: update(trainer.loss(trainer.model(x)), holder.optimizer), [trainer.model])
        training.box, training.holder = trainer, holder
        return training

    def before(i, training):
        if i == 0:
            training.holder.optimizer = torch.optim.SGD(training.box.model.parameters(), lr=0.1, momentum=0.9)
            training.optimizers.append(training.holder.optimizer)
        training.optimizers[0].param_groups[0]["lr"] = 0.1 / (i + 1)

    accelerated = run_twins(build, make_batch, steps=16, replays=REPLAYS, config=EXACT, before=before)
    assert accelerated._scout.python_reason() == ""


def test_recurrent_layers_are_watched():
    """They keep weak references to their weights and compare them at every call."""
    model = nn.LSTM(6, 8)
    model, optimizer = parts(model)
    step = stepc.accelerate(lambda x: update(model(x.unsqueeze(1))[0].square().mean(), optimizer), config=stepc.Config())
    for i in range(STEPS):
        step(make_batch(i))
    assert step.stats["replays"] >= REPLAYS and not step.stats["traced"], step.stats["traced"]


@pytest.mark.parametrize("place", ["attribute", "list"])
@pytest.mark.parametrize("event", ["dies", "another"])
def test_weak_reference(place, event):
    class Weight:
        def __init__(self, value):
            self.value = value

    def build():
        model, optimizer = parts()
        training = types.SimpleNamespace(model=model, optimizer=optimizer, weight=Weight(2.0), other=Weight(3.0))
        training.refs = [weakref.ref(training.weight)]
        training.ref = training.refs[0]

        def step(x):
            weight = training.ref() if place == "attribute" else training.refs[0]()
            return update(model(x).square().mean() * (1.0 if weight is None else weight.value), optimizer)

        return training, step

    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        training, step = build()
        run = stepc.accelerate(step, config=stepc.Config(mode="exact")) if accelerated else step
        losses.append([])
        for i in range(STEPS):
            if i == CHANGED and event == "dies":
                del training.weight
            elif i == CHANGED:
                training.ref = training.refs[0] = weakref.ref(training.other)
            losses[-1].append(run(make_batch(i)).item())
    assert losses[0] == losses[1]
    assert run.stats["replays"] >= 2, run.stats["warnings"]


def test_the_first_value_has_its_plan_still():
    """A value that comes back needs no new recording."""
    box = Box()
    optimizer = torch.optim.SGD(box.model.parameters(), lr=0.05)
    step = stepc.accelerate(lambda x: update(box.model(x).square().mean() * box.weight, optimizer), config=EXACT)
    for weight in (1.0, 3.0):
        box.weight = weight
        for i in range(6):
            step(make_batch(i))
    recordings = step.stats["recordings"]
    for weight in (1.0, 3.0, 1.0):
        box.weight = weight
        step(make_batch(0))
    assert step.stats["recordings"] == recordings


def test_a_model_that_is_replaced_is_let_go_and_one_that_comes_back_is_watched_again():
    class Scaled(Net):
        scale = 1.0

        def __init__(self):
            super().__init__()
            self.weights = [1.0]

        def forward(self, x):
            return super().forward(x) * self.scale * self.weights[0]

    def run(accelerate):
        torch.manual_seed(0)
        models = [Scaled(), Scaled()]
        dead = weakref.ref(models[1])
        box = types.SimpleNamespace(model=models[0], rate=0.1)

        def step(x):
            loss = box.model(x).square().mean()
            gradients = torch.autograd.grad(loss, list(box.model.parameters()))
            with torch.no_grad():
                for p, g in zip(box.model.parameters(), gradients):
                    p.sub_(box.rate * g)
            return loss.detach()

        step, out = accelerate(step), []
        for i in range(36):
            if i == 9:
                box.model = models[1]
            elif i == 18:
                box.model, models[0].scale = models[0], 3.0
            elif i == 24:
                models[0].scale = 1.0
            elif i == 30:
                box.model, models[0].scale = models[1], 2.0
                box.model, models[1:] = models[0], []
            out.append(step(make_batch(i)))
        return out, dead() is None, step

    expected, _, _ = run(lambda step: step)
    found, is_gone, step = run(lambda step: stepc.accelerate(step, config=EXACT))
    assert [float(one) for one in found] == [float(one) for one in expected]
    assert is_gone and step.stats["replays"] > 12


# ---- the choice


def test_a_container_that_the_step_replaces_is_let_go():
    """GradScaler has one of a class of C, which lies on the heap from CPython 3.12 on."""
    model = Net()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cpu")

    def step(x):
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert stepc.plan(step, make_batch(0)).obstacle == ""


def test_the_choice_is_checked():
    with pytest.raises(stepc.UserError, match=r'python is "never"; it is one of "auto", "watch", "trace"'):
        stepc.Config(python="never")


def test_traced_by_choice():
    model, optimizer = parts()
    config = stepc.Config(mode="exact", python="trace")
    step = stepc.accelerate(lambda x: update(model(x).square().mean(), optimizer), config=config)
    for i in range(2):
        step(make_batch(i))
    assert 'python: traced (Config(python="trace"))' in step.report()


@pytest.mark.parametrize("kind", (torch.optim.SGD, torch.optim.Adam))
def test_a_traced_step_that_leaves_its_plan_is_recorded_and_has_a_plan_of_its_own(kind):
    """At every fourth step: inside the forward pass, after the update, and with another number before the backward pass."""

    def run(accelerate, way):
        torch.manual_seed(0)
        model, count, total = Net(), itertools.count(), torch.zeros(3)
        optimizer = kind(model.parameters(), lr=0.05)

        def step(x):
            out = model(x)
            number = next(count)
            if number % 4 == 3 and way == "forward":
                out = torch.tanh(out) * 2
            loss = out.square().mean() * (0.5 if number % 4 == 3 and way == "number" else 1.0)
            loss = update(loss, optimizer)
            if number % 4 == 3 and way == "after":
                with torch.no_grad():
                    total.add_(model(x).sum(0))
            return loss

        step = accelerate(step)
        return [step(make_batch(i)) for i in range(40)] + [p.detach() for p in model.parameters()] + [total], step

    for way in ("forward", "number", "after"):
        expected, _ = run(lambda step: step, way)
        found, step = run(lambda step: stepc.accelerate(step, config=stepc.Config(mode="exact")), way)
        assert all(torch.equal(a, b) for a, b in zip(expected, found)), way
        assert not step.stats["warnings"], way
        assert step.stats["departures"] <= 2 and step.stats["plans"] >= 2, way
        assert step.stats["replays"] > 15, way


def test_threads_that_record_beside_each_other_leave_modules_as_they_were():
    original, seen = nn.Module._call_impl, []
    begun, ended = threading.Event(), threading.Event()

    def enter(name):
        return lambda module: contextlib.nullcontext(seen.append(name))

    def other():
        with around_modules(enter("other")):
            begun.set()
            ended.wait()
            nn.Identity()(torch.ones(1))

    thread = threading.Thread(target=other)
    with around_modules(enter("outer")):
        thread.start()
        begun.wait()
        with around_modules(enter("inner")):
            nn.Identity()(torch.ones(1))
    ended.set()  # the first to begin is the first to end
    thread.join()
    assert seen == ["inner", "outer", "other"]
    nn.Identity()(torch.ones(1))
    assert len(seen) == 3 and nn.Module._call_impl is original
