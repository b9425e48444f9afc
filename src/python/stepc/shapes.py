"""Shapes known beforehand: batches are padded to a few sizes, and a plan for each size is made before it comes."""

import copy
import dataclasses
import inspect
import logging
from collections.abc import Mapping, Sequence

import torch

from stepc import _C, around, tree

_LOG = logging.getLogger("stepc")
_FORM = 'such as stepc.Shapes({"input_ids": (1, 0), "labels": (1, -100)}, sizes=[128, 256])'


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes that a dimension of a step's batches is padded to.

    inputs: the tensors that have this dimension: an argument of the step by name or position, or an entry of a dict among
        its arguments by key -> (dimension, padding value).
    sizes: ascending. A batch in between is padded to the next one, in copies, before the step sees it.
    compare: the step runs on the first such batch padded and unpadded, and both runs are undone. If they differ, nothing is
        padded, and each length is compiled separately. Without, padding is trusted to change nothing.
    """

    inputs: Mapping[str | int, tuple[int, float]]
    sizes: Sequence[int]
    compare: bool = True

    def __post_init__(self):
        if not isinstance(self.inputs, Mapping) or not self.inputs:
            raise _C.UserError(f"the inputs of shapes are {self.inputs!r}; they are a dict, {_FORM}")
        for name, what in self.inputs.items():
            if not isinstance(name, str) and (type(name) is not int or name < 0):
                raise _C.UserError(f"shapes names {name!r}; what has the dimension is named by a text or a position, {_FORM}")
            is_pair = isinstance(what, (tuple, list)) and len(what) == 2
            if not is_pair or type(what[0]) is not int or not isinstance(what[1], (bool, int, float)):
                raise _C.UserError(f"{name!r} of shapes is {what!r}; it is a dimension and what fills it, {_FORM}")
        sizes = list(self.sizes) if isinstance(self.sizes, Sequence) and not isinstance(self.sizes, str) else []
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise _C.UserError(f"the sizes of shapes are {self.sizes!r}; they are whole numbers from 1, {_FORM}")
        if any(a >= b for a, b in zip(sizes, sizes[1:])):
            raise _C.UserError(f"the sizes of shapes are {self.sizes!r}; give them in ascending order, each once")
        if not isinstance(self.compare, bool):
            raise _C.UserError(f"compare of shapes is {self.compare!r}; it is True or False")


class Padding:
    """Pads the batches of one step, and has the step compiled for every size within its first calls."""

    def __init__(self, shapes, function):
        self._shapes = shapes
        self._name = getattr(function, "__name__", "step")
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        self._positions = {one.name: at for at, one in enumerate(parameters) if one.kind in kinds}
        self._pads = None if shapes.compare else True  # None: not compared yet
        self._to_compile = list(shapes.sizes)
        self._rehearses = True  # sizes are compiled on made batches

    def call(self, step, args, kwargs):
        if _C.is_recording() or _C.is_tracing() or around.why_eager():
            return step.call(args, kwargs)
        size = self._size_of(args, kwargs)
        fitting = next((one for one in self._shapes.sizes if one >= size), None)
        if fitting is None:
            raise _C.UserError(f"{self._first()} has size {size} in dimension {self._dimension()}, and the largest of "
                               f"shapes is {self._shapes.sizes[-1]}: add a size of at least {size}")
        self._compare(step, args, kwargs, size, fitting)
        resizes = self._pads and (size < fitting or not self._lies_as_padded(args, kwargs))
        given = self._resized(args, kwargs, fitting) if resizes else (args, kwargs)
        if not self._to_compile and self._pads is not None:
            return step.call(*given)
        replays = step.stats["replays"]
        out = step.call(*given)
        if self._pads is not False:
            self._warm_up(step, args, kwargs, size, fitting, step.stats["replays"] > replays)
        return out

    def _warm_up(self, step, args, kwargs, size, fitting, is_replayed):
        if self._rehearses and step.stats["traced"]:
            self._rehearses = False
            unknown = ", and no batch is padded, for that cannot be compared; Shapes(compare=False) pads all the same"
            self._say(f"each size is compiled when it first comes{unknown if self._pads is None else ''}: the step's own "
                      f"code runs at every call ({step.stats['traced']})")
            self._pads = bool(self._pads)
        self._compare(step, args, kwargs, size, fitting)
        if self._rehearses and step.may_rehearse() and self._to_compile:
            if self._pads is not False:
                self._compile(step, args, kwargs)
                step.end_warm_up()
        elif is_replayed and fitting in self._to_compile:
            self._to_compile.remove(fitting)
            step.end_warm_up()
        if self._pads is False:
            self._to_compile = []

    def _compare(self, step, args, kwargs, size, fitting):
        if self._pads is not None or size == fitting or not step.may_rehearse():
            return
        try:
            difference = step.difference((args, kwargs), self._resized(args, kwargs, fitting))
        except Exception as error:
            difference = f"an error: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        self._pads = not difference
        if difference:
            self._say(f"batches are not padded, each length is compiled as it is: padded, the step differs in {difference}")

    def _compile(self, step, args, kwargs):
        sizes, self._to_compile = self._to_compile, []
        for number, size in enumerate(sizes):
            _LOG.info("compiling the step for size %d (%d of %d)", size, number + 1, len(sizes))
            try:
                # A step may look whether its mask hides anything, and do something else then.
                full = self._resized(args, kwargs, size, _repeated)
                padded = self._resized(*self._resized(args, kwargs, max(size - 1, 1), _repeated), size)
                is_compiled = step.compile(*full) and step.compile(*padded)
                why = "it runs eagerly"
            except Exception as error:
                is_compiled, why = False, error
            if not is_compiled:
                self._say(f"size {size} is compiled when it first comes: {why}")
                self._to_compile.append(size)
        self._rehearses = not self._to_compile

    def _say(self, line):
        _LOG.warning("%s: %s", self._name, line)

    # ---- the tensors

    def _first(self):
        return repr(next(iter(self._shapes.inputs)))

    def _dimension(self):
        return next(iter(self._shapes.inputs.values()))[0]

    def _place_of(self, name, args, kwargs):
        """The container among the arguments that has it, and its key there."""
        if isinstance(name, str):
            if name in kwargs:
                return kwargs, name
            at = self._positions.get(name, len(args))
            if at < len(args):
                return args, at
            for given in (args, kwargs.values()):
                for one in given:
                    if isinstance(one, Mapping) and name in one:
                        return one, name
        elif name < len(args):
            return args, name
        has = [repr(key) for one in (*args, *kwargs.values()) if isinstance(one, Mapping) for key in one]
        has += [repr(key) for key in kwargs] + [repr(key) for key, at in self._positions.items() if at < len(args)]
        raise _C.UserError(f"shapes names {name!r}, which {self._name} is not given; it is given {', '.join(has)}")

    def _size_of(self, args, kwargs):
        sizes = {}
        for name, (dimension, fill) in self._shapes.inputs.items():
            container, key = self._place_of(name, args, kwargs)
            tensor = container[key]
            if not isinstance(tensor, torch.Tensor):
                raise _C.UserError(f"shapes names {name!r}, which is no tensor but a {type(tensor).__name__}")
            if not -tensor.dim() <= dimension < tensor.dim():
                raise _C.UserError(f"shapes names dimension {dimension} of {name!r}, which has {tensor.dim()}")
            if tensor.requires_grad:
                raise _C.UserError(f"shapes names {name!r}, which requires a gradient: that of a padded copy would be "
                                   "lost")
            sizes[name] = tensor.size(dimension)
            if not _holds(tensor.dtype, fill):
                raise _C.UserError(f"shapes fills {name!r} with {fill!r}, which {tensor.dtype} does not hold")
        if len(set(sizes.values())) > 1:
            raise _C.UserError("the sizes of what shapes names differ: " +
                               ", ".join(f"{name!r} has {size}" for name, size in sizes.items()))
        return next(iter(sizes.values()))

    def _lies_as_padded(self, args, kwargs):
        """Whether each tensor is contiguous in memory of its own. A plan is of what lies so: `labels` that are `input_ids`,
        or windows on one tensor, would be of another signature than padded ones."""
        leaves = []
        tree.flatten((args, kwargs), leaves)
        memory = [leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for name in self._shapes.inputs:
            container, key = self._place_of(name, args, kwargs)
            tensor = container[key]
            if not tensor.is_contiguous() or memory.count(tensor.untyped_storage()._cdata) > 1:
                return False
        return True

    def _resized(self, args, kwargs, size, how=None):
        """The arguments with copies of these tensors, padded unless `how` says something else."""
        new_args, new_kwargs, copies = list(args), dict(kwargs), {}
        for name, (dimension, fill) in self._shapes.inputs.items():
            container, key = self._place_of(name, args, kwargs)
            resized = (how or _padded)(container[key], dimension, size, fill)
            if container is args:
                new_args[key] = resized
            elif container is kwargs:
                new_kwargs[key] = resized
            else:
                if id(container) not in copies:
                    copies[id(container)] = copy.copy(container)
                copies[id(container)][key] = resized
        new_args = [copies.get(id(one), one) for one in new_args]
        new_kwargs = {key: copies.get(id(one), one) for key, one in new_kwargs.items()}
        return tuple(new_args), new_kwargs


def _holds(dtype, fill):
    """Whether padding is filled with what was said, and not with what is left of it."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype is torch.bool:
        return fill in (0, 1)
    limits = torch.iinfo(dtype)
    return limits.min <= fill <= limits.max and fill == int(fill)


def _repeated(tensor, dimension, size, fill):
    there = tensor.size(dimension)
    return tensor.index_select(dimension, torch.arange(size) % there) if there else _padded(tensor, dimension, size, fill)


def _padded(tensor, dimension, size, fill):
    there = tensor.size(dimension)
    shape = list(tensor.shape)
    shape[dimension] = size
    padded = tensor.new_full(shape, fill)
    padded.narrow(dimension, 0, there).copy_(tensor)
    return padded
