"""What the host code of a step may change while the step is captured without being run."""

import collections
import random

import numpy

from stepc.watch import walk


class Before:
    """Every container, attribute and host generator that a step can reach, to be put back as it was."""

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
            self._containers[id(container)] = (container, container.copy())

    def restore(self):
        for container, copy in self._containers.values():
            if isinstance(container, dict):
                for key in [key for key in container if key not in copy]:
                    del container[key]
                for key, value in copy.items():
                    if key not in container or container[key] is not value:
                        container[key] = value
            elif len(container) != len(copy) or any(a is not b for a, b in zip(container, copy)):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(copy)
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
