"""AsyncLoader: prepares the next batches while the current one is trained on."""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader

from stepc import _C, generators
from stepc.order import Drawn, Order, is_map_style, is_stateful, of_batch

_END = object()
_OF_ONE_UNDER_WAY = {"ahead", "has_ended", "begin", "rows", "print"}


class AsyncLoader:
    """Iterates over `loader` in a background thread, at most `prefetch` batches ahead, and moves tensors to `device`.

    Batches come in the loader's order; an exception of the loader is raised where its batch would have come. All other
    attributes (`len`, `dataset`, `batch_size`, `sampler` ...) are the loader's.

    `state_dict()` says which batch comes next, for step.save() or torch.save(). After `load_state_dict()` the next
    iteration continues there, and this and all later iterations give the rows of the uninterrupted run;
    docs/checkpoints.md says how, and what is refused.
    """

    def __init__(self, loader: Iterable, device: torch.device | str | None = None, prefetch: int = 2):
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; at least one batch must be made ahead")
        self.loader = loader
        self.device = torch.device(device) if device is not None else None
        self.prefetch = prefetch
        self._source = _Source(loader)
        self._last = None  # the newest iteration
        self._is_under_way = False
        self._resumes_at = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def state_dict(self) -> dict[str, Any]:
        """The state of an iteration in progress, or that was left early, otherwise of the next one. UserError if it
        could not continue."""
        source = self._source
        with source.lock:
            if self._resumes_at is not None:
                return self._resumes_at | {"now": source.order.take()}
            if self._is_under_way:
                return self._last.state_dict()
            return source.state_between(self._last)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration continues at this state."""
        try:
            self._source.load(state)
        except _C.UserError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise _C.UserError(f"this is no state of a stepc.AsyncLoader over such a loader: {type(error).__name__}: "
                               f"{error}") from None
        self._is_under_way = False
        self._resumes_at = dict(state)

    def __iter__(self) -> Iterator:
        at, self._resumes_at = self._resumes_at, None
        if at is not None and at["is_over"]:
            return
        iteration = self._last = _Iteration(self._source, at, self._last is None)
        self._is_under_way = iteration.given > 0
        batches = queue.Queue(self.prefetch)
        stopped = threading.Event()

        def put(item):
            while not stopped.is_set():
                try:
                    batches.put(item, timeout=0.1)
                    return
                except queue.Full:
                    continue

        def work():
            try:
                for batch, behind in iteration.batches():
                    put((self._move(batch), behind, None))
                    if stopped.is_set():
                        return
                put((None, None, StopIteration()))
            except BaseException as error:  # raised again in the training thread
                put((None, None, error))

        thread = threading.Thread(target=work, name="stepc.AsyncLoader", daemon=True)
        thread.start()
        try:
            while True:
                batch, behind, error = batches.get()
                if isinstance(error, StopIteration):
                    self._is_under_way = False
                    return
                if error is not None:
                    raise error
                iteration.give(behind)
                self._is_under_way = True
                yield batch
        finally:
            stopped.set()
            thread.join()

    def _move(self, batch):
        if self.device is None:
            return batch
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)


class _Source:
    """A loader, and what decides its order. `lock` is held while it makes a batch."""

    def __init__(self, loader):
        self.loader = loader
        self.order = Order(loader)
        self.drawn = Drawn(loader, self.order) if is_map_style(loader) and not is_stateful(loader) else None
        self.lock = threading.RLock()
        self.workers = loader.num_workers if isinstance(loader, DataLoader) else 0
        self.is_persistent = self.workers > 0 and loader.persistent_workers

    def in_place(self):
        """An iteration that begins here draws its rows through `drawn`."""
        return contextlib.nullcontext() if self.drawn is None else self.drawn.in_place()

    def has_persistent_workers(self):
        return self.is_persistent and self.loader._iterator is not None

    def make_workers(self):
        """The persistent ones that an earlier iteration of the saved run has made. What that draws is taken back."""
        if not self.has_persistent_workers():
            before = self.order.take()
            with self.in_place():
                iter(self.loader)
            self.order.put(before)

    def state_between(self, last, is_over=False):
        """Of the iteration behind `last`, or of the first one. `is_over`: one that has nothing left comes before it. UserError
        where the next one could not be begun."""
        if last is not None:
            self.check()
        now = self.order.take()
        if self.drawn is not None and not self.drawn.is_known() and not (now["own"] and self.drawn.begins()):
            now["own"] = {}
            if last is not None:
                self.beginning_of(last, self.drawn.rows_behind(last.given))
        return {"given": 0, "is_over": is_over, "is_reset": self.has_persistent_workers(), "now": now}

    def beginning_of(self, iteration, rows):
        """That from which the sampler draws these rows again. UserError where there is none, or it cannot be known."""
        if self.drawn.is_known():
            return iteration.begin
        if iteration.begin["own"] and self._draws_again(iteration, iteration.begin, rows):
            return iteration.begin
        if unseen := self.order.unseen():
            raise self.refusal(f"its '{unseen}' may be anywhere; give the sampler state_dict() and load_state_dict()")
        begin = iteration.begin | {"own": {}}
        if not self._draws_again(iteration, begin, rows):
            raise self.refusal("its sampler would not draw the same rows again from the numbers, lists, tensors and generators "
                               "that it holds; give it state_dict() and load_state_dict()")
        return begin

    def _draws_again(self, iteration, begin, rows):
        return self.drawn.draws_again(begin, iteration.is_reset, iteration.given, rows)

    def check(self, is_fresh=False):
        """UserError for loaders that do not begin anew. `is_fresh`: the iteration has begun with a loader as it was made."""
        if self.drawn is None and self.is_persistent and not is_fresh:
            raise self.refusal("an IterableDataset keeps its place in persistent workers; use persistent_workers=False")
        if hasattr(type(self.loader), "__next__") and not is_fresh:
            raise self.refusal("it is an iterator, which goes on where it is each time; give a loader that begins anew")

    def refusal(self, why):
        return _C.UserError(f"the position of this {type(self.loader).__name__} cannot be saved: {why}")

    def load(self, state):
        given, is_reset, _ = state["given"], state["is_reset"], state["is_over"]
        if type(given) is not int or given < 0 or (given and not _OF_ONE_UNDER_WAY <= state.keys()):
            raise ValueError(f"it says that {given!r} batches have been given")
        if is_reset and not self.is_persistent:
            raise _C.UserError("the loader that was saved has persistent workers, with which PyTorch draws another order than "
                               "without: make this one with persistent_workers=True")
        self.order.put(state["now"])


class _Iteration:
    """One pass over a loader: what it began with, and what has been given of it."""

    def __init__(self, source, at, is_first):
        self._source = source
        self._at = at
        self._is_first = is_first
        self.given = at["given"] if at is not None else 0
        self.begin = None
        self.is_reset = False
        self._batches = None
        self._kept = []  # made, and neither given nor waiting in the queue
        self._made = self.given
        self._has_ended = False
        self._behind = {"print": None, "own": None}  # the last batch that was given

    def batches(self):
        """(batch, what is known behind it), from the first one that has not been given."""
        with self._source.lock:
            self._begin()
        while True:
            with self._source.lock:
                self._look_ahead()
                one = self._kept.pop(0) if self._kept else None
            if one is None:
                return
            yield one

    def _look_ahead(self):
        """Makes another batch where none is kept."""
        if not self._kept and not self._has_ended:
            self._kept = self._made_next(1)

    def give(self, behind):
        self.given += 1
        self._behind = behind
        if self._source.drawn is not None:
            self._source.drawn.forget(self.given)

    def state_dict(self):
        """UserError where no iteration could go on behind what has been given."""
        source, drawn = self._source, self._source.drawn
        if self._made == self.given:
            self._look_ahead()
        ahead = self._made - self.given
        if not ahead:
            return source.state_between(self, is_over=True)
        source.check(is_fresh=self._is_first and not self.is_reset)
        if source.workers > 1 and not source.loader.in_order:
            raise source.refusal("its batches come in another order each time; use in_order=True")
        state = {"given": self.given, "is_over": False, "ahead": ahead, "has_ended": self._has_ended, "is_reset": self.is_reset,
                 "begin": self.begin, "now": source.order.take(), "rows": None, **self._behind}
        if drawn is None:
            return state
        state["rows"] = drawn.rows_behind(self.given)
        if state["rows"] is None:
            raise source.refusal("its persistent workers have been made before the AsyncLoader; make that first")
        if drawn.states_behind(self.given) and drawn.goes_on(self.given):
            return state | {"own": drawn.states_behind(self.given)}
        return state | {"begin": source.beginning_of(self, state["rows"])}

    def _made_next(self, count):
        """The next batches, each with what is known behind it."""
        made = []
        while len(made) < count and not self._has_ended:
            batch = next(self._batches, _END)
            if batch is _END:
                self._has_ended = True
                break
            self._made += 1
            known = {"print": None, "own": None}
            if self._source.drawn is None:
                known = {"print": of_batch(batch), "own": self._source.order.own_states() or None}
            made.append((batch, known))
        return made

    def _begin(self):
        """Makes the first batch that has not been given, or as many as the run that was saved had made ahead."""
        source, at = self._source, self._at
        if at is not None and at["is_reset"]:
            source.make_workers()
        if self.given == 0:
            self.begin, self.is_reset = source.order.take(), source.has_persistent_workers()
            self._iterate(0, 1)
            return
        self.begin, self.is_reset = at["begin"], at["is_reset"]
        states = source.order.states_of_generators()
        ahead = at["ahead"] + at["has_ended"]
        if at["own"] is not None:
            source.order.load_own(at["own"])
            self._iterate(0, ahead, at["given"], at["rows"])
        else:
            source.order.put(self.begin)
            self._iterate(self.given, ahead)
        # The loader has drawn what it had drawn then. What the program draws goes on where it was.
        for one, state in states:
            generators.set_state(one, state)

    def _iterate(self, past, ahead, *behind):
        """Goes past the first batches, which must be those of the run that was saved, and makes the next ones."""
        source, drawn = self._source, self._source.drawn
        if drawn is not None:
            drawn.begin(*behind)
        with source.in_place():
            self._batches = iter(source.loader)
            for _ in range(past):
                last = next(self._batches, _END)
            if past:
                self._check(last)
            self._kept = self._made_next(ahead)

    def _check(self, last):
        at, drawn = self._at, self._source.drawn
        is_same = drawn.rows_behind(self.given) == at["rows"] if drawn is not None else of_batch(last) == at["print"]
        if last is _END or not is_same:
            raise _C.UserError(f"the loader gives other rows than the run that was saved: the first {self.given} batches of "
                               "this epoch are not those that it gave; make data, sampler and batch size as they were then")
