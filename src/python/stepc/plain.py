"""Values of a program as JSON, and back: numbers bit by bit, small tensors, the standard library's containers. Nothing
is pickled: a file can only make the objects that are listed here."""

import base64
import collections
import json
import math

import torch

from stepc import _C

_TAG = "stepc"


def to_json(value, words):
    """UserError for what is not listed here; `words` say whose it is."""
    return json.dumps(_plain(value, words), indent=1, allow_nan=False)


def from_json(text):
    return _value(json.loads(text))


def _plain(value, words):
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "is": repr(value)}
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        data = value.flatten().view(torch.uint8).numpy().tobytes()
        return {_TAG: "tensor", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape),
                "data": base64.b64encode(data).decode()}
    if isinstance(value, list):
        return [_plain(one, f"{words}[{at}]") for at, one in enumerate(value)]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "is": _plain(list(value), words)}
    if isinstance(value, dict):
        if _TAG not in value and all(type(name) is str for name in value) and not isinstance(value, collections.Counter):
            return {name: _plain(one, f"{words}.{name}") for name, one in value.items()}
        items = [[_plain(name, words), _plain(one, f"{words}[{name!r}]")] for name, one in value.items()]
        return {_TAG: "counter" if isinstance(value, collections.Counter) else "dict", "is": items}
    raise _C.UserError(f"{words} is a {type(value).__name__}, and a checkpoint holds numbers, texts, tensors, lists and dicts")


def _value(read):
    if isinstance(read, list):
        return [_value(one) for one in read]
    if not isinstance(read, dict):
        return read
    kind = read.get(_TAG)
    if kind is None:
        return {name: _value(one) for name, one in read.items()}
    if kind == "tensor":
        data = bytearray(base64.b64decode(read["data"]))
        dtype = getattr(torch, read["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{read['dtype']} is no dtype")
        return (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(read["shape"])
    made = read["is"] if kind == "float" else _value(read["is"])
    return {"float": float, "tuple": tuple, "dict": dict, "counter": lambda items: collections.Counter(dict(items))}[kind](made)
