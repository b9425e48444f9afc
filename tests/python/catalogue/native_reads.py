"""Programs whose numbers are read by native code or by the interpreter's own machinery: buffers, containers in containers,
metaclasses, caches, registries. They change between two looks at the step."""

import abc
import collections
import ctypes
import functools
import operator
import struct
import types

import numpy
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import batches, descend, mlp, sgd

LATE = 10  # no replay is looked at here, so only what is watched tells


def weighted(accelerate, weight, change):
    """A loss times weight(); before step LATE the program calls change()."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return descend(cross_entropy(model(x), y) * weight(), optimizer)

    for i, x, y in batches(20):
        if i == LATE:
            change()
        yield step(x, y), model, optimizer


def setter(container, key, value):
    return functools.partial(operator.setitem, container, key, value)


# ---- memory


@case
def byte_of_a_bytearray(accelerate):
    weights = bytearray([1, 2])
    yield from weighted(accelerate, lambda: weights[0], setter(weights, 0, 3))


@case
def element_of_a_memoryview(accelerate):
    weights = numpy.ones(2)
    view = memoryview(weights)
    yield from weighted(accelerate, lambda: view[0], setter(weights, 0, 3.0))


@case
def number_packed_in_bytes(accelerate):
    weights = bytearray(struct.pack("d", 1.0))
    yield from weighted(accelerate, lambda: struct.unpack("d", weights)[0],
                        setter(weights, slice(None), struct.pack("d", 3.0)))


@case
def field_of_a_c_structure(accelerate):
    class Weights(ctypes.Structure):
        _fields_ = [("first", ctypes.c_double)]

    weights = Weights(1.0)
    yield from weighted(accelerate, lambda: weights.first, lambda: setattr(weights, "first", 3.0))


@case
def number_of_c(accelerate):
    weight = ctypes.c_double(1.0)
    yield from weighted(accelerate, lambda: weight.value, lambda: setattr(weight, "value", 3.0))


@case
def record_of_an_array(accelerate):
    table = numpy.ones(2, dtype=[("weight", "f8")])
    row = table[0]
    yield from weighted(accelerate, lambda: float(row["weight"]), setter(table["weight"], 0, 3.0))


@case
def array_with_another_sign(accelerate):
    weights = -numpy.ones(2)
    yield from weighted(accelerate, lambda: float((-weights)[0]), setter(weights, 0, -3.0))


@case
def elements_by_a_list_of_indices(accelerate):
    weights, chosen = numpy.arange(1.0, 5.0), [0]
    yield from weighted(accelerate, lambda: float(weights[chosen][0]), setter(chosen, 0, 3))


@case
def columns_cleared_by_a_list(accelerate):
    model, columns = mlp(), [0, 1]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        x = x.clone()
        x[:, columns] = 0.0
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches(20):
        if i == LATE:
            columns[0] = 5
        yield step(x, y), model, optimizer


# ---- containers in containers


@case
def number_of_all_elements(accelerate):
    queues = [[1], [2, 3]]
    yield from weighted(accelerate, lambda: sum(map(len, queues)), lambda: queues[0].append(4))


@case
def sum_of_joined_lists(accelerate):
    parts = [[1.0], [2.0, 3.0]]
    yield from weighted(accelerate, lambda: sum(sum(parts, [])), setter(parts[0], 0, 5.0))


@case
def lists_that_are_compared(accelerate):
    table, usual = [[1.0], [2.0]], [[1.0], [2.0]]
    yield from weighted(accelerate, lambda: 1.0 if table == usual else 0.5, setter(table[0], 0, 5.0))


@case
def list_in_a_list_of_lists(accelerate):
    table = [[1.0], [2.0]]
    yield from weighted(accelerate, lambda: 1.0 if [1.0] in table else 0.5, setter(table[0], 0, 5.0))


@case
def lists_in_order(accelerate):
    table = [[1.0, 2.0], [3.0, 4.0]]
    yield from weighted(accelerate, lambda: sorted(table)[0][1], setter(table[0], 0, 5.0))


@case
def any_queue_with_elements(accelerate):
    queues = [[], []]
    yield from weighted(accelerate, lambda: 0.5 if any(queues) else 1.0, lambda: queues[1].append(1))


@case
def view_of_a_dict(accelerate):
    weights = {"first": 1.0}
    values = weights.values()
    yield from weighted(accelerate, lambda: sum(values), setter(weights, "first", 3.0))


@case
def getter_over_objects(accelerate):
    terms = [types.SimpleNamespace(weight=1.0), types.SimpleNamespace(weight=2.0)]
    yield from weighted(accelerate, lambda: sum(map(operator.attrgetter("weight"), terms)),
                        lambda: setattr(terms[0], "weight", 3.0))


@case
def largest_by_a_getter(accelerate):
    terms = [types.SimpleNamespace(order=1, weight=1.0), types.SimpleNamespace(order=2, weight=2.0)]
    yield from weighted(accelerate, lambda: max(terms, key=operator.attrgetter("order")).weight,
                        lambda: setattr(terms[0], "order", 3))


@case
def attribute_in_a_format(accelerate):
    settings = types.SimpleNamespace(weight=1.0)
    yield from weighted(accelerate, lambda: float("{0.weight}".format(settings)), lambda: setattr(settings, "weight", 3.0))


# ---- classes


@case
def property_made_of_a_getter(accelerate):
    class Settings:
        weight = property(operator.attrgetter("_weight"))

    settings = Settings()
    settings._weight = 1.0
    yield from weighted(accelerate, lambda: settings.weight, lambda: setattr(settings, "_weight", 3.0))


@case
def attribute_of_a_metaclass(accelerate):
    class Meta(type):
        weight = 1.0

    class Settings(metaclass=Meta):
        pass

    yield from weighted(accelerate, lambda: Settings.weight, lambda: setattr(Meta, "weight", 3.0))


@case
def property_of_a_metaclass(accelerate):
    class Meta(type):
        _weight = 1.0
        weight = property(lambda cls: cls._weight)

    class Settings(metaclass=Meta):
        pass

    yield from weighted(accelerate, lambda: Settings.weight, lambda: setattr(Meta, "_weight", 3.0))


@case
def number_with_an_attribute(accelerate):
    class Weight(float):
        pass

    weight = Weight(1.0)
    weight.factor = 1.0
    yield from weighted(accelerate, lambda: weight * weight.factor, lambda: setattr(weight, "factor", 3.0))


@case
def item_as_an_attribute(accelerate):
    class Settings(dict):
        __getattr__ = dict.__getitem__

    settings = Settings(loss=Settings(weight=1.0))
    yield from weighted(accelerate, lambda: settings.loss.weight, setter(settings["loss"], "weight", 3.0))


@case
def class_registered_with_an_abstract_one(accelerate):
    class Heavy(abc.ABC):
        pass

    class Term:
        pass

    term = Term()
    yield from weighted(accelerate, lambda: 2.0 if isinstance(term, Heavy) else 1.0, lambda: Heavy.register(Term))


@case
def attribute_that_a_module_computes(accelerate):
    module = types.ModuleType("settings")
    module.__getattr__ = lambda name: 1.0
    yield from weighted(accelerate, lambda: module.weight, lambda: setattr(module, "__getattr__", lambda name: 3.0))


# ---- registries and caches


@case
def function_registered_for_a_type(accelerate):
    @functools.singledispatch
    def weight_of(value):
        return 1.0

    yield from weighted(accelerate, lambda: weight_of(2), lambda: weight_of.register(int)(lambda value: 3.0))


@case
def cache_that_is_cleared(accelerate):
    settings = {"weight": 1.0}

    @functools.lru_cache
    def weight():
        return settings["weight"]

    weight()

    def change():
        settings["weight"] = 3.0
        weight.cache_clear()

    yield from weighted(accelerate, weight, change)


@case
def settings_that_the_step_takes_over_once(accelerate):
    """What an earlier recording read is not forgotten where the step writes to it later."""
    model = mlp()
    optimizer = sgd(model)
    settings = types.SimpleNamespace(weight=1.0, next=None)

    @accelerate
    def step(x, y):
        if settings.next is not None:
            settings.weight, settings.next = settings.next, None
        return descend(cross_entropy(model(x), y) * settings.weight, optimizer)

    for i, x, y in batches(20):
        if i == LATE:
            settings.next = 3.0
        yield step(x, y), model, optimizer, settings.weight


@case
def parameters_of_a_functional_call(accelerate):
    model = mlp()
    parameters = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    step = accelerate(lambda x, y: descend(cross_entropy(functional_call(model, parameters, (x,)), y), optimizer))
    for i, x, y in batches(16):
        if i == LATE:
            parameters["2.bias"] = torch.zeros(4)
        yield step(x, y), optimizer, parameters


@case(eager="_version")
def version_of_a_parameter(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * (1 + model[0].weight._version % 5), optimizer))
    for _, x, y in batches():
        yield step(x, y), model, optimizer


# ---- results of unusual classes


def returned(accelerate, made):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        return made(descend(cross_entropy(model(x), y), optimizer))

    for _, x, y in batches():
        yield step(x, y), model, optimizer


class Named(list):
    def __init__(self, name, *values):
        super().__init__(values)
        self.name = name


class Pair(tuple):
    def __new__(cls, first, second):
        return super().__new__(cls, (first, second))


@case
def default_dict_returned(accelerate):
    def made(loss):
        result = collections.defaultdict(list)
        result["losses"].append(loss)
        return result

    for result, *looks in returned(accelerate, made):
        yield ([result, result["another"]], *looks)


@case
def counter_returned(accelerate):
    for result, *looks in returned(accelerate, lambda loss: collections.Counter({1: loss, 2: 3})):
        yield ([type(result).__name__, result[1], result[2], result[3]], *looks)


@case
def layers_of_dicts_returned(accelerate):
    for result, *looks in returned(accelerate, lambda loss: collections.ChainMap({"loss": loss}, {"rows": 8})):
        yield ([len(result.maps), result["loss"], result["rows"]], *looks)


@case
def list_with_a_name_returned(accelerate):
    for result, *looks in returned(accelerate, lambda loss: Named("loss", loss)):
        yield ([type(result).__name__, result.name, *result], *looks)


@case
def pair_returned(accelerate):
    for result, *looks in returned(accelerate, lambda loss: Pair(loss, 2)):
        yield ([type(result).__name__, *result], *looks)


# ---- around the step


@case
def saved_tensors_counted_around_a_step(accelerate):
    model, saved = mlp(), []
    optimizer = sgd(model)

    def pack(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(20):
        if i == LATE:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = step(x, y)
        else:
            loss = step(x, y)
        yield loss.detach(), model, optimizer, list(saved)


@case
def functions_seen_around_a_step(accelerate):
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    model, seen = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(20):
        if i == LATE:
            with Seen():
                loss = step(x, y)
        else:
            loss = step(x, y)
        yield loss.detach(), model, optimizer, list(seen)


@case
def anomalies_looked_for_now_and_then(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(20):
        error = ""
        loss = torch.zeros(())
        with torch.autograd.set_detect_anomaly(i == LATE):
            try:
                loss = step(x * float("nan") if i == LATE else x, y)
            except RuntimeError as raised:
                error = str(raised)
        optimizer.zero_grad()
        yield loss.detach(), model, optimizer, error


@case
def default_device_of_one_step(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        device = str(torch.zeros(1).device)
        return descend(cross_entropy(model(x), y), optimizer), device

    for i, x, y in batches(20):
        torch.set_default_device("meta" if i == LATE else None)
        try:
            loss, device = step(x, y)
        finally:
            torch.set_default_device(None)
        yield [loss.detach(), device], model, optimizer


@case
def accelerated_step_inside_another(accelerate):
    critic, actor = mlp(), mlp()
    optimizers = sgd(critic), sgd(actor)
    inner = accelerate(lambda x, y: descend(cross_entropy(critic(x), y), optimizers[0]))

    @accelerate
    def outer(x, y):
        first = inner(x, y)
        return first.detach(), descend(cross_entropy(actor(x), y), optimizers[1])

    for _, x, y in batches():
        yield outer(x, y), critic, actor, *optimizers
