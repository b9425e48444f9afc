"""op_rule(): what a program declares about an operator of its own, so that plans may call it."""

import math
import numbers
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stepc import _C

_RULES = {}  # by operator, as they were last given


def op_rule(
    op: str,
    *,
    shapes: Callable[..., Any] | None = None,
    flops: Callable[..., float] | float | None = None,
    bytes: Callable[..., float] | float | None = None,
    sharding: str | None = None,
) -> None:
    """Declares that an operator of torch.library or TORCH_LIBRARY is pure: its results depend only on its arguments; it
    reads and changes nothing else and draws no random numbers. It is then part of the plan of every step that is
    accelerated afterwards, and the step's own Python no longer calls it. All other arguments are optional:

    shapes: of the results; one shape, or a list of them. The operator's results are checked against it.
    flops, bytes: the arithmetic of a call and the bytes that it moves, numbers or functions; by default 0, and operands and
        results once each. Predictions and profiles show them.
    sharding: how a call may be split, with a name for each dimension of its tensors: "m k, k n -> m n; k: sum". A split
        along a name splits every tensor that has the name; for a name that a result lacks, the text says how the parts are
        combined (sum, max, min); "_" is never split. The first verification runs the operator whole and in parts.

    Functions are called with the operator's arguments, with tensors without memory (device "meta") for its tensors. A
    rule for the same operator replaces the previous one.
    """
    if not isinstance(op, str) or not re.fullmatch(r"\w+::\w+(\.\w+)?", op):
        raise _C.UserError(f'op_rule: op is {op!r}; it is a name such as "my::op" or "my::op.overload"')
    rule = _Rule(op.removesuffix(".default"), shapes, flops, bytes, sharding)
    _C.check_op_rule(rule)
    _RULES[rule.op] = rule


def registered() -> list["_Rule"]:
    return list(_RULES.values())


class _Rule:
    def __init__(self, op, shapes, flops, bytes, sharding):
        self.op = op
        self.shapes = shapes
        self.flops = flops
        self.bytes = bytes
        self.sharding = "" if sharding is None else sharding
        if not isinstance(self.sharding, str):
            raise _C.UserError(f'op_rule {op}: sharding is {sharding!r}; it is a text such as "m k, k n -> m n; k: sum"')
        if shapes is not None and not callable(shapes):
            raise _C.UserError(f"op_rule {op}: shapes is {shapes!r}; it is a function of the operator's arguments")
        for what in ("flops", "bytes"):
            value = getattr(self, what)
            if value is not None and not callable(value):
                self._checked(what, value)

    def amount(self, what: str, arguments: Sequence[Any]) -> float:
        """What `flops` or `bytes` gives for a call."""
        value = getattr(self, what)
        return self._checked(what, self._called(what, arguments) if callable(value) else value)

    def result_shapes(self, arguments: Sequence[Any]) -> list[list[int]]:
        given = self._called("shapes", arguments)
        try:
            made = [one.shape if isinstance(one, torch.Tensor) else one for one in _listed(given)]
            shapes = [[operator.index(size) for size in shape] for shape in made]
        except (TypeError, ValueError):
            shapes = None
        if shapes is None or any(not 0 <= size < 1 << 63 for shape in shapes for size in shape):
            raise _C.UserError(f"op_rule {self.op}: shapes gives {_short(given)}; it is a shape, or a list of shapes")
        return shapes

    def _checked(self, what, value):
        try:
            amount = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
        except OverflowError:
            amount = math.inf
        if not 0 <= amount < math.inf:
            raise _C.UserError(f"op_rule {self.op}: {what} is {_short(value)}; it is a number, 0 or more")
        return amount

    def _called(self, what, arguments):
        name, _, overload = self.op.partition(".")
        schema = torch._C._get_schema(name, overload).arguments
        positional = [value for value, one in zip(arguments, schema) if not one.kwarg_only]
        by_name = {one.name: value for value, one in zip(arguments, schema) if one.kwarg_only}
        try:
            return getattr(self, what)(*positional, **by_name)
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            raise _C.UserError(f"op_rule {self.op}: {what} ends with {type(error).__name__}: {text}") from error


def _short(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _listed(made):
    """One shape is as good as a list of one."""
    is_one = isinstance(made, torch.Tensor) or all(isinstance(size, int) for size in made)
    return [made] if is_one else made
