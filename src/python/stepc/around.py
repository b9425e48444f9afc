"""States of the program around a call that a replay would ignore."""

import torch
from torch.utils._device import DeviceContext

from stepc import _C


def leaves_results():
    """Whether a step's results keep their graph: code around the step (another step, torch.func) may differentiate
    them, or a mode is active that would see them detached."""
    if _C.is_recording() or _C.is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() > 0


# Texts of errors about reads of values that do not exist; torch passes them on as RuntimeError.
_NO_VALUES = ("this tensor has no values", "reads a value that was never computed")


def reads_no_values(text):
    """Whether an error is about such a read."""
    return any(words in text for words in _NO_VALUES)


def is_of_virtual(text):
    """Whether an error is of what virtual() made, where torch has handed it on as another one."""
    return reads_no_values(text) or 'stepc.virtual(device="cuda")' in text


def why_eager():
    """The reason to run eagerly, in words; empty: there is none."""
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
