"""Programs that change a class after the plan was made: its methods, those of its bases, and which bases it has. Which
method runs is decided by all of them, also by one that was not there when the step was recorded."""

import functools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import CLASSES, FEATURES, HIDDEN, descend, fit, mlp, sgd


def weighted(accelerate, weight, change):
    """A loss times weight()."""
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * weight(), optimizer))
    yield from fit(step, model, optimizer, change=change)


def modelled(accelerate, model, change):
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, change=change)


def setter(kind, name, value):
    return functools.partial(setattr, kind, name, value)


def family():
    """Three classes of models, each the next one's base."""

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return self.inner(x)

    class Middle(Base):
        pass

    class Net(Middle):
        pass

    return Base, Middle, Net


def doubled(self, x):
    return self.inner(x * 2)


# ---- of models


@case
def forward_of_a_base_replaced(accelerate):
    base, _, net = family()
    yield from modelled(accelerate, net(), setter(base, "forward", doubled))


@case
def forward_that_a_class_between_gets(accelerate):
    _, middle, net = family()
    yield from modelled(accelerate, net(), setter(middle, "forward", doubled))


@case
def forward_that_a_layer_of_torch_gets(accelerate):
    class Layer(nn.Linear):
        pass

    model = nn.Sequential(Layer(FEATURES, HIDDEN), nn.Tanh(), Layer(HIDDEN, CLASSES))
    yield from modelled(accelerate, model, setter(Layer, "forward", lambda self, x: nn.Linear.forward(self, x) * 2))


@case
def forward_of_a_class_of_torch_replaced(accelerate):
    forward = nn.Tanh.forward
    try:
        yield from modelled(accelerate, mlp(), setter(nn.Tanh, "forward", lambda self, x: torch.sigmoid(x)))
    finally:
        nn.Tanh.forward = forward


@case
def call_that_a_model_gets(accelerate):
    _, _, net = family()
    yield from modelled(accelerate, net(), setter(net, "__call__", doubled))


@case
def model_of_another_base(accelerate):
    _, middle, net = family()

    class Doubled(nn.Module):
        def forward(self, x):
            return doubled(self, x)

    yield from modelled(accelerate, net(), setter(middle, "__bases__", (Doubled,)))


@case
def model_made_one_of_a_derived_class(accelerate):
    base, _, _ = family()

    class Doubled(base):
        def forward(self, x):
            return super().forward(x * 2)

    model = base()
    yield from modelled(accelerate, model, setter(model, "__class__", Doubled))


# ---- of other objects


@case
def bases_assigned(accelerate):
    class One:
        weight = 1.0

    class Two:
        weight = 0.5

    class Derived(One):
        pass

    options = Derived()
    yield from weighted(accelerate, lambda: options.weight, setter(Derived, "__bases__", (Two,)))


@case
def method_that_a_mixin_gets(accelerate):
    class Mixin:
        pass

    class Base:
        def weight(self):
            return 1.0

    class Both(Mixin, Base):
        pass

    both = Both()
    yield from weighted(accelerate, lambda: both.weight(), setter(Mixin, "weight", lambda self: 0.5))


@case
def attribute_of_a_metaclass_base(accelerate):
    class Base(type):
        weight = 1.0

    class Meta(Base):
        pass

    class Options(metaclass=Meta):
        pass

    yield from weighted(accelerate, lambda: Options.weight, setter(Base, "weight", 0.5))


@case
def property_in_front_of_an_attribute(accelerate):
    class Options:
        pass

    options = Options()
    options.weight = 1.0
    yield from weighted(accelerate, lambda: options.weight, setter(Options, "weight", property(lambda self: 0.5)))


@case
def keywords_of_a_partial_method(accelerate):
    class Options:
        def scaled(self, by):
            return by

        weight = functools.partialmethod(scaled, by=1.0)

    options = Options()
    change = functools.partial(vars(Options)["weight"].keywords.update, by=0.5)
    yield from weighted(accelerate, lambda: options.weight(), change)


@case
def function_of_a_partial_method(accelerate):
    class Options:
        def scaled(self, by):
            return by

        weight = functools.partialmethod(scaled, by=1.0)

    options = Options()
    change = setter(vars(Options)["weight"], "func", lambda self, by: by / 2)
    yield from weighted(accelerate, lambda: options.weight(), change)


@case
def attributes_that_come_to_be_made_on_demand(accelerate):
    class Options:
        pass

    options = Options()
    change = setter(Options, "__getattr__", lambda self, name: 0.5)
    yield from weighted(accelerate, lambda: getattr(options, "weight", 1.0), change)


@case
def every_attribute_made_on_demand(accelerate):
    class Base:
        pass

    class Derived(Base):
        pass

    options = Derived()
    options.weight = 1.0
    yield from weighted(accelerate, lambda: options.weight, setter(Base, "__getattribute__", lambda self, name: 0.5))


# ---- of operators


@case
def call_that_a_derived_class_gets(accelerate):
    class Base:
        def __call__(self):
            return 1.0

    class Derived(Base):
        pass

    yield from weighted(accelerate, Derived(), setter(Derived, "__call__", lambda self: 0.5))


@case
def sum_of_a_class_replaced(accelerate):
    class Number:
        def __add__(self, other):
            return 1.0

    class Derived(Number):
        pass

    number = Derived()
    yield from weighted(accelerate, lambda: number + 1, setter(Derived, "__add__", lambda self, other: 0.5))


@case
def items_that_a_kind_of_dict_gets(accelerate):
    class Weights(dict):
        pass

    weights = Weights(weight=1.0)
    change = setter(Weights, "__getitem__", lambda self, key: 0.5)
    yield from weighted(accelerate, lambda: weights["weight"], change)


@case
def truth_that_a_class_gets(accelerate):
    class Flag:
        pass

    flag = Flag()
    yield from weighted(accelerate, lambda: 1.0 if flag else 0.5, setter(Flag, "__bool__", lambda self: False))


@case
def class_that_counts_what_nobody_reads(accelerate):
    """Numbers of a class are compared one by one: only those that the step reads."""

    class Options:
        weight, seen = 1.0, 0

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * Options.weight, optimizer))
    for seen in fit(step, model, optimizer, change=setter(Options, "weight", 0.5)):
        Options.seen += 1
        yield *seen, Options.seen
