"""Draws from a random generator that the step makes itself, as in mixup and augmentations by seed.

The seed may differ at every call, and no plan can get it as a number. So these draws are computed when the step's code
asks for them, below any recording, and the plan gets them like all other data of the host.
"""

import torch

from stepc import _C

_MAKING = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
_WRITING = {
    torch.Tensor.bernoulli_, torch.Tensor.cauchy_, torch.Tensor.exponential_, torch.Tensor.geometric_, torch.Tensor.log_normal_,
    torch.Tensor.normal_, torch.Tensor.random_, torch.Tensor.uniform_,
}
_TYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def drawn(scout, func, args, kwargs):
    """What such a draw gives; None where `func` is none."""
    generator = kwargs.get("generator")
    if generator is None or scout.on_ranks or generator.device.type != "cpu" or scout.owns(generator):
        return None
    others = [*args, *kwargs.values()]
    if func in _WRITING:
        if args[0].dtype not in _TYPES or any(isinstance(one, torch.Tensor) for one in others[1:]):
            return None
        made = _C.unobserved(lambda: func(torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs))
        return args[0].copy_(torch.from_numpy(_C.array_of(made)))
    if func not in _MAKING or kwargs.get("requires_grad") or any(isinstance(one, torch.Tensor) for one in others):
        return None
    made = _C.unobserved(lambda: func(*args, **kwargs))
    return torch.from_numpy(_C.array_of(made)) if made.dtype in _TYPES and made.layout is torch.strided else None
