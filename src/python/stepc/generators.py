"""Generators of random numbers on the host: PyTorch's, Python's and NumPy's, with their states as plain values."""

import random

import numpy
import torch


def of_process():
    """The generators, by name, from which everything in the process draws by default."""
    return {"torch": torch.default_generator, "python": random.getstate.__self__, "numpy": numpy.random.get_state.__self__}


def states_of_process():
    return {name: state_of(one) for name, one in of_process().items()}


def set_process(states):
    for name, one in of_process().items():
        set_state(one, states[name])


def is_generator(value):
    kinds = (torch.Generator, random.Random, numpy.random.RandomState, numpy.random.Generator, numpy.random.BitGenerator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def state_of(generator):
    """The state as numbers, texts, tensors, lists and dicts."""
    if isinstance(generator, torch.Generator):
        return {"kind": "torch", "is": generator.get_state()}
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"kind": "python", "is": {"version": version, "words": torch.tensor(words), "gauss": gauss}}
    return {"kind": "numpy", "is": _without_arrays(_of_numpy(generator).state)}


def set_state(generator, state):
    """Raises ValueError for the state of another kind of generator."""
    if state["kind"] != state_of(generator)["kind"]:
        raise ValueError(f"a state of {state['kind']}'s generators was saved, and {generator} is another")
    if state["kind"] == "torch":
        generator.set_state(state["is"])
    elif state["kind"] == "python":
        saved = state["is"]
        generator.setstate((saved["version"], tuple(saved["words"].tolist()), saved["gauss"]))
    else:
        _of_numpy(generator).state = _with_arrays(state["is"])


class _Legacy:
    """A RandomState as a BitGenerator: `state` includes the last draw of a Gaussian pair."""

    def __init__(self, generator):
        self.generator = generator

    @property
    def state(self):
        return self.generator.get_state(legacy=False)

    @state.setter
    def state(self, state):
        self.generator.set_state(state)


def _of_numpy(generator):
    if isinstance(generator, numpy.random.RandomState):
        return _Legacy(generator)
    return generator.bit_generator if isinstance(generator, numpy.random.Generator) else generator


def _without_arrays(value):
    if isinstance(value, dict):
        return {key: _without_arrays(one) for key, one in value.items()}
    if isinstance(value, numpy.ndarray):
        return {"dtype": value.dtype.name, "array": torch.from_numpy(value.astype(numpy.int64))}
    return value


def _with_arrays(value):
    if isinstance(value, dict):
        if value.keys() == {"dtype", "array"}:
            return value["array"].numpy().astype(value["dtype"])
        return {key: _with_arrays(one) for key, one in value.items()}
    return value
