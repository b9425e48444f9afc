"""AsyncLoader: a run that is saved and goes on in another process gives the rows of the run that never stopped.

Each case makes the same loader twice. The first run is saved at every place of three epochs; each of these states, as text
as a checkpoint has it, goes on with a loader that is made anew, after draws of another program. Compared are all rows from
there on, and what the program itself draws between two batches.
"""

import itertools
import random

import numpy
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import (BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler,
                              SubsetRandomSampler, WeightedRandomSampler)

import stepc
from stepc import plain

ROWS, BATCH_SIZE, EPOCHS = 11, 2, 3


class Rows(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return i


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


class Program:
    """A loop over a loader, which draws between two batches as dropout does."""

    def __init__(self, make, prefetch=2):
        self.loader = stepc.AsyncLoader(make(), prefetch=prefetch)

    def epochs(self, first=0, save_at=()):
        """All batches by epoch, each with what the program draws then, and the states at some places: behind so many batches
        of an epoch, or (epoch, None) between two."""
        seen, states = {}, {}
        for number in range(first, EPOCHS):
            if (number, None) in save_at:
                states[number, None] = self.state()
            sampler = getattr(self.loader.loader, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)
            rows = seen[number] = []
            for batch in self.loader:
                rows.append((batch.tolist() if isinstance(batch, torch.Tensor) else batch, torch.rand(1).item()))
                if (number, len(rows)) in save_at:
                    states[number, len(rows)] = self.state()
        return seen, states

    def state(self):
        return plain.to_json({"loader": self.loader.state_dict(), "torch": torch.get_rng_state()}, "state")

    def load(self, text):
        state = plain.from_json(text)
        torch.set_rng_state(state["torch"])
        self.loader.load_state_dict(state["loader"])


def program(make, seed, **options):
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    return Program(make, **options)


def assert_goes_on(make, places=None, again=1, **options):
    """In every place, and where a run that has gone on is saved `again` so many batches into its second epoch."""
    wanted, _ = program(make, 0, **options).epochs()
    last = len(wanted[1])
    places = {(0, None), (0, 1), (1, None), (1, last), (2, 2)} if places is None else places
    seen, states = program(make, 0, **options).epochs(save_at=places)
    assert seen == wanted, "to save changes what comes"
    assert states.keys() == places
    for place, state in states.items():
        for (number, count), state in gone_on(make, wanted, place, state, (place[0] + 1, again), **options).items():
            gone_on(make, wanted, (number, count), state, None, **options)


def gone_on(make, wanted, place, state, save_at, **options):
    """The states of a run that goes on from this one with the rows that it should have."""
    number, count = place
    other = program(make, 100, **options)
    torch.rand(3)
    other.load(state)
    got, states = other.epochs(number, save_at={save_at})
    expected = {epoch: rows[(count or 0) * (epoch == number):] for epoch, rows in wanted.items() if epoch >= number}
    assert got == expected, f"saved in epoch {number} behind {count} batches"
    return states


class OfItsOwn(Sampler):
    """Samplers as people write them, by how they choose an order."""

    def __init__(self, kind, generator=None):
        self.kind, self.generator = kind, generator
        self.order, self.epoch = list(range(ROWS)), 0
        self.random, self.array = random.Random(5), numpy.arange(ROWS)
        self.numpy, self.rounds = numpy.random.default_rng(5), numpy.int64(0)

    def __len__(self):
        return ROWS

    def __iter__(self):
        if self.kind == "counts":
            self.epoch += 1
            self.rounds += 1
            return iter(torch.randperm(ROWS, generator=seeded(self.epoch * int(self.rounds))).tolist())
        if self.kind == "shuffles":  # what it holds, again and again
            self.random.shuffle(self.order)
        if self.kind == "array":
            self.numpy.shuffle(self.array)
            return iter(self.array.tolist())
        if self.kind == "process":
            random.shuffle(self.order)
            return iter(numpy.random.permutation(self.order).tolist())
        if self.kind == "draws":
            return (int(torch.randint(ROWS, (), generator=self.generator)) for _ in range(ROWS))
        return iter(self.order)


class WithState(Sampler):
    """Says where it is, as torchdata's: by the number of rows given, or by the epoch alone."""

    def __init__(self, has_position):
        self.has_position, self.seeds, self.given, self.at = has_position, iter(range(100)), 0, 0
        self.epoch = next(self.seeds)

    def __len__(self):
        return ROWS

    def __iter__(self):
        order = torch.randperm(ROWS, generator=seeded(self.epoch)).tolist()
        first, self.at = self.at, 0
        for self.given in range(first + 1, ROWS + 1):
            yield order[self.given - 1]
        self.epoch, self.given = next(self.seeds), 0

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given} if self.has_position else {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state.get("given", 0)
        self.given, self.seeds = self.at, iter(range(self.epoch + 1, 100))


class Buckets(Sampler):
    def __init__(self):
        self.generator = seeded()

    def __iter__(self):
        for one in torch.randperm(5, generator=self.generator).tolist():
            yield [2 * one, 2 * one + 1]


class Stream(IterableDataset):
    """Shuffled by the generator of the process, or by its count of epochs."""

    def __init__(self, counts=False):
        self.counts, self.epoch = counts, 0

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        self.epoch += 1
        order = torch.randperm(ROWS, generator=seeded(self.epoch) if self.counts else None).tolist()
        return iter(order[worker.id::worker.num_workers] if worker else order)


class StreamWithState(Stream):
    def __init__(self):
        super().__init__(True)
        self.given = self.at = 0

    def __iter__(self):
        order = list(super().__iter__())
        first, self.at = self.at, 0
        for self.given in range(first + 1, ROWS + 1):
            yield order[self.given - 1]

    def state_dict(self):
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        self.at = state["given"] % ROWS
        self.epoch = state["epoch"] - (1 if self.at else 0)


class Plain:
    """No DataLoader at all."""

    generator = None

    def __init__(self):
        self.random = random.Random(3)

    def __iter__(self):
        order = list(range(ROWS))
        self.random.shuffle(order)
        return iter(torch.tensor(order).split(2))


def loader(*args, **kwargs):
    return lambda: DataLoader(Rows(), BATCH_SIZE, *args, **{name: one() if callable(one) else one for name, one in kwargs.items()})


WEIGHTS = [1.0 + i for i in range(ROWS)]
IN_PROCESS = {
    "shuffled": loader(shuffle=True),
    "shuffled by a generator": loader(shuffle=True, generator=seeded),
    "last batch dropped": loader(shuffle=True, generator=seeded, drop_last=True),
    "replaced": loader(sampler=lambda: RandomSampler(Rows(), replacement=True, num_samples=70, generator=seeded())),
    "several orders": loader(sampler=lambda: RandomSampler(Rows(), num_samples=30, generator=seeded())),
    "weighted": loader(sampler=lambda: WeightedRandomSampler(WEIGHTS, 13)),
    "weighted by a generator": loader(sampler=lambda: WeightedRandomSampler(WEIGHTS, 13, generator=seeded()), generator=seeded),
    "subset": loader(sampler=lambda: SubsetRandomSampler(range(1, 8))),
    "subset by a generator": loader(sampler=lambda: SubsetRandomSampler(range(1, 8), generator=seeded())),
    "distributed": loader(sampler=lambda: DistributedSampler(Rows(), 2, 1)),
    "batch sampler": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=seeded()), 3, False)),
    "batch sampler of one's own": lambda: DataLoader(Rows(), batch_sampler=Buckets()),
    "no batches": lambda: DataLoader(Rows(), batch_size=None, shuffle=True),
    "stream": lambda: DataLoader(Stream(), BATCH_SIZE),
    "stream that counts": lambda: DataLoader(Stream(True), BATCH_SIZE),
    "stream with a state": lambda: DataLoader(StreamWithState(), BATCH_SIZE),
    "state with a position": loader(sampler=lambda: WithState(True)),
    "state without a position": loader(sampler=lambda: WithState(False)),
    "no DataLoader": Plain,
    **{f"sampler that {kind}": loader(sampler=lambda kind=kind: OfItsOwn(kind)) for kind in ("counts", "shuffles", "process")},
    "accelerate's": lambda: prepare_data_loader(loader(shuffle=True)(), num_processes=1, process_index=0),
    "accelerate's by seed": lambda: prepare_data_loader(loader(shuffle=True)(), num_processes=1, process_index=0, data_seed=3,
                                                        use_seedable_sampler=True),
    "sampler of an array": loader(sampler=lambda: OfItsOwn("array")),
    "sampler that draws late": loader(sampler=lambda: OfItsOwn("draws", seeded())),
}


WITH_WORKERS = {
    "shuffled": (loader(shuffle=True, generator=seeded, num_workers=2), (1, 3)),
    "persistent": (loader(shuffle=True, num_workers=1, persistent_workers=True), (1, 3)),
    "persistent with a generator": (loader(shuffle=True, generator=seeded, num_workers=1, persistent_workers=True), (1, None)),
    "sampler that counts": (loader(sampler=lambda: OfItsOwn("counts"), num_workers=1, persistent_workers=True), (1, 3)),
    "stream": (lambda: DataLoader(Stream(), BATCH_SIZE, num_workers=2, generator=seeded()), (1, 3)),
}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_rows_of_a_resumed_run(name):
    assert_goes_on(IN_PROCESS[name])


@pytest.mark.parametrize("prefetch", [1, 9])
def test_batches_made_ahead_come_again(prefetch):
    for name in "shuffled by a generator", "replaced", "sampler that draws late", "state with a position":
        assert_goes_on(IN_PROCESS[name], places={(0, 2), (1, 5), (1, None)}, prefetch=prefetch)


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_rows_of_workers(name):
    make, place = WITH_WORKERS[name]
    seen, states = program(make, 0).epochs(save_at={place})
    gone_on(make, seen, place, states[place], None)


def test_generator_that_the_program_draws_from_too():
    shared = loader(sampler=lambda: SubsetRandomSampler(range(ROWS), generator=seeded()))

    states = []

    def run(program, epochs, save):
        rows = []
        for _ in range(epochs):
            for batch in program.loader:
                rows.append((batch.tolist(), torch.rand(1, generator=program.loader.sampler.generator).item()))
                if save and len(rows) == 9:
                    states.append(program.state())
        return rows

    seen = run(program(shared, 0), EPOCHS, True)
    other = program(shared, 1)
    other.load(states[0])
    assert run(other, EPOCHS - 1, False) == seen[9:]


def test_state_is_saved_by_torch_too(tmp_path):
    """For a loop of one's own; nothing in it has to be unpickled by name."""
    seen, _ = program(IN_PROCESS["shuffled"], 0).epochs()
    first = program(IN_PROCESS["shuffled"], 0)
    for _, batch in zip(range(2), first.loader):
        pass
    torch.save(first.loader.state_dict(), tmp_path / "loader.pt")
    other = program(IN_PROCESS["shuffled"], 1)
    other.loader.load_state_dict(torch.load(tmp_path / "loader.pt", weights_only=True))
    assert [batch.tolist() for batch in other.loader] == [rows for rows, _ in seen[0][2:]]


def test_iteration_that_was_left_goes_on():
    first = program(IN_PROCESS["shuffled"], 0)
    for _, batch in zip(range(2), first.loader):
        given = batch.tolist()
    other = program(IN_PROCESS["shuffled"], 1)
    other.load(first.state())
    rest = [row for batch in other.loader for row in batch.tolist()]
    assert len(rest) == ROWS - 2 * BATCH_SIZE and not set(given) & set(rest)


class Hides(Sampler):
    """Counts where nobody looks."""

    def __init__(self, how):
        self.how = how
        if how == "iterator":
            self.rounds = itertools.count()

    def __len__(self):
        return ROWS

    def __iter__(self):
        if self.how == "process":
            return (int(torch.randint(ROWS, ())) for _ in range(ROWS))
        Hides.epoch = getattr(Hides, "epoch", 0) + 1
        return iter(torch.randperm(ROWS, generator=seeded(Hides.epoch)).tolist())


NOT_TO_BE_SAVED = {
    "class": (loader(sampler=lambda: Hides("class")), (1, 1), "this DataLoader cannot be saved: its sampler would not draw the same"),
    "process": (loader(sampler=lambda: Hides("process")), (0, 5), "its sampler would not draw the same rows again"),
    "next": (loader(sampler=lambda: Hides("class")), (1, None), "its sampler would not draw the same rows again"),
    "iterator": (loader(sampler=lambda: Hides("iterator")), (0, 1), "its 'sampler.sampler.rounds' may be anywhere"),
    "order of arrival": (loader(num_workers=2, in_order=False), (0, 1), "its batches come in another order each time"),
    "persistent": (lambda: DataLoader(Stream(), 2, num_workers=1, persistent_workers=True), (1, None),
                   "an IterableDataset keeps its place in persistent workers"),
    "iterator over batches": (lambda: iter([torch.zeros(1)] * 3), (1, None), "this list_iterator cannot be saved: it is an iterator"),
}


@pytest.mark.parametrize("name", NOT_TO_BE_SAVED)
def test_what_cannot_go_on_is_refused_at_the_save(name):
    make, place, text = NOT_TO_BE_SAVED[name]
    with pytest.raises(stepc.UserError) as error:
        program(make, 0, prefetch=1).epochs(save_at={place})
    assert text in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("other, text", [
    (loader(shuffle=True, generator=lambda: None), "has a 'generator', and this one has none"),
    (lambda: DataLoader(Rows(), 3, shuffle=True, generator=seeded()), "the first 2 batches of this epoch are not those"),
    (lambda: DataLoader(range(4, 20), 2, shuffle=True, generator=seeded()), "the first 2 batches of this epoch are not those"),
])
def test_another_loader_is_not_taken_for_the_one_that_was_saved(other, text):
    _, states = program(IN_PROCESS["shuffled by a generator"], 0).epochs(save_at={(1, 2)})
    resumed = program(other, 1)
    with pytest.raises(stepc.UserError) as error:
        resumed.load(states[1, 2])
        next(iter(resumed.loader))
    assert text in str(error.value) and "\n" not in str(error.value)


def test_workers_are_as_persistent_as_they_were():
    _, states = program(WITH_WORKERS["persistent"][0], 0).epochs(save_at={(1, None)})
    with pytest.raises(stepc.UserError, match="the loader that was saved has persistent workers"):
        program(IN_PROCESS["shuffled"], 1).load(states[1, None])


@pytest.mark.parametrize("state", [{}, {"given": 1}, {"given": "1", "is_reset": False, "is_over": False, "now": {}}, [], None])
def test_state_of_something_else_is_one_line(state):
    with pytest.raises(stepc.UserError, match="this is no state of a stepc.AsyncLoader over such a loader: "):
        stepc.AsyncLoader([]).load_state_dict(state)
