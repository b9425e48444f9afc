"""Programs whose Python reads something that changes after the plan was made: wherever it lives, it is noticed."""

import collections
import contextvars
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import operator
import os
import tempfile
import threading
import types
import weakref
from typing import NamedTuple

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy, nll_loss
from torch.optim.optimizer import register_optimizer_step_pre_hook

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, adam, batches, data, descend, fit, mlp, python_module, sgd

# ---- names of the program


@case
def number_in_a_closure(accelerate):
    model, weight = mlp(), 1.0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y) * weight, optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            weight = 0.5
        yield step(x, y), model, optimizer


@case
def nothing_that_becomes_a_number(accelerate):
    model, smoothing = mlp(), None
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y, label_smoothing=smoothing or 0.0), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            smoothing = 0.1
        yield step(x, y), model, optimizer


@case
def next_fold_with_another_model(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y), optimizer)

    first = model
    for i, x, y in batches():
        if i == CHANGE:
            model = mlp()
            optimizer = sgd(model)
        yield step(x, y), first, model, optimizer


@case
def another_optimizer_under_the_name(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            optimizer = adam(model)
        yield step(x, y), model, optimizer


@case
def another_loss_under_the_name(accelerate):
    model = mlp()
    optimizer, criterion = sgd(model), nn.CrossEntropyLoss()

    @accelerate
    def step(x, y):
        return descend(criterion(model(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
        yield step(x, y), model, optimizer


@case
def another_loss_function_under_the_name(accelerate):
    model = mlp()
    optimizer = sgd(model)
    loss_of = cross_entropy

    @accelerate
    def step(x, y):
        return descend(loss_of(model(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            loss_of = lambda logits, y: nll_loss(logits.log_softmax(-1), y) + 0.01 * logits.square().mean()
        yield step(x, y), model, optimizer


@case
def teacher_that_comes_later(accelerate):
    model, teacher = mlp(), None
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = cross_entropy(logits, y)
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(x)
            loss = loss + (logits - wanted).square().mean()
        return descend(loss, optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            teacher = mlp().eval()
        yield step(x, y), model, optimizer


@case
def opponents_from_a_pool(accelerate):
    model, pool = mlp(), [mlp() for _ in range(2)]
    optimizer, opponent = sgd(model), pool[0]

    @accelerate
    def step(x, y):
        with torch.no_grad():
            reply = opponent(x).softmax(-1)
        return descend(cross_entropy(model(x), y) + (model(x).softmax(-1) * reply).sum(), optimizer)

    for i, x, y in batches():
        opponent = pool[i >= CHANGE]
        yield step(x, y), model, optimizer


@case
def default_of_an_argument(accelerate):
    model, options = mlp(), {"weight": 1.0}
    optimizer = sgd(model)

    def loss_of(logits, y, options=options):
        return cross_entropy(logits, y) * options["weight"]

    step = accelerate(lambda x, y: descend(loss_of(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: options.update(weight=0.25))


@case
def defaults_replaced(accelerate):
    model = mlp()
    optimizer = sgd(model)

    def loss_of(logits, y, weight=1.0):
        return cross_entropy(logits, y) * weight

    def change():
        loss_of.__defaults__ = (0.25,)

    yield from fit(accelerate(lambda x, y: descend(loss_of(model(x), y), optimizer)), model, optimizer, change=change)


@case
def a_default_that_inspect_tells(accelerate):
    model = mlp()
    optimizer = sgd(model)

    def options(weight=1.0):
        raise NotImplementedError

    def change():
        options.__defaults__ = (0.25,)

    def train_step(x, y):
        weight = inspect.signature(options).parameters["weight"].default
        return descend(cross_entropy(model(x), y) * weight, optimizer)

    yield from fit(accelerate(train_step), model, optimizer, change=change)


@case
def keywords_of_a_partial(accelerate):
    model = mlp()
    optimizer = sgd(model)
    loss_of = functools.partial(cross_entropy, label_smoothing=0.0)
    step = accelerate(lambda x, y: descend(loss_of(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: loss_of.keywords.update(label_smoothing=0.3))


@case
def another_partial(accelerate):
    model = mlp()
    optimizer = sgd(model)
    loss_of = functools.partial(cross_entropy, reduction="mean")

    @accelerate
    def step(x, y):
        return descend(loss_of(model(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            loss_of = functools.partial(cross_entropy, reduction="sum")
        yield step(x, y), model, optimizer


@case
def step_that_is_a_partial(accelerate):
    model, options = mlp(), types.SimpleNamespace(weight=1.0)

    def train_step(model, optimizer, options, x, y):
        return descend(cross_entropy(model(x), y) * options.weight, optimizer)

    optimizer = sgd(model)
    step = accelerate(functools.partial(train_step, model, optimizer, options))
    yield from fit(step, model, optimizer, change=lambda: setattr(options, "weight", 0.5))


@case
def step_inside_a_decorator(accelerate):
    model, weight = mlp(), 1.0
    optimizer = sgd(model)

    def weighted(loss_of):
        @functools.wraps(loss_of)
        def wrapped(x, y):
            return descend(loss_of(x, y) * weight, optimizer)

        return wrapped

    @accelerate
    @weighted
    def step(x, y):
        return cross_entropy(model(x), y)

    for i, x, y in batches():
        if i == CHANGE:
            weight = 2.0
        yield step(x, y), model, optimizer


# ---- globals of modules


@case
def global_of_another_module(accelerate):
    settings = python_module("weight = 1.0")
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * settings.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(settings, "weight", 0.5))


@case
def global_that_another_modules_function_reads(accelerate):
    losses = python_module("weight = 1.0\ndef loss_of(x, y):\n    return cross_entropy(x, y) * weight")
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(losses.loss_of(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(losses, "weight", 0.5))


@case
def global_that_a_models_forward_reads(accelerate):
    models = python_module("""
scale = 1.0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        return self.layer(x) * scale
""")
    model = models.Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(models, "scale", 3.0))


@case
def function_replaced_in_another_module(accelerate):
    losses = python_module("def loss_of(x, y):\n    return cross_entropy(x, y)")
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(losses.loss_of(model(x), y), optimizer))
    smoothed = functools.partial(cross_entropy, label_smoothing=0.2)
    yield from fit(step, model, optimizer, change=lambda: setattr(losses, "loss_of", smoothed))


# ---- attributes


@case
def attribute_of_a_namespace(accelerate):
    model, args = mlp(), types.SimpleNamespace(l2=0.0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        penalty = sum(p.square().sum() for p in model.parameters())
        return descend(cross_entropy(model(x), y) + args.l2 * penalty, optimizer)

    yield from fit(step, model, optimizer, change=lambda: setattr(args, "l2", 0.01))


@case
def attribute_of_a_nested_config(accelerate):
    model = mlp()
    config = types.SimpleNamespace(train=types.SimpleNamespace(loss=types.SimpleNamespace(smoothing=0.0)))
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y, label_smoothing=config.train.loss.smoothing), optimizer)

    yield from fit(step, model, optimizer, change=lambda: setattr(config.train.loss, "smoothing", 0.2))


@case
def dataclass_field(accelerate):
    @dataclasses.dataclass
    class Options:
        clip: float = 10.0

    model, options = mlp(), Options()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    yield from fit(step, model, optimizer, change=lambda: setattr(options, "clip", 0.05))


@case
def frozen_dataclass_replaced(accelerate):
    @dataclasses.dataclass(frozen=True)
    class Options:
        smoothing: float = 0.0

    model, options = mlp(), Options()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y, label_smoothing=options.smoothing), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            options = dataclasses.replace(options, smoothing=0.2)
        yield step(x, y), model, optimizer


@case
def slot(accelerate):
    class Options:
        __slots__ = ("weight",)

    model, options = mlp(), Options()
    options.weight = 1.0
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * options.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(options, "weight", 0.5))


@case
def property_over_a_private_number(accelerate):
    class Schedule:
        _epoch = 0

        @property
        def weight(self):
            return 1.0 / (1 + self._epoch)

    model, schedule = mlp(), Schedule()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * schedule.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(schedule, "_epoch", 3))


@case
def descriptor_with_a_store_of_its_own(accelerate):
    class Field:
        def __init__(self):
            self.values = weakref.WeakKeyDictionary()

        def __get__(self, owner, kind=None):
            return self.values.get(owner, 1.0)

        def __set__(self, owner, value):
            self.values[owner] = value

    class Options:
        weight = Field()

    model, options = mlp(), Options()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * options.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(options, "weight", 0.5))


@case
def attributes_that_a_method_looks_up(accelerate):
    class Options:
        def __init__(self):
            self.values = {"weight": 1.0}

        def __getattr__(self, name):
            return self.__dict__["values"][name]

    model, options = mlp(), Options()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * options.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: options.values.update(weight=0.5))


@case
def attribute_by_a_name_that_changes(accelerate):
    model, name = mlp(), "cross_entropy"
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(getattr(nn.functional, name)(model(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            name = "multi_margin_loss"
        yield step(x, y), model, optimizer


@case
def attribute_by_attrgetter(accelerate):
    config = types.SimpleNamespace(loss=types.SimpleNamespace(weight=1.0))
    weight_of = operator.attrgetter("loss.weight")
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * weight_of(config), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(config.loss, "weight", 0.5))


@case
def class_attribute(accelerate):
    class Config:
        weight = 1.0

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * Config.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(Config, "weight", 0.5))


@case
def class_attribute_of_a_base(accelerate):
    class Base:
        weight = 1.0

    class Derived(Base):
        pass

    model, options = mlp(), Derived()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * options.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(Base, "weight", 0.5))


@case
def class_attribute_of_an_autograd_function(accelerate):
    class Reverse(torch.autograd.Function):
        strength = 1.0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return -Reverse.strength * gradient

    model, critic = nn.Linear(8, 8), nn.Linear(8, 4)
    optimizer = sgd(model, critic)
    step = accelerate(lambda x, y: descend(cross_entropy(critic(Reverse.apply(model(x))), y), optimizer))
    yield from fit(step, model, critic, optimizer, change=lambda: setattr(Reverse, "strength", 0.1))


@case
def method_replaced_on_its_class(accelerate):
    class Task:
        def weight(self):
            return 1.0

    model, task = mlp(), Task()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * task.weight(), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(Task, "weight", lambda self: 0.5))


@case
def class_of_an_object_changed(accelerate):
    class Warm:
        def weight(self):
            return 0.1

    class Hot:
        def weight(self):
            return 1.0

    model, phase = mlp(), Warm()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * phase.weight(), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(phase, "__class__", Hot))


@case
def class_of_a_layer_changed(accelerate):
    class Cold(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.1

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model[2], "__class__", Cold))


@case
def class_that_isinstance_asks_for(accelerate):
    class Warm:
        pass

    class Hot:
        pass

    model, phase = mlp(), Warm()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        return descend(loss * 0.1 if isinstance(phase, Warm) else loss, optimizer)

    yield from fit(step, model, optimizer, change=lambda: setattr(phase, "__class__", Hot))


@case
def enumeration(accelerate):
    class Phase(enum.Enum):
        WARM_UP = 1
        TRAIN = 2

    model, phase = mlp(), Phase.WARM_UP
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = logits.square().mean() if phase is Phase.WARM_UP else cross_entropy(logits, y)
        return descend(loss, optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            phase = Phase.TRAIN
        yield step(x, y), model, optimizer


@case
def named_tuple_replaced(accelerate):
    class Weights(NamedTuple):
        nll: float
        l2: float

    model, state = mlp(), types.SimpleNamespace(weights=Weights(1.0, 0.0))
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        weights = state.weights
        return descend(weights.nll * cross_entropy(logits, y) + weights.l2 * logits.square().mean(), optimizer)

    yield from fit(step, model, optimizer, change=lambda: setattr(state, "weights", state.weights._replace(l2=0.1)))


# ---- containers


@case
def item_of_a_dict(accelerate):
    model, config = mlp(), {"loss": {"smoothing": 0.0}}
    optimizer = sgd(model)
    step = accelerate(
        lambda x, y: descend(cross_entropy(model(x), y, label_smoothing=config["loss"]["smoothing"]), optimizer))
    yield from fit(step, model, optimizer, change=lambda: config["loss"].update(smoothing=0.2))


@case
def element_of_a_list(accelerate):
    model, weights = mlp(), [1.0, 0.0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return descend(weights[0] * cross_entropy(logits, y) + weights[1] * logits.square().mean(), optimizer)

    yield from fit(step, model, optimizer, change=lambda: weights.__setitem__(1, 0.5))


@case
def tuple_replaced(accelerate):
    model, betas = mlp(), (1.0, 0.0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return descend(betas[0] * cross_entropy(logits, y) + betas[1] * logits.square().mean(), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            betas = (1.0, 0.5)
        yield step(x, y), model, optimizer


@case
def deque_that_is_rotated(accelerate):
    model, weights = mlp(), collections.deque([1.0, 0.1])
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * weights[0], optimizer))
    yield from fit(step, model, optimizer, change=weights.rotate)


@case
def member_of_a_set(accelerate):
    layers = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8), "head": nn.Linear(8, 4)})
    optimizer, skipped = sgd(layers), set()

    @accelerate
    def step(x, y):
        for name, layer in layers.items():
            if name not in skipped:
                x = layer(x)
        return descend(cross_entropy(x, y), optimizer)

    yield from fit(step, layers, optimizer, change=lambda: skipped.add("two"))


@case
def list_of_loss_terms(accelerate):
    model, terms = mlp(), [cross_entropy]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return descend(sum(term(logits, y) for term in terms), optimizer)

    yield from fit(step, model, optimizer, change=lambda: terms.append(lambda logits, y: logits.square().mean()))


@case
def callback_appended(accelerate):
    model, callbacks, seen = mlp(), [], []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        for callback in callbacks:
            callback()
        return loss

    yield from fit(step, model, optimizer, seen, change=lambda: callbacks.append(lambda: seen.append(len(seen))))


@case
def options_as_keywords(accelerate):
    model, options = mlp(), {"reduction": "mean"}
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y, **options), optimizer))
    yield from fit(step, model, optimizer, change=lambda: options.update(reduction="sum", label_smoothing=0.1))


@case
def layered_settings(accelerate):
    defaults, chosen = types.MappingProxyType({"weight": 1.0}), {}
    config = collections.ChainMap(chosen, defaults)
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * config["weight"], optimizer))
    yield from fit(step, model, optimizer, change=lambda: chosen.update(weight=0.5))


@case
def depth_of_a_stack(accelerate):
    layers, head = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 4)
    optimizer, depth = sgd(layers, head), 1

    @accelerate
    def step(x, y):
        for layer in layers[:depth]:
            x = layer(x).tanh()
        return descend(cross_entropy(head(x), y), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            depth = 3
        yield step(x, y), layers, head, optimizer


@case
def order_of_a_sampler(accelerate):
    model, order = mlp(), list(range(8))
    optimizer = sgd(model)
    rows, classes = data(64)

    @accelerate
    def step(x, y):
        first = order[0] * 8
        return descend(cross_entropy(model(rows[first : first + 8]), classes[first : first + 8]), optimizer)

    yield from fit(step, model, optimizer, change=order.reverse)


# ---- NumPy


@case
def numpy_number(accelerate):
    model, weight = mlp(), numpy.float32(1.0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y) * float(weight), optimizer)

    for i, x, y in batches():
        if i == CHANGE:
            weight = numpy.float32(0.5)
        yield step(x, y), model, optimizer


@case
def element_of_an_array(accelerate):
    model, weights = mlp(), numpy.ones(2)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * float(weights[1]), optimizer))
    yield from fit(step, model, optimizer, change=lambda: weights.__setitem__(1, 0.5))


@case
def array_made_a_tensor(accelerate):
    model, weights = mlp(), numpy.ones(4, dtype=numpy.float32)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y, weight=torch.tensor(weights)), optimizer)

    yield from fit(step, model, optimizer, change=lambda: weights.__imul__(numpy.float32([1, 2, 3, 4])))


@case
def list_made_a_tensor(accelerate):
    model, weights = mlp(), [1.0, 1.0, 1.0, 1.0]
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y, weight=torch.tensor(weights)), optimizer))
    yield from fit(step, model, optimizer, change=lambda: weights.__setitem__(slice(None), [1.0, 2.0, 3.0, 4.0]))


@case
def array_shared_with_a_tensor(accelerate):
    model, weights = mlp(), numpy.ones(4, dtype=numpy.float32)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y, weight=torch.from_numpy(weights)), optimizer))
    yield from fit(step, model, optimizer, change=lambda: weights.__setitem__(2, 5.0))


# ---- modules


class Net(nn.Module):
    """A model with the usual numbers in its attributes."""

    def __init__(self, config=None):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.activation, self.scale, self.config = torch.tanh, 1.0, config

    def forward(self, x):
        scale = self.scale if self.config is None else self.config["scale"]
        return self.second(self.activation(self.first(x))) * scale


@case
def number_in_a_module(accelerate):
    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model, "scale", 2.0))


@case
def config_inside_a_module(accelerate):
    config = {"scale": 1.0}
    model = Net(config)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: config.update(scale=2.0))


@case
def activation_of_a_module(accelerate):
    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model, "activation", nn.functional.gelu))


@case
def layer_replaced(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: model.__setitem__(1, nn.ReLU()))


@case
def smoothing_of_a_loss_module(accelerate):
    model, criterion = mlp(), nn.CrossEntropyLoss()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(criterion(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(criterion, "label_smoothing", 0.2))


@case
def stride_and_dilation(accelerate):
    model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x[:, None]), y), optimizer))

    def change():
        model[0].stride, model[0].dilation = (2,), (2,)

    yield from fit(step, model, optimizer, change=change)


@case(draws=True)
def dropout_probability(accelerate):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(model[1], "p", 0.5))


@case
def momentum_of_a_norm(accelerate):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        model[1].momentum, model[1].eps = None, 1e-3

    for i, x, y in batches(16):
        if i == CHANGE:
            change()
        yield step(x, y), model, optimizer


@case
def forward_replaced_on_the_instance(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    original = model.forward
    yield from fit(step, model, optimizer, change=lambda: setattr(model, "forward", lambda x: original(x) * 0.5))


@case
def hook_swapped(accelerate):
    model = mlp()
    optimizer, handle = sgd(model), model[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        handle.remove()
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)

    yield from fit(step, model, optimizer, change=change)


@case
def order_of_hooks(accelerate):
    model, optimizer = mlp(), None
    optimizer = sgd(model)
    double, shift = (lambda module, inputs, output: output * 2), (lambda module, inputs, output: output + 1)
    handles = [model[0].register_forward_hook(hook) for hook in (double, shift)]
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))

    def change():
        handles[0].remove()
        model[0].register_forward_hook(double)

    yield from fit(step, model, optimizer, change=change)


@case
def number_that_a_hook_reads(accelerate):
    model, strength = mlp(), {"value": 1.0}
    optimizer = sgd(model)
    model[0].register_forward_hook(lambda module, inputs, output: output * strength["value"])
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: strength.update(value=0.3))


@case
def gradient_hook_with_a_mask(accelerate):
    model, mask = mlp(), {0: 1.0}
    optimizer = sgd(model)
    model[0].weight.register_hook(lambda gradient: gradient * mask[0])
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=lambda: mask.update({0: 0.0}))


@case
def hook_of_all_modules(accelerate):
    model, handles = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    hook = lambda module, inputs, output: output * 0.5 if isinstance(module, nn.Tanh) else None
    register = torch.nn.modules.module.register_module_forward_hook
    try:
        yield from fit(step, model, optimizer, change=lambda: handles.append(register(hook)))
    finally:
        for handle in handles:
            handle.remove()


@case
def backward_hook_of_all_modules(accelerate):
    model, handles = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    hook = lambda module, inputs, outputs: tuple(g if g is None else g * 0.5 for g in inputs)
    register = torch.nn.modules.module.register_module_full_backward_hook
    try:
        yield from fit(step, model, optimizer, change=lambda: handles.append(register(hook)))
    finally:
        for handle in handles:
            handle.remove()


@case
def hook_of_all_modules_with_a_setting(accelerate):
    model, options = mlp(), {"scale": 1.0}
    optimizer = sgd(model)
    hook = lambda module, inputs, output: output * options["scale"] if isinstance(module, nn.Tanh) else None
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    try:
        yield from fit(step, model, optimizer, change=lambda: options.update(scale=0.5))
    finally:
        handle.remove()


@case
def hook_of_all_optimizers(accelerate):
    def halve(optimizer, args, kwargs):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    model, handles = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    register = register_optimizer_step_pre_hook
    try:
        yield from fit(step, model, optimizer, change=lambda: handles.append(register(halve)))
    finally:
        for handle in handles:
            handle.remove()


# ---- the usual trainer


class Trainer:
    """As most people write it: the step calls methods, which read what the constructor left."""

    def __init__(self, accelerate):
        self.model, self.weight, self.epoch, self.teacher = mlp(), 1.0, 0, None
        self.optimizer, self.criterion = sgd(self.model), nn.CrossEntropyLoss()
        self.step = accelerate(self.train_step)

    @property
    def smoothing(self):
        return 0.1 * self.epoch

    def loss(self, x, y):
        loss = self.weight * self.criterion(self.model(x), y) + self.smoothing * self.model(x).square().mean()
        return loss if self.teacher is None else loss + (self.model(x) - self.teacher(x)).square().mean()

    def train_step(self, x, y):
        return descend(self.loss(x, y), self.optimizer)


@case
def trainer_with_another_weight(accelerate):
    trainer = Trainer(accelerate)
    yield from fit(trainer.step, trainer.model, trainer.optimizer, change=lambda: setattr(trainer, "weight", 0.5))


@case
def trainer_in_another_epoch(accelerate):
    trainer = Trainer(accelerate)
    yield from fit(trainer.step, trainer.model, trainer.optimizer, change=lambda: setattr(trainer, "epoch", 2))


@case
def trainer_with_another_criterion(accelerate):
    trainer = Trainer(accelerate)
    other = nn.MultiMarginLoss()
    yield from fit(trainer.step, trainer.model, trainer.optimizer, change=lambda: setattr(trainer, "criterion", other))


@case
def trainer_with_a_teacher(accelerate):
    trainer = Trainer(accelerate)
    teacher = mlp().requires_grad_(False)
    yield from fit(trainer.step, trainer.model, trainer.optimizer, change=lambda: setattr(trainer, "teacher", teacher))


@case
def trainer_with_another_model(accelerate):
    trainer = Trainer(accelerate)

    def change():
        trainer.model = mlp()
        trainer.optimizer = adam(trainer.model)

    for seen in fit(trainer.step, change=change):
        yield *seen, trainer.model, trainer.optimizer


@case
def trainer_with_its_loss_replaced(accelerate):
    trainer = Trainer(accelerate)
    other = lambda x, y: cross_entropy(trainer.model(x), y, reduction="sum")
    yield from fit(trainer.step, trainer.model, trainer.optimizer, change=lambda: setattr(trainer, "loss", other))


# ---- from outside


@case
def environment_variable(accelerate):
    model = mlp()
    optimizer = sgd(model)
    os.environ["CATALOGUE_WEIGHT"] = "1.0"
    step = accelerate(
        lambda x, y: descend(cross_entropy(model(x), y) * float(os.environ["CATALOGUE_WEIGHT"]), optimizer))
    yield from fit(step, model, optimizer, change=lambda: os.environ.update(CATALOGUE_WEIGHT="0.5"))


@case
def settings_file(accelerate):
    model = mlp()
    optimizer = sgd(model)
    with tempfile.NamedTemporaryFile("w+") as file:

        def write(weight):
            file.seek(0)
            file.truncate()
            json.dump({"weight": weight}, file)
            file.flush()

        @accelerate
        def step(x, y):
            with open(file.name) as settings:
                weight = json.load(settings)["weight"]
            return descend(cross_entropy(model(x), y) * weight, optimizer)

        write(1.0)
        yield from fit(step, model, optimizer, change=lambda: write(0.5))


@case
def clock(accelerate):
    now, model = [0.0], mlp()
    optimizer, time = sgd(model), types.SimpleNamespace(monotonic=lambda: now[0])
    start = time.monotonic()

    @accelerate
    def step(x, y):
        warm = time.monotonic() - start > 60
        return descend(cross_entropy(model(x), y) * (1.0 if warm else 0.1), optimizer)

    yield from fit(step, model, optimizer, change=lambda: now.__setitem__(0, 100.0))


@case
def context_variable(accelerate):
    weight, model = contextvars.ContextVar("weight", default=1.0), mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * weight.get(), optimizer))
    yield from fit(step, model, optimizer, change=lambda: weight.set(0.5))


@case
def attribute_that_batches_come_to_have(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * getattr(x, "weight", 1.0), optimizer))
    for i, x, y in batches():
        if i >= CHANGE:
            x.weight = 0.5
        yield step(x, y), model, optimizer


@case
def thread_local(accelerate):
    local, model = threading.local(), mlp()
    local.weight = 1.0
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * local.weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(local, "weight", 0.5))


@case
def object_behind_a_weak_reference(accelerate):
    class Options:
        weight = 1.0

    options, model = Options(), mlp()
    reference, optimizer = weakref.ref(options), sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * reference().weight, optimizer))
    yield from fit(step, model, optimizer, change=lambda: setattr(options, "weight", 0.5))


@case
def cached_function(accelerate):
    settings, model = {"weight": 1.0}, mlp()
    optimizer = sgd(model)

    @functools.lru_cache
    def weight():
        return settings["weight"]

    def change():
        settings["weight"] = 0.5
        weight.cache_clear()

    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * weight(), optimizer))
    yield from fit(step, model, optimizer, change=change)


@case(narrow=True)
def autocast_that_the_step_chooses(accelerate):
    model, options = mlp(), types.SimpleNamespace(narrow=False)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.narrow):
            logits = model(x)
        return descend(cross_entropy(logits.float(), y), optimizer)

    yield from fit(step, model, optimizer, change=lambda: setattr(options, "narrow", True))


@case
def frozen_layers_by_name(accelerate):
    model, frozen = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(name.startswith(prefix) for prefix in frozen))
        return descend(cross_entropy(model(x), y), optimizer)

    yield from fit(step, model, optimizer, change=lambda: frozen.append("0."))


@case
def pairs_of_losses(accelerate):
    """The step zips, enumerates and sorts settings: what they yield is read, not how."""
    model, weights = mlp(), {"b": 0.5, "a": 1.0}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits, loss = model(x), 0.0
        for number, (name, weight) in enumerate(sorted(weights.items())):
            loss = loss + weight * (cross_entropy(logits, y) if name == "a" else logits.square().mean()) / (1 + number)
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer, change=lambda: weights.update(c=0.25))


@case
def alternating_objectives(accelerate):
    """Two settings in turn are two plans."""
    model, phase = mlp(), {"now": "fit"}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = cross_entropy(logits, y) if phase["now"] == "fit" else logits.square().mean()
        return descend(loss, optimizer)

    for (i, x, y), now in zip(batches(), itertools.cycle(["fit", "fit", "shrink"])):
        phase["now"] = now if i >= CHANGE else "fit"
        yield step(x, y), model, optimizer


# ---- functions of torch under other bindings


def _rebound(accelerate, wrap, since):
    model, original = mlp(), nn.functional.leaky_relu
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(nn.functional.leaky_relu(model(x)), y), optimizer)

    try:
        for i, x, y in batches():
            if i == since:
                nn.functional.leaky_relu = wrap(original)
            yield step(x, y), model, optimizer
    finally:
        nn.functional.leaky_relu = original


def _doubled(function):
    def wrapper(x):
        return 2 * function(x)

    return wrapper


class _Shifted:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x) + x


@case
def function_of_torch_that_is_wrapped(accelerate):
    return _rebound(accelerate, _doubled, 0)


@case
def function_of_torch_that_is_wrapped_later(accelerate):
    return _rebound(accelerate, _doubled, CHANGE)


@case
def function_of_torch_behind_an_object(accelerate):
    return _rebound(accelerate, _Shifted, CHANGE)


@case
def function_of_torch_with_an_argument_bound(accelerate):
    return _rebound(accelerate, lambda function: functools.partial(function, negative_slope=0.5), CHANGE)


@case
def where_a_batch_comes_from(accelerate):
    """A window on other data, and a tensor of its own, look alike."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        scale = (1.2 if x._base is None else 1.0) + x.storage_offset() / 100
        return descend(cross_entropy(model(x) * scale, y), optimizer)

    for i, x, y in batches(2 * STEPS):
        yield step(torch.cat([x, x])[2:10] if i > CHANGE else x, y), model, optimizer


@case
def tensor_beside_the_model_learns_later(accelerate):
    model, scale = mlp(), torch.ones(4)
    optimizer = sgd(model)
    settings = {"scale": scale}

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x) * settings["scale"], y), optimizer)
        gradient, settings["scale"].grad = settings["scale"].grad, None
        return loss, gradient

    for i, x, y in batches(16):
        if i == CHANGE:
            scale.requires_grad_()
        yield step(x, y), model, optimizer


@case
def penalty_made_before_the_step(accelerate):
    """Its graph saves no tensor, so that only a call of the backward pass says by how much it counts."""
    model, terms = mlp(), {}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y) + terms["penalty"], optimizer)

    for i, x, y in batches(20):
        terms["penalty"] = sum(p.sum() for p in model.parameters()) * (0.01 if i < 9 else 0.05)
        yield step(x, y), model, optimizer


@case
def penalty_passed_to_the_step(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, penalty):
        return descend(cross_entropy(model(x), y) + penalty, optimizer)

    for i, x, y in batches(20):
        yield step(x, y, sum(p.sum() for p in model.parameters()) * (0.01 if i < 9 else 0.05)), model, optimizer
