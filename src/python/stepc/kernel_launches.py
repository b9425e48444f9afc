"""Kernels that a step's code launches past PyTorch's dispatcher, where no recording sees them: Triton's, also those of
Liger and of code that torch.compile has made, and others' on an address that a storage gives. While a step's code runs,
each launch is told, by its name, before it happens. (Tensor.data_ptr() and its like are told by host_values.UNSEEN.)
"""

import os
import sys

import torch

# Where launches pass: module, class, method, and how the kernel is called there.
_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction", "run", "Triton kernel"),
    ("triton.runtime.interpreter", "GridExecutor", "__call__", "Triton kernel"),
    ("triton.compiler.compiler", "CompiledKernel", "__getitem__", "Triton kernel"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run", "kernel of torch.compile"),
)
_TRITON = os.sep + "triton" + os.sep


class Launches:
    """Surrounds a step's code: calls `tell` with a line for each launch. As torch.overrides' modes, of one thread at a time."""

    def __init__(self, tell):
        self._tell = tell
        self._before = []

    def __enter__(self):
        for module, name, method, words in _LAUNCHERS:
            owner = getattr(sys.modules.get(module), name, None)
            if owner is not None:
                self._watch(owner, method, lambda kernel, words=words: f"the {words} '{_name_of(kernel)}'")
        self._watch(torch.UntypedStorage, "data_ptr", _address_of)
        return self

    def __exit__(self, *error):
        for owner, method, was in reversed(self._before):
            if was is None:
                delattr(owner, method)
            else:
                setattr(owner, method, was)
        self._before.clear()

    def _watch(self, owner, method, what):
        original, tell = getattr(owner, method), self._tell

        def told(self, *args, **kwargs):
            said = None if kwargs.get("warmup") else what(self)
            if said is not None:
                tell(f"{said} (at {_line()}) is launched past PyTorch, where no recording sees it")
            return original(self, *args, **kwargs)

        self._before.append((owner, method, vars(owner).get(method)))
        setattr(owner, method, told)


def _name_of(kernel):
    function = getattr(kernel, "fn", kernel)
    function = getattr(function, "fn", function)  # of the function that an autotuner of torch.compile's launches
    name = getattr(function, "__name__", None) or getattr(kernel, "name", None) or type(kernel).__name__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else name


def _address_of(storage):
    """On the CPU an address is mostly compared, by code that looks which tensors share memory."""
    return None if storage.device.type == "cpu" else "what takes UntypedStorage.data_ptr()"


def _line():
    """The place outside of Triton and stepc."""
    frame = sys._getframe(2)
    while _TRITON in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
