"""The scout: finds a Python program's modules, optimizers and other state, and tells the engine the place of each
tensor.

The engine itself reads those places at every step. It asks the scout again when a witness (the length of a dict, the
identity of an object) has changed.
"""

import functools
import gc
import logging
import os
import sys
import types
import weakref

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stepc import generators, host_state, tree
from stepc.watch import bytecode, updates, walk
from stepc.first_state import FirstState
from stepc.host_state import beside_parameters
from stepc.reached_state import ReachedState
from stepc.watch.known import HOOKS, PLAIN
from stepc.watch.reads import ABSENT, ITEM, LENGTH, WEAK, Reads, contents_of, ids_of

_LOG = logging.getLogger("stepc")
PARAMETER, GRADIENT, BUFFER, OPTIMIZER_STATE, BATCH, CAPTURED = range(6)
_SCHEDULERS = (LRScheduler, ReduceLROnPlateau)
_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


def _storage(tensor):
    return tensor.untyped_storage()._cdata


class Scout:
    """Finds and keeps the modules and optimizers of a step; both are held for the step's life."""

    def __init__(self, step, modules=None, optimizers=None, is_pure=False):
        self.step = step
        self.python = "pure" if is_pure else "watched"  # or "traced": what happens to the step's Python at replays
        self.modules = dict(modules or {})
        self.optimizers = dict(optimizers or {})
        self.schedulers = {}
        self._finds_modules, self._finds_optimizers = modules is None, optimizers is None
        self._find()
        self._captured = {}  # key -> (container, name)
        self._parameters = {}  # parameters of no module: key -> (container, name)
        self._generators = {}
        self._owned = None  # generators that the step can reach, found on request
        self.slots = []  # (owner, key, container, name) of all tensors that outlive the step
        self._attributes = {}  # event -> attributes that its optimizer gets while it steps
        self._updates = {}  # event -> the Update of its optimizer's step
        self._first_state = FirstState()
        self._names = {}
        self._said_compiled = weakref.WeakSet()
        self._left_out = set()  # (id of the container, name) of what a pure step itself changes
        self.reads = Reads()
        self.attributes = tree.Attributes(all_count=is_pure)  # that the step reads of objects among its arguments
        self.looks_lightly = False  # recordings look only at the calls
        self.on_ranks = False
        self.reason = ""  # why a replay of the last recorded call needs its Python

    def _find(self):
        """Outermost modules, optimizers and schedulers, under the names by which the step reaches them."""
        modules = {}
        inner = set()
        for _, _, value, path in walk.reachable(self.step, skip=(torch.nn.Module,)):
            if isinstance(value, torch.nn.Module):
                modules[path] = value
                inner.update(id(module) for module in value.modules() if module is not value)
        hooks = [hook for module in modules.values() for hook in _hooks_of(module)]
        found = list(walk.reachable(self.step, skip=(torch.nn.Module,)))
        for hook in hooks:  # only a hook may step an optimizer
            found += walk.reachable(hook, skip=(torch.nn.Module,))
        for _, _, value, path in found:
            if isinstance(value, torch.nn.Module):
                continue
            if self._finds_optimizers and isinstance(value, torch.optim.Optimizer):
                value = getattr(value, "optimizer", value)  # accelerate's wrapper
                if isinstance(value, torch.optim.Optimizer) and value not in self.optimizers.values():
                    self.optimizers[path] = value
            elif isinstance(value, _SCHEDULERS):
                self.schedulers[path] = value
        if self._finds_modules:
            self.modules = {path: module for path, module in modules.items() if id(module) not in inner}

    # ---- structure

    def look(self):
        if self.python == "pure":
            self._read_modules()
        if self.reads.refresh():
            self._find_again()
        slots, witnesses, flagged, seen, beside_model = [], [], [], set(), set()
        names, settings = {}, {}
        for prefix, module in self.modules.items():
            before = "" if len(self.modules) == 1 else f"{prefix}."
            for path, part in module.named_modules():
                names[part] = f"{before}{path}".rstrip(".")
                flagged.append(part.__dict__)
                for kind in ("_parameters", "_buffers", "_modules"):
                    witnesses.append((LENGTH, part.__dict__[kind], None, len(part.__dict__[kind])))
                for name, child in part._modules.items():
                    witnesses.append((ITEM, part._modules, name, child))
                dot = f"{before}{path}." if path else before
                for name, parameter in part._parameters.items():
                    if parameter is None:
                        continue
                    witnesses.append((WEAK, part._parameters, name, weakref.ref(parameter)))  # may be tied later
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        slots.append((PARAMETER, f"{dot}{name}", part._parameters, name))
                for name, buffer in part._buffers.items():
                    if buffer is not None and id(buffer) not in seen:
                        seen.add(id(buffer))
                        slots.append((BUFFER, f"{dot}{name}", part._buffers, name))
                        if name in part._non_persistent_buffers_set:
                            beside_model.add(f"{dot}{name}")
        self._names = names
        for key, (container, name) in self._parameters.items():
            if id(value_at(container, name)) in seen:
                continue  # of a module that was found since
            seen.add(id(value_at(container, name)))
            slots.append((PARAMETER, key, container, name))
        keys = {id(value_at(slot[2], slot[3])): slot[1] for slot in slots if slot[0] == PARAMETER}
        for path, optimizer in self.optimizers.items():
            self._look_at_optimizer(path, optimizer, keys, slots, witnesses)
            settings[f"parameters of {path}"] = "+".join(str(len(group["params"])) for group in optimizer.param_groups)
        for key, (container, name) in self._captured.items():
            slots.append((CAPTURED, key, container, name))
        self.slots = slots
        self._updates = self._known_updates(witnesses)
        read = {}
        self.reads.look(slots, witnesses, read)
        return {
            "slots": slots,
            "witnesses": witnesses,
            "modules": flagged,
            "generators": list(self._generators.items()),
            "settings": settings,
            "updates": self._updates,
            "reads": read,
            "beside_model": beside_model,
            "absent": ABSENT,
            "contents_of": contents_of,
        }

    def _known_updates(self, witnesses):
        if self.python == "traced":
            return {}
        found = {}
        for key, one in self.events():
            if isinstance(one, torch.optim.Optimizer) and key not in self._attributes:
                found[key] = updates.update_of(one, self._updates.get(key), witnesses, self.step_beneath(one))
        return {key: update for key, update in found.items() if update is not None}

    def _find_again(self):
        """Finds everything again and drops what is no longer reached."""
        before = [*self.modules.values(), *self.optimizers.values()]
        if self._finds_modules:
            self.modules = {}
        if self._finds_optimizers:
            self.optimizers = {}
            self.schedulers = {}
        self._find()
        now = [*self.modules.values(), *self.optimizers.values()]
        for owner in now:
            self.reads.wake(owner)
        used = ids_of(now)
        for owner in before:
            if id(owner) not in used:
                self.reads.rest(owner, used)

    def followed(self, watch, is_same_call=False):
        """Takes over the reads and effects of a recorded call, or of the next part of the same call."""
        self.reason = watch.reason or ""
        self.reads.recorded += not is_same_call
        for kind, name in watch.attributes:
            self.attributes.add(kind, name)
        if self._finds_modules:
            known = {id(part) for module in self.modules.values() for part in module.modules()}
            used = [(words, one) for one, words in watch.found.values() if isinstance(one, torch.nn.Module)]
            inner = {id(part) for _, one in used for part in one.modules() if part is not one}
            for words, one in used:
                if id(one) not in known and id(one) not in inner:
                    self.reads.wake(one)
                    self.modules[_new_name(words, self.modules)] = one
        if self._finds_optimizers:
            known = {id(optimizer) for optimizer in self.optimizers.values()}
            for one, words in watch.found.values():
                if isinstance(one, torch.optim.Optimizer) and id(one) not in known:
                    self.reads.wake(one)
                    self.optimizers[_new_name(words, self.optimizers)] = one
        watch.found.clear()

    def python_reason(self):
        """Why the step's Python must run at every call; empty: it need not."""
        if self.python == "traced" or self.reason or self.reads.changing is None:
            return self.reason
        place = self.reads.changing
        return f"{place.line or 'the step'} reads {place.words}, which changes from step to step"

    def why_unwatched(self):
        return bytecode.why_unwatched()

    def trace(self, why):
        """Switches to traced mode: the step's Python runs at every call, and what it reads no longer affects the signature."""
        self.reason = why
        self.python = "traced"
        self.reads = Reads()
        self._captured = {key: place for key, place in self._captured.items() if self._is_place(place[0])}

    def unfit(self):
        """A module that no plan can hold, in words; empty: there is none."""
        for path, module in self.modules.items():
            for name, part in module.named_modules():
                if isinstance(part, torch.jit.ScriptModule):
                    return f"scripted module in '{path}'"
                if _is_compiled(part) and part not in self._said_compiled:
                    self._said_compiled.add(part)
                    _LOG.info("'%s' is compiled by torch.compile: plans are made of its code as it is written",
                              f"{path}.{name}".rstrip("."))
        return ""

    def _read_modules(self):
        """Adds the numbers and texts in a pure step's modules as places, as if the step had read them."""
        for prefix, module in self.modules.items():
            for path, part in module.named_modules(prefix=prefix):
                held = part.__dict__
                for name, value in held.items():
                    if isinstance(value, PLAIN) and name != "training" and (id(held), name) not in self._left_out:
                        self.reads.add(held, ITEM, name, f"{path}.{name}", "")

    def leaves_out(self, place, words):
        """Replays of a pure step skip this effect. The value at the place, (id of a container, name), no longer affects
        the signature."""
        if place in self._left_out:
            return
        self._left_out.add(place)
        self.reads.forget(*place)
        _LOG.warning('python="pure", and %s', words)

    def _look_at_optimizer(self, path, optimizer, keys, slots, witnesses):
        witnesses.append((ITEM, optimizer.__dict__, "state", optimizer.state))
        witnesses.append((ITEM, optimizer.__dict__, "param_groups", optimizer.param_groups))
        witnesses.append((LENGTH, optimizer.state, None, len(optimizer.state)))
        witnesses.append((LENGTH, optimizer.param_groups, None, len(optimizer.param_groups)))
        for g, group in enumerate(optimizer.param_groups):
            witnesses.append((ITEM, optimizer.param_groups, g, group))
            witnesses.append((LENGTH, group["params"], None, len(group["params"])))
            for name, value in group.items():
                if isinstance(value, torch.Tensor):
                    slots.append((OPTIMIZER_STATE, f"{path}.group{g}.{name}", group, name))
            for p, parameter in enumerate(group["params"]):
                witnesses.append((ITEM, group["params"], p, parameter))
                if id(parameter) not in keys:
                    keys[id(parameter)] = f"{path}.group{g}.{p}"
                    slots.append((PARAMETER, keys[id(parameter)], group["params"], p))
                state = optimizer.state.get(parameter)
                if not isinstance(state, dict):
                    continue
                witnesses.append((ITEM, optimizer.state, parameter, state))
                witnesses.append((LENGTH, state, None, len(state)))
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        slots.append((OPTIMIZER_STATE, f"{path}.{keys[id(parameter)]}.{name}", state, name))
        for name, value in beside_parameters(optimizer).items():
            if isinstance(value, torch.Tensor):
                slots.append((OPTIMIZER_STATE, f"{path}.{name}", optimizer.state, name))

    def make_state(self):
        found = (value for _, _, value, _ in walk.reachable(self.step, skip=(torch.nn.Module,)))
        return self._first_state.make(self.optimizers, [one for one in found if isinstance(one, torch.amp.GradScaler)])

    def drop_state(self):
        self._first_state.drop()

    def initial_value(self, key):
        """The value of an optimizer's state that make_state() made; None: it made none for this key."""
        for owner, known, container, name in self.slots:
            if owner == OPTIMIZER_STATE and known == key:
                return self._first_state.value_of(container, name)
        return None

    def name_of(self, module):
        return self._names.get(module)

    # ---- host code

    def events(self):
        """(key, object) of everything whose step() is host code with state of its own."""
        inner = {id(one) for scheduler in self.schedulers.values() for one in getattr(scheduler, "_schedulers", ())}
        for path, one in (*self.optimizers.items(), *self.schedulers.items()):
            if id(one) not in inner:  # others are stepped by their owner
                yield f"{type(one).__name__} '{path}'", one

    def run_event(self, key):
        for name, one in self.events():
            if name != key:
                continue
            extra = self._attributes.get(key, {})
            for attribute, value in extra.items():
                setattr(one, attribute, value)
            try:
                self.call(one)
            finally:
                for attribute in extra:
                    delattr(one, attribute)
            return
        raise KeyError(key)

    def call(self, one):
        """Runs the step of an optimizer or a scheduler."""
        one.step()

    def step_beneath(self, one):
        """The original step() of an optimizer whose step() is stepc's, run by call()."""
        return None

    def found_attributes(self, key, shapes):
        """Tensors that a GradScaler sets on a fused optimizer as attributes for the length of its step."""
        self._attributes[key] = shapes
        if key in self._updates:
            self._updates[key].is_known = False

    def save_host_state(self):
        for attributes in self._attributes.values():
            for name, value in attributes.items():
                if isinstance(value, tuple):  # shape and type; made here, outside any recording
                    attributes[name] = torch.zeros(value[0], dtype=value[1])
        return host_state.save(self.optimizers.values(), self.schedulers.values())

    def restore_host_state(self, saved):
        host_state.restore(saved)

    def save_everything(self):
        return ReachedState(functools.partial(self.step, self.modules, self.optimizers)), self.save_host_state()

    def restore_everything(self, saved):
        reached, of_host = saved
        reached.restore()
        host_state.restore(of_host)

    # ---- owners of unlisted tensors

    def adopt(self, keys):
        """Adds the keys that are paths to tensors of the program as places; returns whether there were any."""
        missing = set(keys) - {slot[1] for slot in self.slots}
        found = False
        for container, name, value, path in walk.reachable(self.step, in_place=True) if missing else ():
            if path in missing and isinstance(value, torch.Tensor) and _is_plain(value):
                missing.remove(path)
                found = (self._is_place(container) and self._adopt(container, name, value, path)) or found
        return found

    def explain(self, wanted):
        """Searches the places of tensors on these storages, and generators, and adds them. Returns for each whether it
        was found."""
        storages = {_storage(one): index for index, one in enumerate(wanted) if isinstance(one, torch.Tensor)}
        found = [isinstance(one, torch.Generator) and self._adopt_generator(one) for one in wanted]
        places = self._places_in_program(storages)
        places |= self._places_anywhere(storages.keys() - places.keys(), wanted)
        for storage, index in storages.items():
            if storage in places:
                container, name, value, path = places[storage]
                path = path or f"object {len(self._captured)}.{name}"
                found[index] = self._is_place(container) and self._adopt(container, name, value, path)
        return found

    def _places_in_program(self, storages):
        """By storage: the first place that the step reaches."""
        found = {}
        for place in walk.reachable(self.step, in_place=True) if storages else ():
            value = place[2]
            if isinstance(value, torch.Tensor) and _is_plain(value) and (storage := _storage(value)) in storages:
                found.setdefault(storage, place)
            if len(found) == len(storages):
                break
        return found

    def _places_anywhere(self, storages, wanted):
        """By storage: a place anywhere in the process. Scans all objects a fixed number of times, for any number of
        tensors."""
        known, found = {id(one) for one in wanted}, {}
        tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)] if storages else []
        candidates = [one for one in tensors if id(one) not in known and _is_plain(one) and _storage(one) in storages]
        for value, place in zip(candidates, walk.holders_of(candidates, but=(tensors,))):
            if place is not None and self._is_place(place[0]):
                found.setdefault(_storage(value), (*place, value, None))
        return found

    def _is_place(self, container):
        """Whether the value there may be replaced later. In a tuple it cannot be; the code of a traced step finds the
        new tuple itself."""
        return self.python != "traced" or not isinstance(container, tuple)

    def _adopt(self, container, name, value, path):
        if container is None:
            return False
        if isinstance(value, torch.nn.Parameter):
            if path in self._parameters:
                return False
            self._parameters[path] = (container, name)
            return True
        if path in self._captured:
            if self._captured[path][0] is container:
                return False
            path = f"{path}#{len(self._captured)}"
        self._captured[path] = (container, name)
        return True

    def _adopt_generator(self, generator):
        for _, _, value, path in walk.reachable(self.step):
            if value is generator and path not in self._generators:
                self._generators[path] = generator
                return True
        path = f"generator {len(self._generators)}"
        self._generators[path] = generator
        return True

    def owns(self, generator):
        """Whether the program had the generator before the step was recorded."""
        if self._owned is None:
            found = [one for _, _, one, _ in walk.reachable(self.step) if isinstance(one, torch.Generator)]
            self._owned = [torch.default_generator, *self._generators.values(), *found]
        return any(one is generator for one in self._owned)

    def forget_generators(self):
        """owns() searches again."""
        self._owned = None

    def host_generators(self):
        """Python's and NumPy's generators of the process, and all generators that the step reaches, by path."""
        process = generators.of_process()
        found = {path: one for _, _, one, path in walk.reachable(self.step) if generators.is_generator(one)}
        own = {path: one for path, one in found.items() if all(one is not known for known in process.values())}
        return {name: one for name, one in process.items() if name != "torch"} | own

    # ---- where the program is

    def source_line(self):
        frame = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith((_HERE, _TORCH)) and not path.startswith("<"):
                return f"{os.path.basename(path)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def settle(self, of_all):
        """Collects garbage; what a step has just dropped is in the young generations, which are small."""
        if not self.looks_lightly:
            gc.collect(2 if of_all else 1)


def _new_name(words, names):
    name, number = words, 1
    while name in names:
        number += 1
        name = f"{words} {number}"
    return name


def _hooks_of(module):
    for parameter in module.parameters():
        for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
            yield from (hooks or {}).values()
    for part in module.modules():
        for name in HOOKS:
            yield from part.__dict__[name].values()


def _is_compiled(module):
    return type(module).__name__ == "OptimizedModule" or isinstance(
        module.__dict__.get("_compiled_call_impl"), types.FunctionType
    )


def _is_plain(tensor):
    return tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda")


def value_at(container, name):
    if isinstance(container, (dict, list, tuple)):
        return container[name]
    return getattr(container, "cell_contents" if type(container).__name__ == "cell" else name)
