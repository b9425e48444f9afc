"""Makes the state that optimizers make in their first step, before that step: on several ranks no rank holds it whole.

Parameters of a few elements show its first values and check them: a first step that finds this state does the same as
one that finds none.
"""

import collections

import torch

from stepc import _C

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class FirstState:
    """The state that was made for a program's optimizers, and its values."""

    def __init__(self):
        self._made = []  # (optimizer, parameter, its state before)
        self._scalers = []  # scalers that were given their first scale
        self._values = {}  # (id of a parameter's state, name) -> the number that all its elements have
        self._states = []  # held, so that no other object gets these ids

    def make(self, optimizers, scalers=()):
        """Makes the state; returns whether there was any to make."""
        made = len(self._made)
        begun = [scaler for scaler in scalers if scaler.is_enabled() and scaler._scale is None]
        parameters = (one for optimizer in optimizers.values() for group in optimizer.param_groups for one in group["params"])
        device = next((one.device for one in parameters), torch.device("cpu"))
        for scaler in begun:
            scaler._lazy_init_scale_growth_tracker(device)  # as its first scale() does
        self._scalers += begun
        for path, optimizer in optimizers.items():
            known = {}
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and not optimizer.state.get(parameter):
                        kind = (id(group), parameter.dim(), parameter.dtype)
                        if kind not in known:
                            known[kind] = _initial(path, optimizer, group, parameter)
                        self._put(optimizer, parameter, known[kind])
        return len(self._made) > made or bool(begun)

    def drop(self):
        for scaler in self._scalers:
            scaler._scale = scaler._growth_tracker = None
        for optimizer, parameter, before in self._made:
            if before is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = before
        self.__init__()

    def value_of(self, state, name):
        return self._values.get((id(state), name))

    def _put(self, optimizer, parameter, initial):
        if not initial:
            return
        state = {}
        region = _C.VirtualRegion()
        try:
            for name, (kind, value) in initial.items():
                state[name] = torch.empty_like(parameter, dtype=value.dtype) if kind == "like" else value
        finally:
            region.close()
        for name, (kind, value) in initial.items():
            if kind == "like":
                self._values[id(state), name] = value.item()
                state[name].requires_grad_(False)
                if not _C.is_virtual(state[name]):
                    state[name].fill_(value.item())
            elif kind == "scalar":
                state[name] = value.clone()
        self._made.append((optimizer, parameter, optimizer.state.get(parameter)))
        self._states.append(state)
        optimizer.state[parameter] = state


def _twin(optimizer, group, parameter, state=None):
    """An optimizer with the same options for this parameter only."""
    twin = type(optimizer).__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__.update({name: collections.OrderedDict() for name in _HOOKS if name in twin.__dict__})
    twin.state = collections.defaultdict(dict)
    if state is not None:
        twin.state[parameter] = state
    twin.param_groups = [{**group, "params": [parameter]}]
    return twin


def _stepped(optimizer, group, value, gradients, state=None):
    """A parameter and its state after steps with these gradients."""
    parameter = torch.nn.Parameter(value.clone())
    twin = _twin(optimizer, group, parameter, state)
    states = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        type(optimizer).step(twin)
        states.append({name: one.clone() if isinstance(one, torch.Tensor) else one
                       for name, one in twin.state.get(parameter, {}).items()})
    return parameter.detach(), states


def _initial(path, optimizer, group, like):
    """name -> ("like", number), ("scalar", tensor) or ("plain", value) for the state of a parameter like this one."""
    shape = (2,) * max(like.dim(), 1)
    count = torch.zeros(shape).numel()
    zero = torch.zeros(shape, dtype=like.dtype, device=like.device)
    _, (one, two) = _stepped(optimizer, group, zero, [zero, zero])
    initial = {}
    for name, value in one.items():
        again = two.get(name)
        if not isinstance(value, torch.Tensor):
            is_count = type(value) in (int, float) and type(again) is type(value)
            initial[name] = ("plain", 2 * value - again if is_count else value)
        elif value.shape == shape and torch.equal(value, value.flatten()[0].expand(shape)):
            initial[name] = ("like", value.flatten()[0])
        elif value.dim() == 0:
            initial[name] = ("scalar", 2 * value - again)
        else:
            raise _refusal(path, optimizer, f"its state '{name}' is of a shape of its own")
    steps = [torch.linspace(first, 1.5, count).reshape(shape).to(like.device, like.dtype) for first in (-1.0, -0.75)]
    found = {name: zero.to(value.dtype) + value if kind == "like" else value.clone() if kind == "scalar" else value
             for name, (kind, value) in initial.items()}
    ones = _stepped(optimizer, group, steps[0], steps[1:])
    others = _stepped(optimizer, group, steps[0], steps[1:], found)
    if not torch.equal(ones[0], others[0]) or not _are_same(ones[1][0], others[1][0]):
        raise _refusal(path, optimizer, "its first step is another one than its later ones")
    return initial


def _are_same(one, other):
    if one.keys() != other.keys():
        return False
    pairs = zip(one.values(), (other[name] for name in one))
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def _refusal(path, optimizer, why):
    return _C.UserError(f"{type(optimizer).__name__} '{path}' cannot begin on ranks: {why}; take one step on one rank, and "
                        "load the state that it leaves")
