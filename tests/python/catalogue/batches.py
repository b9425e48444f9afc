"""Batches as people have them: objects, texts and ids beside tensors, arrays, lists of numbers, shared memory."""

import collections
import dataclasses
import functools
import types

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, batches, data, descend, mlp, sgd


def trained(accelerate, make_batch, loss_of, *, steps=STEPS):
    """The ordinary step over whatever `make_batch(i, x, y)` gives."""
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda batch: descend(loss_of(model, batch), optimizer))
    for i, x, y in batches(steps):
        yield step(make_batch(i, x, y)), model, optimizer


# ---- objects


class Batch:
    """As graph libraries have them."""

    def __init__(self, x, y, number=0):
        self.x, self.y, self.number = x, y, number

    def __len__(self):
        return len(self.x)


@case
def object_with_attributes(accelerate):
    yield from trained(accelerate, lambda i, x, y: Batch(x, y), lambda model, b: cross_entropy(model(b.x), b.y))


@case
def object_with_a_number_nobody_reads(accelerate):
    yield from trained(accelerate, Batch_numbered, lambda model, b: cross_entropy(model(b.x), b.y))


def Batch_numbered(i, x, y):
    return Batch(x, y, number=i)


@case
def object_with_a_number_that_is_read(accelerate):
    loss_of = lambda model, b: cross_entropy(model(b.x), b.y) * (0.5 if b.number < CHANGE else 1.0)
    yield from trained(accelerate, Batch_numbered, loss_of)


@case
def object_that_the_step_writes_to(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(batch):
        batch.logits = model(batch.x)
        batch.number += 1
        return descend(cross_entropy(batch.logits, batch.y), optimizer)

    for _, x, y in batches():
        batch = Batch(x, y)
        yield step(batch), model, optimizer, batch.logits, batch.number


@case
def object_with_slots(accelerate):
    class Slotted:
        __slots__ = ("x", "y", "name")

    def make(i, x, y):
        batch = Slotted()
        batch.x, batch.y, batch.name = x, y, f"sample-{i}"
        return batch

    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b.x), b.y))


@case
def namespace(accelerate):
    yield from trained(accelerate, lambda i, x, y: types.SimpleNamespace(x=x, y=y, step=i),
                       lambda model, b: cross_entropy(model(b.x), b.y))


@case
def object_whose_class_has_the_default(accelerate):
    """An attribute of the class, until a batch has one of its own."""

    class Weighed(Batch):
        weight = 1.0

    def make(i, x, y):
        batch = Weighed(x, y)
        if i >= CHANGE:
            batch.weight = 0.25
        return batch

    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b.x), b.y) * b.weight)


@case
def object_that_is_looked_at_whole(accelerate):
    def loss_of(model, b):
        held = vars(b)
        return cross_entropy(model(held["x"]), held["y"]) * held["number"]

    make = lambda i, x, y: Batch(x, y, number=1 if i < CHANGE else 2)
    yield from trained(accelerate, make, loss_of)


@case
def objects_in_objects(accelerate):
    """Each refers to the other."""

    def make(i, x, y):
        batch = Batch(Batch(x, None, number=i), y)
        batch.x.owner = batch
        return batch

    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b.x.x), b.x.owner.y))


@case
def list_of_objects(accelerate):
    def loss_of(model, samples):
        x, y = torch.stack([one.x for one in samples]), torch.stack([one.y for one in samples])
        return cross_entropy(model(x), y)

    make = lambda i, x, y: [Batch(row, label, number=i) for row, label in zip(x, y)]
    yield from trained(accelerate, make, loss_of)


@case
def dataclass_with_a_derived_field(accelerate):
    @dataclasses.dataclass
    class Sample:
        x: torch.Tensor
        y: torch.Tensor
        size: int = dataclasses.field(init=False)

        def __post_init__(self):
            self.size = len(self.x)

    yield from trained(accelerate, lambda i, x, y: Sample(x, y),
                       lambda model, b: cross_entropy(model(b.x), b.y) * b.size / 8)


@case
def dataclass_with_a_property_that_is_kept(accelerate):
    @dataclasses.dataclass
    class Sample:
        x: torch.Tensor
        y: torch.Tensor

        @functools.cached_property
        def centred(self):
            return self.x - self.x.mean(0)

    made = []

    def make(i, x, y):
        made.append(Sample(x, y))
        return made[-1]

    for output, model, optimizer in trained(accelerate, make, lambda model, b: cross_entropy(model(b.centred), b.y)):
        yield output, model, optimizer, sorted(vars(made[-1]))


@case
def named_tuple_with_an_id(accelerate):
    Transition = collections.namedtuple("Transition", "x y id")
    yield from trained(accelerate, lambda i, x, y: Transition(x, y, i),
                       lambda model, b: cross_entropy(model(b.x), b.y))


@case
def user_dict(accelerate):
    """What tokenizers return."""
    yield from trained(accelerate, lambda i, x, y: collections.UserDict(x=x, y=y),
                       lambda model, b: cross_entropy(model(b["x"]), b["y"]))


@case
def nested_containers(accelerate):
    make = lambda i, x, y: {"inputs": [x, {"noise": x * 0.1}], "meta": (y, None), "tag": "train"}

    def loss_of(model, b):
        x, extra = b["inputs"]
        return cross_entropy(model(x + extra["noise"]), b["meta"][0])

    yield from trained(accelerate, make, loss_of)


# ---- texts and ids


@case
def file_names(accelerate):
    make = lambda i, x, y: {"x": x, "y": y, "files": [f"image-{8 * i + k}.png" for k in range(8)]}
    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b["x"]), b["y"]))


@case
def ids_in_a_list(accelerate):
    make = lambda i, x, y: (x, y, list(range(8 * i, 8 * i + 8)))
    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b[0]), b[1]))


@case
def step_number_as_argument(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y, number: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches():
        yield step(x, y, i), model, optimizer


@case
def step_number_that_weighs(accelerate):
    """Another number every step, used in arithmetic on tensors alone."""
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y, number: descend(cross_entropy(model(x), y) / (1 + number), optimizer))
    for i, x, y in batches(16):
        yield step(x, y, i), model, optimizer


@case
def name_of_the_data_set(accelerate):
    """A text that decides which head is trained."""
    body, heads = nn.Linear(8, 8), nn.ModuleDict({"one": nn.Linear(8, 4), "two": nn.Linear(8, 4)})
    optimizer = sgd(body, heads)

    @accelerate
    def step(batch):
        logits = heads[batch["task"]](body(batch["x"]))
        return descend(cross_entropy(logits, batch["y"]), optimizer)

    for i, x, y in batches(20):
        yield step({"x": x, "y": y, "task": "one" if i % 3 else "two"}), body, heads, optimizer


@case
def keys_in_another_order(accelerate):
    make = lambda i, x, y: {"x": x, "y": y} if i % 2 else {"y": y, "x": x}
    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b["x"]), b["y"]), steps=16)


@case
def optional_part(accelerate):
    def loss_of(model, b):
        loss = cross_entropy(model(b["x"]), b["y"], reduction="none")
        return loss.mean() if b.get("weights") is None else (loss * b["weights"]).mean()

    make = lambda i, x, y: {"x": x, "y": y, "weights": x[:, 0].abs() if i % 2 else None}
    yield from trained(accelerate, make, loss_of, steps=20)


# ---- arrays and lists of numbers


@case
def arrays(accelerate):
    make = lambda i, x, y: {"x": x.numpy(), "y": y.numpy()}
    loss_of = lambda model, b: cross_entropy(model(torch.from_numpy(b["x"])), torch.from_numpy(b["y"]))
    yield from trained(accelerate, make, loss_of)


@case
def arrays_copied_into_tensors(accelerate):
    make = lambda i, x, y: (x.double().numpy(), y.numpy())
    loss_of = lambda model, b: cross_entropy(model(torch.tensor(b[0], dtype=torch.float32)), torch.as_tensor(b[1]))
    yield from trained(accelerate, make, loss_of)


@case
def array_of_numbers_beside_tensors(accelerate):
    make = lambda i, x, y: {"x": x, "y": y, "weights": numpy.linspace(0.5, 1.0 + 0.1 * i, 4).astype(numpy.float32)}
    loss_of = lambda model, b: cross_entropy(model(b["x"]), b["y"], weight=torch.from_numpy(b["weights"]))
    yield from trained(accelerate, make, loss_of)


@case
def lists_of_numbers(accelerate):
    make = lambda i, x, y: (x.tolist(), y.tolist())
    loss_of = lambda model, b: cross_entropy(model(torch.tensor(b[0])), torch.tensor(b[1]))
    yield from trained(accelerate, make, loss_of)


@case
def list_of_rows(accelerate):
    make = lambda i, x, y: [(row, int(label)) for row, label in zip(x, y)]

    def loss_of(model, rows):
        x, y = torch.stack([row for row, _ in rows]), torch.tensor([label for _, label in rows])
        return cross_entropy(model(x), y)

    yield from trained(accelerate, make, loss_of)


@case
def weight_as_a_numpy_number(accelerate):
    make = lambda i, x, y: (x, y, numpy.float64(1.0 / (1 + i)))
    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b[0]), b[1]) * float(b[2]), steps=16)


@case
def weight_as_a_tensor(accelerate):
    make = lambda i, x, y: (x, y, torch.tensor(1.0 / (1 + i)))
    yield from trained(accelerate, make, lambda model, b: cross_entropy(model(b[0]), b[1]) * b[2])


# ---- memory


@case
def overlapping_windows(accelerate):
    """How far the windows overlap changes."""
    model = mlp()
    optimizer, rows, (_, y) = sgd(model), data(40)[0], data()
    step = accelerate(
        lambda a, b: descend(cross_entropy(model(a), y) + (model(a) - model(b)).square().mean(), optimizer))
    for i in range(STEPS):
        yield step(rows[i : i + 8], rows[i + 1 + i % 3 : i + 9 + i % 3]), model, optimizer


@case
def overlapping_windows_written_to(accelerate):
    model = mlp()
    optimizer, (_, y) = sgd(model), data()

    @accelerate
    def step(a, b):
        a.mul_(0.5)
        b.add_(1.0)
        return descend(cross_entropy(model(a), y) + model(b).square().mean(), optimizer)

    for i in range(18):
        rows = data(24, seed=i)[0]
        offset = 2 if i < CHANGE else 4
        yield step(rows[:8], rows[offset : offset + 8]), model, optimizer, rows


@case
def one_tensor_twice(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(
        lambda a, b, y: descend(cross_entropy(model(a), y) + (model(a) - model(b)).abs().mean(), optimizer))
    for i, x, y in batches(16):
        yield step(x, x if i < CHANGE else x.flip(0), y), model, optimizer


@case
def buffer_that_is_filled_again(accelerate):
    """Pinned staging memory: the batch is always the same tensor."""
    model, x, y = mlp(), torch.empty(8, 8), torch.empty(8, dtype=torch.long)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, rows, classes in batches():
        x.copy_(rows)
        y.copy_(classes)
        yield step(x, y), model, optimizer


@case
def batch_changed_in_place(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        x.sub_(x.mean(0)).div_(x.std(0) + 1e-5)
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, x


@case
def transposed_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(16):
        yield step(x.T if i >= CHANGE else x, y), model, optimizer


# ---- loaders


@case
def loader_of_dicts(accelerate):
    class Rows(Dataset):
        def __len__(self):
            return 8 * STEPS

        def __getitem__(self, index):
            x, y = data(1, seed=index)
            return {"x": x[0], "y": y[0], "id": f"row {index}", "index": index}

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda batch: descend(cross_entropy(model(batch["x"]), batch["y"]), optimizer))
    for batch in DataLoader(Rows(), 8, shuffle=True):
        yield step(batch), model, optimizer, batch["id"]


@case
def last_batch_is_smaller(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _ in range(5):
        for x, y in DataLoader(TensorDataset(*data(36)), 8, shuffle=True):
            yield step(x, y), model, optimizer


@case(eager="length|shape|size|plans")
def lengths_that_never_repeat(accelerate):
    """Every batch has a length of its own: a plan for each would never pay."""
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    optimizer = sgd(model)
    step = accelerate(lambda x: descend(cross_entropy(model(x[:-1]), x[1:]), optimizer))
    for i in range(24):
        yield step(data(6 + i, seed=i)[1]), model, optimizer
