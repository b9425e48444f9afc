"""Code around every call of a module, without a hook: hooks of all modules belong to the program, and stepc watches
them."""

import contextlib
import threading

import torch

_lock = threading.Lock()
_enters = {}  # by thread, what to go through there; the latest last
_original = None  # what the class had before the first of them


@contextlib.contextmanager
def around_modules(enter):
    """In this thread, `enter(module)` is a context manager around each module's call, or None."""
    thread = threading.get_ident()
    with _lock:
        if not _enters:
            _install()
        _enters.setdefault(thread, []).append(enter)
    try:
        yield
    finally:
        # Threads end in any order: who put the class's own method back by itself would put back another thread's.
        with _lock:
            _enters[thread].pop()
            if not _enters[thread]:
                del _enters[thread]
            if not _enters:
                torch.nn.Module._call_impl = _original


def _install():
    global _original
    call = _original = torch.nn.Module._call_impl

    def around(module, *args, **kwargs):
        entered = [scope for enter in reversed(_enters.get(threading.get_ident(), ())) if (scope := enter(module)) is not None]
        if not entered:
            return call(module, *args, **kwargs)
        with contextlib.ExitStack() as scopes:
            for scope in entered:
                scopes.enter_context(scope)
            return call(module, *args, **kwargs)

    around._stepc_stands_for = call
    torch.nn.Module._call_impl = around
