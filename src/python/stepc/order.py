"""What decides which rows a loader gives: generators, and what samplers and data sets of the program hold.

`Order` finds it, takes it as plain values and restores it. `Drawn` stands in front of the sampler of a DataLoader's
batches and keeps what has been drawn; it can also find out whether the sampler draws the same again.
"""

import collections
import copy
import enum
import hashlib
import itertools
import marshal
import threading
import types

import numpy
import torch
from torch.utils.data import (BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler,
                              SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)

from stepc import _C, generators

# What an iteration of PyTorch's own samplers begins with.
_HELD = {
    BatchSampler: ("sampler",),
    DistributedSampler: ("epoch",),
    RandomSampler: ("generator",),
    SequentialSampler: (),
    SubsetRandomSampler: ("generator",),
    WeightedRandomSampler: ("generator",),
    list: (),
    tuple: (),
    range: (),
}
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, torch.nn.Module)
_SCALARS = (type(None), bool, int, float, str)
_SEEN = (list, tuple, dict, set, frozenset, range, bytes, complex, torch.dtype, torch.device, enum.Enum, types.BuiltinFunctionType)
_MOST_OBJECTS = 1000
_MOST_ENTRIES = 100  # of a list or a dict of objects
_MOST_LOOKED_AT = 8  # batches
_MOST_OF_DATA = 10_000  # numbers in what a data set holds; more are its rows


def is_map_style(loader):
    """Whether a sampler of this process says which rows come."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def is_stateful(one):
    if isinstance(one, torch.nn.Module) or not getattr(one, "use_stateful_dataloader", True):  # accelerate's have a choice
        return False
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def digest(value):
    """Of plain values, tensors and arrays; None for another one."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu":
            return None
        parts = [str(value.dtype), str(tuple(value.shape)), value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()]
    elif isinstance(value, (numpy.ndarray, numpy.generic)):
        if value.dtype.hasobject:
            return None
        parts = [value.dtype.str, str(value.shape), value.tobytes()]
    elif _is_plain(value):
        parts = [marshal.dumps(value, 0)]
    else:
        return None
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        made.update(part.encode() if isinstance(part, str) else part)
    return made.hexdigest()


def _is_plain(value):
    if type(value) in (list, tuple, set):
        return set(map(type, value)) <= set(_SCALARS) or all(_is_plain(one) for one in value)
    if type(value) is dict:
        return _is_plain(list(value)) and _is_plain(list(value.values()))
    return type(value) in _SCALARS


def _is_flat(value):
    """Whether it is plain, and a container of few numbers and texts at most."""
    if isinstance(value, (list, tuple, set)):
        return len(value) <= _MOST_OF_DATA and set(map(type, value)) <= set(_SCALARS)
    return type(value) in _SCALARS


def _encoded(value):
    """A copy, as plain values."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return {"kind": "array" if isinstance(value, numpy.ndarray) else "number", "is": torch.from_numpy(numpy.array(value))}
    if isinstance(value, torch.Tensor):
        return {"kind": "tensor", "is": value.detach().clone()}
    return {"kind": "plain", "is": marshal.loads(marshal.dumps(value, 0))}


def _decoded(saved):
    if saved["kind"] in ("array", "number"):
        array = saved["is"].numpy().copy()
        return array if saved["kind"] == "array" else array[()]
    return saved["is"]


class _Place:
    """Where a value stands: an attribute, or an entry of a list or a dict."""

    def __init__(self, owner, name, value):
        self.owner = owner
        self.name = name
        self.value = value

    def put(self, value):
        """Into what stands there, where others may hold it too, else in its place."""
        now = self.value
        if isinstance(now, list) and isinstance(value, list):
            now[:] = value
        elif isinstance(now, (dict, set)) and isinstance(value, type(now)):
            now.clear()
            now.update(value)
        elif isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor) and now.shape == value.shape:
            with torch.no_grad():
                now.copy_(value)
        elif isinstance(now, numpy.ndarray) and isinstance(value, numpy.ndarray) and now.shape == value.shape:
            now[...] = value
        elif isinstance(self.owner, (list, dict)):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


class _Found:
    """By path: generators, values, objects that were entered, those that say their state themselves, and those that hold it
    where nobody sees it."""

    def __init__(self):
        self.generators, self.values, self.objects, self.stateful, self.unseen = {}, {}, {}, {}, {}


class Order:
    """Of a loader; `take()` and `put()` between two of its iterations."""

    def __init__(self, loader):
        self.loader = loader
        self.generator = loader.generator if isinstance(loader, DataLoader) else None
        self.sampler = getattr(loader, index_name(loader)) if is_map_style(loader) else None
        found = self._find()
        self._made = {path: (made, _encoded(place.value)) for path, place in found.values.items() if (made := digest(place.value))}

    def take(self):
        """As plain values: the states of generators, those of the process too, values that have changed since this was made,
        and what says its state itself."""
        found = self._find()
        changed = {path: place.value for path, place in found.values.items() if self._has_changed(path, place.value)}
        return {"process": generators.states_of_process(),
                "generators": {path: generators.state_of(place.value) for path, place in found.generators.items()},
                "values": {path: _encoded(one) for path, one in changed.items()}, "own": self.own_states()}

    def put(self, state):
        """UserError where the loader has no such place."""
        now = self._find().values
        as_made = {path: saved for path, (_, saved) in self._made.items()
                   if path in now and self._has_changed(path, now[path].value)}
        for path, saved in {**as_made, **state["values"]}.items():
            self._place(path, "values").put(_decoded(saved))
        self.load_own(state["own"])
        for path, saved in state["generators"].items():
            place = self._place(path, "generators")
            if place.value is None and saved["kind"] == "torch":
                place.value = torch.Generator()
                place.put(place.value)
            generators.set_state(place.value, saved)
        generators.set_process(state["process"])

    def states_of_generators(self):
        """(generator, its state) of the loader's own and of the process."""
        own = [place.value for place in self._find().generators.values()]
        return [(one, generators.state_of(one)) for one in (*own, *generators.of_process().values())]

    def unseen(self):
        """Where a sampler holds something that is neither numbers, texts, tensors, lists and dicts nor an object of them."""
        return next((path for path in self._find().unseen if path.startswith("sampler")), "")

    def stateful(self):
        """What says its state itself, by path: the loader, the data set that this process iterates over, or samplers of the
        program's own."""
        if is_stateful(self.loader):
            return {"loader": self.loader}
        if not isinstance(self.loader, DataLoader):
            return {}
        if is_map_style(self.loader):
            return {path: one for path, one in self._find().stateful.items() if path.startswith("sampler")}
        is_here = self.loader.num_workers == 0 and is_stateful(self.loader.dataset)
        return {"dataset": self.loader.dataset} if is_here else {}

    def own_states(self):
        return {path: one.state_dict() for path, one in self.stateful().items()}

    def load_own(self, states):
        """None where there are none."""
        for path, one in self.stateful().items() if states else ():
            one.load_state_dict(states[path])

    def twin(self):
        """Of a copy of the loader's sampler, which draws from copies of generators, but for those of the process."""
        shared = [self.loader.dataset, *generators.of_process().values()]
        twin = copy.copy(self)
        twin.loader = copy.copy(self.loader)
        twin.generator, twin.sampler = copy.deepcopy((self.generator, self.sampler), {id(one): one for one in shared})
        return twin

    def _has_changed(self, path, value):
        now = digest(value)
        return now is not None and now != self._made.get(path, (None,))[0]

    def _place(self, path, kind):
        found = self._find()
        known = getattr(found, kind).get(path)
        if known is not None:
            return known
        above, _, name = path.rpartition(".")
        owner = found.objects.get(above)
        if owner is None or type(owner) in _HELD:
            raise _C.UserError(f"the loader that was saved has a '{path}', and this one has none: make it as it was made then")
        return _Place(owner, name, None)

    def _find(self):
        found = _Found()
        queue = collections.deque(self._roots())
        seen = set()
        while queue and len(seen) < _MOST_OBJECTS:
            path, owner, name, value = queue.popleft()
            if generators.is_generator(value):
                found.generators[path] = _Place(owner, name, value)
            elif self._is_value(path, value):
                found.values[path] = _Place(owner, name, value)
            elif isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic, *_SCALARS)):
                continue
            elif not hasattr(value, "__dict__") and not isinstance(value, _SEEN):
                found.unseen[path] = value
            elif id(value) not in seen and not isinstance(value, _OPAQUE) and not self._is_data(path, value):
                seen.add(id(value))
                found.objects[path] = value
                if type(value) not in _HELD and is_stateful(value):
                    found.stateful[path] = value
                queue.extend(_parts(path, value))
        return found

    def _roots(self):
        loader = self.loader
        if is_stateful(loader):
            return []
        if not isinstance(loader, DataLoader):
            return [("loader", None, None, loader)]
        roots = [("generator", self, "generator", self.generator)]
        if type(loader) is not DataLoader:
            roots.append(("loader", None, None, _Counts(loader)))
        if is_map_style(loader):
            roots.append(("sampler", self, "sampler", self.sampler))
        elif loader.num_workers == 0 and is_stateful(loader.dataset):
            return roots
        return [*roots, ("dataset", loader, "dataset", loader.dataset)]

    def _is_data(self, path, value):
        """Whether it is the data set, which samplers too may hold."""
        return path.startswith("sampler") and (isinstance(value, Dataset) or value is self.loader.dataset)

    def _is_value(self, path, value):
        """Whether it is taken as it is: not the rows of a data set, which samplers choose from."""
        if path.startswith("dataset") and is_map_style(self.loader):
            return False
        is_array = isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic))
        if path.startswith("sampler"):
            return is_array or _is_plain(value)
        return value.size <= _MOST_OF_DATA if isinstance(value, numpy.ndarray) else (
            value.numel() <= _MOST_OF_DATA if isinstance(value, torch.Tensor) else is_array or _is_flat(value))


class _Counts:
    """What a DataLoader of the program's own, or accelerate's, holds in numbers and texts: its epochs, perhaps."""

    def __init__(self, loader):
        vars(self)["_loader"] = loader

    def __setattr__(self, name, value):
        setattr(self._loader, name, value)


def _parts(path, value):
    if isinstance(value, _Counts):
        held = {name: one for name, one in vars(value._loader).items() if type(one) in _SCALARS}
        return [(f"{path}.{name}", value, name, one) for name, one in held.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}.{i}", value, i, one) for i, one in enumerate(value[:_MOST_ENTRIES])]
    if isinstance(value, dict):
        items = list(value.items())[:_MOST_ENTRIES]
        return [(f"{path}.{key}", value, key, one) for key, one in items if isinstance(key, (str, int))]
    attributes = vars(value) if hasattr(value, "__dict__") else {}
    names = [name for name in _HELD.get(type(value), attributes) if name in attributes]
    return [(f"{path}.{name}", value, name, attributes[name]) for name in names]


def index_name(loader):
    """The attribute of a DataLoader with the sampler that it asks for each batch."""
    return "batch_sampler" if loader.batch_sampler is not None else "sampler"


class Drawn:
    """In front of the sampler of a DataLoader's batches.

    Of the iteration that is under way: `count` batches have been drawn, `has_ended` says that there is no more, and what is
    known behind each batch is kept until forget(): the digest of all rows so far, that of its own, and the states of
    samplers that say theirs.
    """

    def __init__(self, loader, order):
        self._loader = loader
        self._order = order
        self.sampler = order.sampler
        self.lock = threading.Lock()  # of `batches`
        self.batches = {}
        self.begin()

    def __len__(self):
        return len(self.sampler)

    def __getattr__(self, name):
        return getattr(self.__dict__["sampler"], name)

    def begin(self, count=0, digest=""):
        """The next iteration goes on behind `count` batches."""
        self._first = count, digest

    def __iter__(self):
        self.count, self._digest = self._first
        self.has_ended = False
        self.batches = {self.count: (self._digest, "", {})}  # by number
        self._stateful = self._order.stateful()
        return _Draws(self, iter(self.sampler))

    def in_place(self):
        """Stands in the loader's place of its sampler meanwhile."""
        return _InPlace(self._loader, self)

    def note(self, batch):
        self.count += 1
        own = _of_rows(batch)
        self._digest = _chained(self._digest, own)
        with self.lock:
            self.batches[self.count] = self._digest, own, {path: one.state_dict() for path, one in self._stateful.items()}

    def rows_behind(self, number):
        """The digest of all rows to the end of that batch; None where this has not stood in place of the sampler."""
        return self.batches.get(number, (None,))[0]

    def states_behind(self, number):
        return self.batches[number][2]

    def forget(self, before):
        with self.lock:
            for number in [one for one in self.batches if one < before]:
                del self.batches[number]

    def is_known(self):
        """Whether all samplers are PyTorch's own, which draw the same from the same beginning."""
        one = self.sampler
        while type(one) is BatchSampler:
            one = one.sampler
        return type(one) in _HELD

    def draws_again(self, begin, is_reset, count, wanted):
        """Whether the rows of the first `count` batches that are drawn from this beginning have the digest `wanted`."""

        def draw(twin):
            twin.put(begin)
            made = ""
            for batch in itertools.islice(_iterate(twin, is_reset), count):
                made = _chained(made, _of_rows(batch))
            return made

        return self._tried(draw) == wanted

    def goes_on(self, number):
        """Whether the sampler, given its state behind that batch, draws those that have been drawn since."""
        later = [self.batches[one][1] for one in range(number + 1, self.count + 1)]
        return self._drawn_by(self.batches[number][2], len(later) + self.has_ended) == later

    def begins(self):
        """Whether the sampler, given the state that it has now, draws what it would draw next."""
        now = self._drawn_by({})
        return now is not None and self._drawn_by(self._order.own_states()) == now

    def _drawn_by(self, states, count=_MOST_LOOKED_AT):
        """Digests of the first batches from here or from these states; None where there is an exception."""

        def draw(twin):
            twin.load_own(states)
            return [_of_rows(batch) for batch in itertools.islice(_iterate(twin, True), count)]

        return self._tried(draw)

    def _tried(self, draw):
        """What a copy of the sampler draws; the generators of the process go on where they are."""
        process = generators.states_of_process()
        try:
            return draw(self._order.twin())
        except Exception:  # what cannot be copied, or does not draw here, is not known to draw the same elsewhere
            return None
        finally:
            generators.set_process(process)


def _iterate(order, is_reset):
    """The rows of batches as a DataLoader asks for them: a fresh iterator draws a seed for its workers, and with some it asks
    twice."""
    rows = iter(order.sampler)
    if not is_reset:
        torch.empty((), dtype=torch.int64).random_(generator=order.generator)
        if order.loader.num_workers:
            rows = iter(order.sampler)
    return rows


class _Draws:
    def __init__(self, drawn, rows):
        self._drawn = drawn
        self._rows = rows

    def __iter__(self):
        return self

    def __next__(self):
        drawn = self._drawn
        try:
            batch = next(self._rows)
        except StopIteration:
            drawn.has_ended = True
            raise
        drawn.note(batch)
        return batch


class _InPlace:
    def __init__(self, loader, one):
        while "base_dataloader" in vars(loader):  # accelerate's stand in front of others
            loader = loader.base_dataloader
        self._attributes, self._name, self._one = vars(loader), index_name(loader), one

    def __enter__(self):
        self._before = self._attributes[self._name]
        self._attributes[self._name] = self._one  # its __setattr__ refuses what decides the order

    def __exit__(self, *_):
        self._attributes[self._name] = self._before


def of_batch(batch):
    """A digest of what tells one batch from another: some of each tensor's elements, and all that is plain."""
    leaves, _ = torch.utils._pytree.tree_flatten(batch)
    made = ""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel() > 1024:
            leaf = leaf.detach().reshape(-1)[:: leaf.numel() // 1024]
        made = _chained(made, digest(leaf) or type(leaf).__name__)
    return made


def _of_rows(batch):
    return digest(batch) or digest(repr(batch))


def _chained(one, other):
    return hashlib.blake2b((one + other).encode(), digest_size=8).hexdigest()
