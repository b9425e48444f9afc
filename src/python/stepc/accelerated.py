"""A training step that accelerate() has wrapped."""

import collections
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from stepc import _C, around, ranks, results, saved, tree
from stepc.backoff import Backoff
from stepc.config import Config
from stepc.function_modes import Tracing
from stepc.profile import Profile
from stepc.recording import Recording
from stepc.scout import Scout
from stepc.shapes import Padding


_LOG = logging.getLogger("stepc")
_MOST_WITH_GRAPH = 3  # kinds of calls that return graphs, before every call is taken for one
_BESIDE_SHAPES = 4  # signatures that a step with shapes meets besides: its first call's, say
_MOST_ARGUMENTS = 256  # structures of arguments that are kept; a traced step may meet another one at every call


def _gradient_of(tensor):
    with torch._C.DisableTorchFunctionSubclass():  # a class of the program's own is not to notice
        return tensor.grad if tensor.is_leaf and tensor.requires_grad else None


def _others(tensors, known):
    ids = {id(tensor) for tensor in known}
    return [tensor for tensor in tensors if id(tensor) not in ids]


class _Graph(Exception):
    """The step has run and returns a tensor whose backward pass can still be run, which no replay can give."""

    def __init__(self, result):
        self.result = result


def _with_room(config):
    """All shapes' plans are kept."""
    if config.shapes is None:
        return config
    return dataclasses.replace(config, max_plans=max(config.max_plans, len(config.shapes.sizes) + _BESIDE_SHAPES))


class Accelerated:
    """A training step with the call of the function that it wraps.

    `stats` are the numbers behind `report()`; `graph_text()` is the captured step as text, `schedule_text()` its
    Schedule.
    """

    def __init__(self, train_step: Callable[..., Any], scout: Scout, config: Config):
        functools.update_wrapper(self, train_step)
        self._train_step = train_step
        self._scout = scout
        self.config = config
        self._engine = _C.Step(scout, _with_room(config), ranks.parallel_of(config))
        self._is_on_ranks = scout.on_ranks = self._engine.is_on_ranks()
        if self._is_on_ranks:
            ranks.joined(self._engine)
        has_shapes = config.shapes is not None and config.mode != "eager"
        self._padding = Padding(config.shapes, train_step) if has_shapes else None
        self._structures = []  # of results, their places, and which containers of the arguments they have, by number
        self._runs_backward = False  # the step itself: a graph that it returns where it left that out is for nobody
        self._with_graph = set()  # the text of arguments with which the step returns a graph, and whether one is made
        self._structure_numbers = {}
        self._arguments = {}  # structure of arguments -> its text in the signature, the names of their tensors
        self._backoff = Backoff()
        self._met = collections.Counter()  # structures by what is said of them
        self._said = set()
        self._trained = 0  # calls with gradients

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trains = torch.is_grad_enabled()
        out = self._call(args, kwargs) if self._padding is None else self._padding.call(_Rehearsed(self), args, kwargs)
        self._trained += trains
        return out

    def _call(self, args, kwargs):
        began = time.monotonic()
        why = "it is called by another one" if _C.is_recording() or _C.is_tracing() else around.why_eager()
        if self._is_on_ranks:
            return self._call_on_ranks(args, kwargs, why)
        if why:
            self._say(f"this call runs eagerly: {why}")
        if why and around.leaves_results():
            return self._train_step(*args, **kwargs)
        if not why and not self._backoff.is_due():
            self._engine.ran_eagerly()
            return self._without_graph(self._train_step(*args, **kwargs), (args, kwargs))
        tensors, names, text = self._flat(args, kwargs)
        if self._gives_graph(text):
            return self._train_step(*args, **kwargs)
        opaque = []  # the structure of a result that a replay cannot give, and the result, which holds what is in it
        eager = functools.partial(self._eager, args, kwargs, tensors, opaque)
        try:
            if why:
                out, numbers, _ = eager()
                out = [one.detach() for one in out]
            else:
                out, numbers, is_left = self._engine.run(tensors, names, text, eager, began)
                self._backoff.note(is_left and not self._with_graph)
        except _Graph as graph:
            self._with_graph.add((text, torch.is_grad_enabled()))
            self._say("this step runs eagerly: it returns a tensor with its graph, for a backward pass outside of it, which "
                      "no replay can give; call backward() in the step, or return tensor.detach()")
            return graph.result
        return self._result(out, numbers, tensors, opaque, (args, kwargs))

    def _call_on_ranks(self, args, kwargs, why):
        """Nothing stands in for the plan: whatever keeps it from running is an error."""
        if why:
            raise _C.UserError(f"a step on ranks cannot run here: {why}")
        tensors, names, text, structure = self._flat(args, kwargs, with_structure=True)
        is_one = len(args) == 1 and not kwargs
        opaque = []

        def on(*others):
            given = tree.unflatten(structure, iter(others), iter(()))
            others_args, others_kwargs = ((given,), {}) if is_one else given
            return self._eager(others_args, others_kwargs, list(others), opaque)

        try:
            out, numbers, _ = self._engine.run(tensors, names, text, on, time.monotonic())
        except RuntimeError as error:
            if not around.reads_no_values(str(error)):
                raise
            raise _C.UserError(f"this step cannot run on ranks, where nothing runs eagerly: {str(error).splitlines()[0]}; "
                               "return the tensor and read it outside of the step") from None
        except _Graph:
            raise _C.UserError("this step cannot run on ranks: it returns a tensor with its graph; call backward() in the "
                               "step, or return tensor.detach()") from None
        return self._result(out, numbers, tensors, opaque, (args, kwargs))

    def _without_graph(self, result, given):
        """What an eager call returns: tensors that it has made without their graph, and all others as they are."""
        tensors, numbers = [], []
        structure = tree.flatten(result, tensors, numbers=numbers)
        with torch._C.DisableTorchFunctionSubclass():  # as in _gradient_of()
            if all(tensor.grad_fn is None for tensor in tensors):
                return result
            if self._is_for_a_backward_pass(tensors):
                self._backoff.reset()
                return result
            were_there = []
            tree.flatten(given, were_there)
            were_there = {id(tensor) for tensor in were_there}
            apart = {id(t): t.detach() for t in tensors if t.grad_fn is not None and id(t) not in were_there}
            out = [apart.get(id(t), t) for t in tensors]
        same = tree.same_containers(result, given)
        return tree.with_containers(tree.unflatten(structure, iter(out), iter(numbers)), same, given)

    def _is_for_a_backward_pass(self, tensors):
        """Whether the program is to run one from these results: the step itself does not."""
        if self._runs_backward or all(tensor.grad_fn is None for tensor in tensors):
            return False
        self._runs_backward = not results.has_graph(tensors)
        return not self._runs_backward

    def _result(self, out, numbers, tensors, opaque, given):
        number = numbers.pop()
        structure, places, same = opaque[0][:3] if opaque else self._structures[number]
        if places:
            out = results.filled(places, out, tensors)
        if structure is tree.TENSOR:
            return out[0]
        return tree.with_containers(tree.unflatten(structure, iter(out), iter(numbers)), same, given)

    def _flat(self, args, kwargs, with_structure=False):
        """The tensors among the arguments, their names, and what stands for the rest in the signature."""
        given = args[0] if len(args) == 1 and not kwargs else (args, kwargs)
        tensors = []
        structure = tree.flatten(given, tensors, attributes=self._scout.attributes.begin())
        text, names = self._arguments.get(structure) or self._new_arguments(given, structure)
        return (tensors, names, text, structure) if with_structure else (tensors, names, text)

    def _gives_graph(self, text):
        if not self._with_graph:
            return False
        grad_mode = torch.is_grad_enabled()
        if (text, grad_mode) in self._with_graph:
            return True
        return grad_mode and len(self._with_graph) >= _MOST_WITH_GRAPH

    def _say(self, line):
        if line not in self._said:
            self._said.add(line)
            _LOG.warning("%s: %s", getattr(self._train_step, "__name__", "step"), line)

    def _new_arguments(self, given, structure):
        """The text in the signature that stands for arguments of this structure, and the names of their tensors."""
        names = []
        tree.flatten(given, [], names, attributes=self._scout.attributes.begin())
        if len(self._arguments) >= _MOST_ARGUMENTS:
            self._arguments.clear()
        said = "; ".join(filter(None, [", ".join(map(str, names)), tree.describe(structure)]))
        self._met[said] += 1  # structures of which the same is said are told apart, and on all ranks alike
        self._arguments[structure] = f"{self._met[said]}: {said}", names
        return self._arguments[structure]

    def _eager(self, args, kwargs, given, opaque):
        """The user's function as it is; recorded when the engine records."""
        opaque.clear()
        known = results.Known(self._scout, given)
        gradients = [_gradient_of(tensor) for tensor in given]
        looks, began = True, time.monotonic()
        if _C.is_recording():
            with Recording(self._scout, (args, kwargs)):
                result = self._train_step(*args, **kwargs)
        elif _C.is_tracing():
            with Tracing(self._scout):
                result = self._train_step(*args, **kwargs)
        else:
            result = self._train_step(*args, **kwargs)
            looks = False
        seconds = 0.0 if looks else time.monotonic() - began
        tensors, numbers = [], []
        structure = tree.flatten(result, tensors, numbers=numbers)
        with torch._C.DisableTorchFunctionSubclass():  # as in _gradient_of()
            places = known.places_of(tensors)
            tensors = [tensor for tensor, place in zip(tensors, places) if place is None]
            places = places if len(tensors) < len(places) else ()
            if self._is_for_a_backward_pass(tensors):
                raise _Graph(result)
        # On ranks the step is given others, with a part of the batch.
        same = () if self._is_on_ranks else tree.same_containers(result, (args, kwargs))
        what = tree.opaque(structure)
        if looks:
            if what is not None:
                _C.report_effect(f"the step returns {what}, which a replay cannot make again")
                tensors += _others(tree.held_tensors(result), tensors)
            tensors += _others(self._left_in((args, kwargs), given, gradients), tensors)
        if what is not None:
            opaque.append((structure, places, same, result))
            return tensors, [*numbers, 0], seconds
        kind = structure, places, same
        number = self._structure_numbers.get(kind)
        if number is None:
            number = self._structure_numbers[kind] = len(self._structures)
            self._structures.append(kind)
        return tensors, numbers + [number], seconds

    def _left_in(self, arguments, given, gradients):
        """Tensors that the step has left in its arguments: results like those that it returns."""
        now = []
        tree.flatten(arguments, now, attributes=self._scout.attributes.begin())
        left = _others(now, given)
        for tensor, before in zip(given, gradients):
            gradient = _gradient_of(tensor)
            if gradient is not None and gradient is not before:
                _C.report_effect("the step leaves a gradient in a tensor of the batch")
                left.append(gradient)
        return left

    def save(self, directory: str | os.PathLike, step: int | None = None, **state: Any) -> str:
        """Writes the checkpoint `directory`/checkpoint-000200, whole or not at all, and returns its path.

        The checkpoint has the model, the optimizers, their options, the schedulers and random generators that the step
        reaches, those of the process, and `state`. `state` gives by name objects that have a state_dict(), such as
        scheduler=scheduler or loader=loader (a stepc.AsyncLoader), or numbers, texts, small tensors and lists and dicts
        of them. `step` is the checkpoint's number, by default the count of calls so far with gradients. Ranks call
        save() together, and each writes what it holds. Each rank saves its own objects with a state_dict(); everything
        else in `state` is rank 0's.
        """
        return saved.save(self._engine, self._scout, directory, self._trained if step is None else step, state)

    def load(self, directory: str | os.PathLike, **objects: Any) -> saved.Loaded:
        """Loads what save() has written on any number of ranks: a checkpoint, or the newest whole one in `directory`.

        Each of `objects` gets its state by load_state_dict(); everything else that save() was given is in the result's
        `state`. Ranks call load() together.
        """
        self._backoff.reset()
        loaded = saved.load(self._engine, self._scout, directory, objects)
        self._trained = loaded.step
        return loaded

    @property
    def stats(self) -> dict[str, Any]:
        """What was measured so far: a dict."""
        return self._engine.stats()

    def report(self, all_ranks: bool = False) -> str:
        """Planned beside measured, in words. With `all_ranks`, which all ranks call together, also what each rank
        takes."""
        if all_ranks and self._is_on_ranks:
            return self._engine.report_of_all()
        traced, reason = self.stats["traced"], self._scout.python_reason()
        python = f"traced ({traced})" if traced else f"as configured, though {reason}" if reason else self._scout.python
        return f"{self._engine.report()}  python: {python}\n"

    @property
    def predicted_seconds(self) -> float | None:
        """The predicted time of a replay of the plan that ran last, on this machine (see stepc.calibrate()); None
        before."""
        return self._engine.predicted_seconds()

    def memory(self) -> str:
        """Fast mode: where every byte of the step goes at its peak, as a table; empty before the step is planned."""
        return self._engine.memory_text()

    def save_memory(self, path: str | os.PathLike) -> None:
        """Fast mode: writes a picture (SVG) of the step's live bytes by instruction."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._engine.memory_svg())

    def profile(self, path: str | os.PathLike | None = None) -> Profile:
        """Times the instructions of a replayed call: `with step.profile("trace.json") as profile: step(batch)`."""
        return Profile(self._engine, path)

    def graph_text(self) -> str:
        """The step that was captured last, as text; empty before."""
        return self._engine.graph_text()

    def save_graph(self, path: str | os.PathLike) -> None:
        """Writes graph_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.graph_text())

    def schedule_text(self, target: str | os.PathLike | None = None) -> str:
        """The Schedule of the plan that ran last, as text: what runs, in which order and on which memory; empty before.

        With a `target`, the Schedule of that step on another machine: a card such as "h100", or the path of a Target
        file. Memory and predicted time follow it as comments.
        """
        if target is None:
            return self._engine.schedule_text()
        plan = self.plan_for(target)
        return "" if plan is None else plan.schedule_text()

    def plan_for(self, target: str | os.PathLike) -> _C.TargetPlan | None:
        """The step of the plan that ran last on another machine, named as for schedule_text(); None before.

        The result has `seconds` a step, `needed_bytes` (with the program's own tensors), report(), memory() and
        schedule_text().
        """
        return self._engine.plan_for(os.fspath(target))

    def save_schedule(self, path: str | os.PathLike) -> None:
        """Writes schedule_text() to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.schedule_text())


class _Rehearsed:
    """What shapes need of a step: its calls, and calls that are taken back."""

    def __init__(self, step):
        self._step = step
        self.call = step._call
        self.may_rehearse = step._engine.may_rehearse
        self.end_warm_up = step._engine.end_warm_up

    @property
    def stats(self):
        return self._step.stats

    def compile(self, args, kwargs):
        tensors, names, text = self._step._flat(args, kwargs)
        return self._step._engine.compile(tensors, names, text, self._eager(args, kwargs, tensors))

    def difference(self, one, other):
        parts = []
        for args, kwargs in (one, other):
            tensors = self._step._flat(args, kwargs)[0]
            parts += [tensors, self._eager(args, kwargs, tensors)]
        return self._step._engine.difference(*parts)

    def _eager(self, args, kwargs, tensors):
        return functools.partial(self._step._eager, args, kwargs, tensors, [])
