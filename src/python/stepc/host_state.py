"""What optimizers and schedulers hold outside tensors, to be restored if their host code runs once more."""

import torch


def beside_parameters(optimizer):
    """What of an optimizer's state belongs to no parameter, by name: MADGRAD counts in "k"."""
    return {name: one for name, one in optimizer.state.items()
            if not isinstance(name, torch.Tensor) and not isinstance(one, dict)}


def numbers_in(state):
    """All of an optimizer's state that is no tensor."""
    return {name: one for name, one in state.items() if not isinstance(one, torch.Tensor)}


def save(optimizers, schedulers):
    """For restore(): (container, its values) of groups and states, by optimizer or scheduler."""
    saved = []
    for optimizer in optimizers:
        groups = [(group, {k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
        states = [(state, numbers_in(state)) for state in optimizer.state.values() if isinstance(state, dict)]
        states.append((optimizer.state, numbers_in(beside_parameters(optimizer))))
        saved.append((groups, states))
    for scheduler in schedulers:
        attributes = {k: v for k, v in scheduler.__dict__.items() if k != "optimizer" and k != "step"}
        saved.append(([(scheduler.__dict__, attributes)], []))
    return saved


def restore(saved):
    for groups, states in saved:
        for container, values in groups + states:
            container.update(values)
