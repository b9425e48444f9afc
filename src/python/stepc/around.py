"""What the program has set around a call that a replay would not respect."""

import torch
from torch.utils._device import DeviceContext

from stepc import _C


def leaves_results():
    """Whether a step's results keep their graph: what is around it (another step, torch.func) differentiates them,
    perhaps, or is a mode, which would see them detached."""
    if _C.is_recording() or _C.is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() > 0


# What errors say that read values which do not exist; torch hands them on as RuntimeError.
_NO_VALUES = ("this tensor has no values", "reads a value that was never computed")


def reads_no_values(text):
    """Whether an error is about that."""
    return any(words in text for words in _NO_VALUES)


def is_of_virtual(text):
    """Whether an error is of what virtual() made, where torch has handed it on as another one."""
    return reads_no_values(text) or 'stepc.virtual(device="cuda")' in text


def why_eager():
    """In words; empty: there is nothing."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func transforms it"
    if torch._C._len_torch_dispatch_stack():
        return "a mode sees its calls: a TorchDispatchMode"
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if not isinstance(mode, DeviceContext):
            return f"a mode sees its calls: {type(mode).__name__}"
        if mode.device.type != "cpu":
            return f"tensors are made on '{mode.device}' by default"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "saved_tensors_hooks are set around it"
    if torch.is_anomaly_enabled():
        return "autograd looks for anomalies"
    return ""
