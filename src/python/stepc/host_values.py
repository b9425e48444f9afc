"""Makes questions that a step's code asks of tensors without the dispatcher (values on the host, comparisons, texts,
copies) visible to recordings as calls."""

import copy
import threading

import numpy
import torch

from stepc import _C

# Tensor methods that give values to the host without the dispatcher.
UNSEEN = {
    torch.Tensor.tolist: "tolist()",
    torch.Tensor.numpy: "numpy()",
    torch.Tensor.__array__: "numpy()",
    torch.Tensor.data_ptr: "data_ptr()",
    torch.Tensor.__dlpack__: "__dlpack__()",
    torch.Tensor._version.__get__: "_version",
}
_CUDA_INTERFACE = torch.Tensor.__cuda_array_interface__.__get__  # on the CPU it raises, and code asks only whether it is there


def unseen(func, args):
    """The name of a call that gives values, or an address, to the host without the dispatcher; None: it is none."""
    if func == _CUDA_INTERFACE:
        return "__cuda_array_interface__" if args[0].device.type != "cpu" else None
    return UNSEEN.get(func)


# Functions that read integers of tensors on the host, unseen by recordings, and then choose their calls: by name, with
# the argument that they read first.
_DECIDING = {
    torch.tensor_split: ("tensor_split()", 1),
    torch.Tensor.tensor_split: ("tensor_split()", 1),
    torch.nn.functional.ctc_loss: ("ctc_loss()", 2),
    torch.ctc_loss: ("ctc_loss()", 2),
    torch._VF.lstm: ("lstm()", 1),
    torch._VF.gru: ("gru()", 1),
    torch._VF.rnn_tanh: ("rnn_tanh()", 1),
    torch._VF.rnn_relu: ("rnn_relu()", 1),
    torch._VF._pad_packed_sequence: ("pad_packed_sequence()", 1),
}
_MAKING = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}  # may get lists of tensors
MOST_NUMBERS = 64  # that are read one by one, as numbers; larger tensors are read as memory


# Functions that compare whole tensors, and the function that gives the same answer as a tensor.
COMPARING = {
    torch.equal: torch.eq,
    torch.Tensor.equal: torch.eq,
    torch.allclose: torch.isclose,
    torch.Tensor.allclose: torch.isclose,
}


def truth_of(func, args, kwargs):
    """The answer of `func` about two tensors, as one number that is read; None if `func` raises instead."""
    one, other = (*args, *kwargs.values())[:2]
    if not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return None
    if COMPARING[func] is torch.eq and one.shape != other.shape:
        return False
    return bool(COMPARING[func](*args, **kwargs).all().item())


def report_comparisons(before):
    """Code that has something made from numbers read since `before` may do anything with it."""
    for read in range(before, _C.host_reads_so_far()):
        _C.report_comparison(read)


def is_text(func, args):
    """Whether it returns the same as repr(); format() of a single number is that of the number."""
    return func is torch.Tensor.__repr__ or (func is torch.Tensor.__format__ and args[0].dim() > 0 and args[1] == "")


def text_of(tensor):
    """The same as repr(), of numbers that recordings see as reads; None for a tensor of which it would read too
    many."""
    if tensor.layout is not torch.strided or tensor.numel() > MOST_NUMBERS or tensor.is_complex():
        return None
    numbers = numbers_of(tensor, "tolist()")
    made = []

    def show():
        values = torch.tensor(numbers, dtype=tensor.dtype)
        contents = torch._tensor_str._tensor_str(values, len(type(tensor).__name__) + 1)
        made.append(tensor.__repr__(tensor_contents=contents))

    aside = threading.Thread(target=show)  # its calls are not part of the recording
    aside.start()
    aside.join()
    return made[0]


def with_values(func, args, kwargs):
    """The arguments with values in the tensors that `func` reads without the dispatcher, so that recordings see the
    reads, and the name of `func`; None if it reads none."""
    if func in _MAKING:
        shown = [_shown_in(one) for one in args]
        return None if all(a is b for a, b in zip(args, shown)) else (shown, kwargs, f"{func.__name__}()")
    if func not in _DECIDING:
        return None
    name, first = _DECIDING[func]
    shown = (*args[:first], *map(_shown, args[first:]))
    named = {key: one if key in _DATA else _shown(one) for key, one in kwargs.items()}
    if all(a is b for a, b in zip(args, shown)) and all(one is named[key] for key, one in kwargs.items()):
        return None
    return shown, named, name


_DATA = ("input", "self", "log_probs", "targets")


def _shown(one):
    reads = isinstance(one, torch.Tensor) and not one.is_floating_point() and not one.is_complex()
    return torch.ops.stepc.shown(one) if reads else one


def _shown_in(nest):
    """A list, or the lists in it, with values in its tensors; the same object if there are none."""
    if not isinstance(nest, (list, tuple)):
        return nest
    shown = [torch.ops.stepc.shown(one.detach()) if isinstance(one, torch.Tensor) else _shown_in(one) for one in nest]
    return nest if all(a is b for a, b in zip(nest, shown)) else shown


def is_plain(args, kwargs):
    return len(args) == 1 and all(value is None or value is False for value in kwargs.values())  # dtype, force


def numbers_of(tensor, name):
    """The result of `tensor.tolist()` or `tensor.numpy()`, read so that recordings see it; None if that is
    impossible."""
    if name not in ("tolist()", "numpy()") or tensor.is_complex():
        return None
    requires_grad = tensor.requires_grad and torch.is_grad_enabled()
    if name == "numpy()" and (requires_grad or tensor.is_neg() or tensor.dtype not in _NUMPY_TYPES):
        return None  # the method raises
    if tensor.numel() > MOST_NUMBERS:
        return torch.ops.stepc.shown(tensor.detach()).tolist() if name == "tolist()" else None
    values = [one.item() for one in tensor.detach().reshape(-1).unbind()]
    if name == "tolist()":
        for size in reversed(tensor.shape[1:]):
            values = [values[i : i + size] for i in range(0, len(values), size)] if size else values
        return values if tensor.dim() else values[0]
    return numpy.array(values, dtype=_NUMPY_TYPES[tensor.dtype])


_NUMPY_TYPES = {
    torch.float64: numpy.float64, torch.float32: numpy.float32, torch.float16: numpy.float16, torch.bool: numpy.bool_,
    torch.int64: numpy.int64, torch.int32: numpy.int32, torch.int16: numpy.int16, torch.int8: numpy.int8,
    torch.uint8: numpy.uint8,
}


def deep_copy(tensor, memo):
    """Tensor.__deepcopy__ of a plain tensor, in calls that recordings can hold (torch's copies storages); None for
    others."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.grad_fn is not None or tensor.is_conj() or tensor.is_neg() or id(tensor) in memo:
        return None
    storage = tensor.untyped_storage()
    key = "storage", storage._cdata  # tensors that share one share its copy
    if tensor.numel() * tensor.element_size() != storage.nbytes() or (key in memo and memo[key].dtype != tensor.dtype):
        return None
    with torch.no_grad():
        if key not in memo:
            memo[key] = tensor.detach().clone()
        made = memo[key].detach().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    made.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = made
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    return made
