"""AsyncLoader: the next batches are made while the present one is trained on."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree


class AsyncLoader:
    """Iterates over `loader` in a background thread, at most `prefetch` batches ahead, and moves tensors to `device`.

    Batches come in the loader's order; an exception of the loader is raised where its batch would have come. Everything
    else (`len`, `dataset`, `batch_size`, `sampler` ...) is the loader's.

    `state_dict()` says which batch comes next, for step.save(). After `load_state_dict()` the next iteration goes on there:
    it draws the order that it drew before and reads past what was given; a loader with a state of its own does it itself.
    """

    def __init__(self, loader: Iterable, device: torch.device | str | None = None, prefetch: int = 2):
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; at least one batch must be made ahead")
        self.loader = loader
        self.device = torch.device(device) if device is not None else None
        self.prefetch = prefetch
        self._position = {"given": 0}
        self._resumes_at = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def state_dict(self) -> dict[str, Any]:
        """Of the iteration that is under way: what it began with, and how many batches it has given."""
        return dict(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on there."""
        self._position = dict(state)
        self._resumes_at = dict(state)

    def __iter__(self) -> Iterator:
        at, self._resumes_at = self._resumes_at, None
        position = self._position = at or self._begin()
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
                for batch in self._batches(at):
                    put((self._move(batch), self._own_state(), None))
                    if stopped.is_set():
                        return
                put((None, None, StopIteration()))
            except BaseException as error:  # raised again in the training thread
                put((None, None, error))

        thread = threading.Thread(target=work, name="stepc.AsyncLoader", daemon=True)
        thread.start()
        try:
            while True:
                batch, own, error = batches.get()
                if isinstance(error, StopIteration):
                    self._position = {"given": 0}
                    return
                if error is not None:
                    raise error
                position["given"] += 1
                if own is not None:
                    position["loader"] = own
                yield batch
        finally:
            stopped.set()
            thread.join()

    def _own_state(self):
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") else None

    def _generators(self):
        own = getattr(self.loader, "generator", None)
        return [torch.default_generator] + ([own] if isinstance(own, torch.Generator) else [])

    def _begin(self):
        return {"given": 0, "generators": [one.get_state() for one in self._generators()]}

    def _batches(self, at):
        """Of an iteration, or of what is left of one."""
        if at is None or at["given"] == 0:
            yield from self.loader
            return
        if "loader" in at:
            self.loader.load_state_dict(at["loader"])
            yield from self.loader
            return
        now = torch.get_rng_state()
        for generator, state in zip(self._generators(), at["generators"]):
            generator.set_state(state)
        left = iter(self.loader)
        for _ in range(at["given"]):
            next(left, None)
        torch.set_rng_state(now)  # what the step draws goes on where it was
        yield from left

    def _move(self, batch):
        if self.device is None:
            return batch
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)
