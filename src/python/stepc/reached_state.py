"""What the host code of a step may change while the step is captured without being run."""

import collections
import random

import numpy

from stepc.watch import bare, walk
from stepc.watch.reads import ABSENT


class ReachedState:
    """Every container, attribute and host generator that a step can reach, to be restored."""

    def __init__(self, step):
        self._containers = {}  # id -> (container, shallow copy)
        self._places = []  # (container, name, value) of cells, slots and globals
        for container, name, value, _ in walk.reachable(step):
            if isinstance(container, dict) and "__builtins__" not in container:
                self._keep(container)
            elif container is not None and not isinstance(container, (tuple, list)):
                self._places.append((container, name, value))
            if isinstance(value, (dict, list, set, collections.deque)):
                self._keep(value)
        self._python = random.getstate()
        self._numpy = numpy.random.get_state()

    def _keep(self, container):
        if id(container) not in self._containers:
            held = dict(bare.items(container)) if isinstance(container, dict) else bare.entries(container)
            self._containers[id(container)] = (container, held)

    def restore(self):
        for container, held in self._containers.values():
            if isinstance(container, dict):
                put, drop = bare.method(container, "__setitem__"), bare.method(container, "__delitem__")
                now = dict(bare.items(container))
                for key in now.keys() - held.keys():
                    drop(key)
                for key, value in held.items():
                    if now.get(key, ABSENT) is not value:
                        put(key, value)
                continue
            now = bare.entries(container)
            if len(now) != len(held) or any(a is not b for a, b in zip(now, held)):
                bare.method(container, "clear")()
                bare.method(container, "update" if isinstance(container, set) else "extend")(held)
        for container, name, value in self._places:
            if isinstance(container, dict):
                if container.get(name) is not value:
                    container[name] = value
            elif hasattr(container, "cell_contents"):
                if container.cell_contents is not value:
                    container.cell_contents = value
            elif getattr(container, name, None) is not value:
                setattr(container, name, value)
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
