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
    """

    def __init__(self, loader: Iterable, device: torch.device | str | None = None, prefetch: int = 2):
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; at least one batch must be made ahead")
        self.loader = loader
        self.device = torch.device(device) if device is not None else None
        self.prefetch = prefetch

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator:
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
                for batch in self.loader:
                    put((self._move(batch), None))
                    if stopped.is_set():
                        return
                put((None, StopIteration()))
            except BaseException as error:  # raised again in the training thread
                put((None, error))

        thread = threading.Thread(target=work, name="stepc.AsyncLoader", daemon=True)
        thread.start()
        try:
            while True:
                batch, error = batches.get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield batch
        finally:
            stopped.set()
            thread.join()

    def _move(self, batch):
        if self.device is None:
            return batch
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)
