"""Results of a step that have no value of their own: the program's tensors, views of their memory, and graphs."""

import torch

from stepc.scout import BUFFER, CAPTURED, PARAMETER, value_at

_KEPT = (PARAMETER, BUFFER, CAPTURED)
_MOST_NODES = 1000  # of a graph, that are asked whether its backward pass has run
_SAVED = {}  # type of node -> names of the tensors that it keeps for its backward pass


class Place:
    """A result that is the tensor at a place of the program, or a window on it: found there again after a replay."""

    __slots__ = ("_container", "_name", "_is_gradient", "_window")

    def __init__(self, container, name, is_gradient=False, window=None):
        self._container, self._name = container, name
        self._is_gradient = is_gradient
        self._window = window  # sizes, strides, elements from where the tensor begins; None: the tensor itself

    def find(self, given):
        """`given`: the tensors that the step was given."""
        base = value_at(given if self._container is None else self._container, self._name)
        if self._is_gradient:
            return base.grad
        if self._window is None:
            return base
        sizes, strides, shift = self._window
        base = base.detach()
        return base.as_strided(sizes, strides, base.storage_offset() + shift)

    def __hash__(self):
        return hash((id(self._container), self._name, self._is_gradient, self._window))

    def __eq__(self, other):
        return (isinstance(other, Place) and self._container is other._container and self._name == other._name
                and self._is_gradient == other._is_gradient and self._window == other._window)


def filled(places, made, given):
    """All tensors of a result: at each place of None the next one that was made."""
    made, out = iter(made), []
    for place in places:
        if place is None:
            out.append(next(made))
        else:
            out.append(out[place] if isinstance(place, int) else place.find(given))
    return out


class Known:
    """The tensors that a call finds: those that it is given, parameters, buffers and captured ones."""

    def __init__(self, scout, given):
        self._at = [(None, index, tensor) for index, tensor in enumerate(given)]
        for owner, _, container, name in scout.slots:
            if owner in _KEPT and isinstance(tensor := _there(container, name), torch.Tensor):
                self._at.append((container, name, tensor))
        self._storages = None

    def places_of(self, tensors):
        """Where each tensor of a result is found, the number of an earlier one that it is, too, included."""
        first, places = {}, []
        for index, tensor in enumerate(tensors):
            known = first.setdefault(id(tensor), index)
            places.append(known if known < index else self._place_of(tensor))
        return tuple(places)

    def _place_of(self, result):
        """Where the program has it; None: the step has made it, or it stands somewhere else by now."""
        for container, name, tensor in self._at:
            if tensor is result:
                return Place(container, name) if self._is_there(container, name, tensor) else None
        if result.grad_fn is not None and result._base is None:
            return None
        for container, name, tensor in self._at:
            if tensor.shape == result.shape and tensor.is_leaf and tensor.grad is result:
                return Place(container, name, is_gradient=True)
        return self._window(result)

    def _window(self, result):
        if self._storages is None:
            self._storages = {}
            for one in self._at:
                self._storages.setdefault(_memory_of(one[2]), one)
        memory = _memory_of(result)
        if memory is None or memory not in self._storages:
            return None
        container, name, tensor = self._storages[memory]
        alike = tensor.dtype is result.dtype and not result.requires_grad
        alike = alike and (tensor.is_conj(), tensor.is_neg()) == (result.is_conj(), result.is_neg())
        if not alike or not self._is_there(container, name, tensor):
            return None
        shift = result.storage_offset() - tensor.storage_offset()
        return Place(container, name, window=(tuple(result.shape), result.stride(), shift))

    @staticmethod
    def _is_there(container, name, tensor):
        return container is None or _there(container, name) is tensor


def _there(container, name):
    try:
        return value_at(container, name)
    except (LookupError, AttributeError, ValueError):  # it is gone, or a cell is empty
        return None


def _memory_of(tensor):
    try:
        return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
    except (NotImplementedError, RuntimeError):  # a class of tensors that wraps others
        return None


def has_graph(tensors):
    """Whether a backward pass can still be run from one of the tensors."""
    return any(tensor.grad_fn is not None and _can_run_backward(tensor.grad_fn) for tensor in tensors)


def _can_run_backward(root):
    level, seen, keeps = [root], {root}, False
    while level and len(seen) < _MOST_NODES:
        above = []
        for node in level:
            try:
                for name in _saved_by(node):
                    getattr(node, name)
                    keeps = True
            except RuntimeError:  # freed by the backward pass that has run
                return False
            for next_node, _ in node.next_functions:
                if next_node is not None and next_node not in seen:
                    seen.add(next_node)
                    above.append(next_node)
        level = above
    return keeps  # a graph that keeps nothing does not tell


def _saved_by(node):
    kind = type(node)
    names = _SAVED.get(kind)
    if names is None:
        raw = [name for name in dir(node) if name.startswith("_raw_saved_")]
        names = ["saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw") for name in raw]
        names = _SAVED[kind] = [name for name in names if hasattr(kind, name)]
    return names
