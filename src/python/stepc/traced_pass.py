"""The forward pass of a loop's model whose own code runs at every call.

The program gets the very object that the model returns. All tensors that the pass has made and that the program holds
at its end get their values from the plan. Those with a graph join the loop's graph at the node that stands for the
model.
"""

import functools
import gc
import weakref

import torch
from torch.autograd.graph import get_gradient_edge

from stepc import _C, passes, tree
from stepc.function_modes import Tracing
from stepc.recording import Recording


def forward(run, given):
    """What the model returns for the arguments `given`."""
    run.is_traced = True
    seen = []
    _, number = run.call.forward(functools.partial(_run, run, given, seen))
    box, leaves, why, has_left = seen
    if why and has_left:
        run.segments.engine.leave(run.call.signature(), why)
    elif why:
        run.call.leave_recording(why, False)
    if leaves and (run.inputs or not why):
        _hang(run, leaves, run.segments.nested.get(number, False))
    return _with_arguments(run, box)


def _run(run, given, seen):
    """Runs the model beside its plan, or recorded: the tensors that it leaves with the program, and a number for them."""
    scout, is_recorded, is_compared = run.segments.scout, _C.is_recording(), _C.is_tracing()
    if is_recorded:
        run.recording = Recording(scout, goes_on=True)
    elif is_compared:
        run.recording = Tracing(scout)
    begin = torch._C._autograd._get_sequence_nr()
    with run.recording:
        box = [run.segments.run(*(run.arguments(inside=True) if run.inner else given))]
    if is_recorded:
        gc.collect(1)
    held, number = _held(run, box)
    if number not in run.segments.nested and not is_recorded:
        del held
        gc.collect(1)  # garbage holds some of them, perhaps
        held, number = _held(run, box)
    # No gradient comes to a tensor without elements: checkpoint() has one, whose grad_fn keeps what it is to run again.
    leaves = [one for one in held if one.requires_grad and one.grad_fn is not None and one.numel() > 0]
    why, has_left = "", is_compared and not _C.is_tracing()
    if is_recorded:
        run.segments.nested[number] = passes.is_nested(leaves)
        why = run.reached_beside(leaves, begin) if leaves else passes.NOTHING
    elif has_left and leaves:
        why = run.reached_beside(leaves, begin)
    seen += [box, leaves, why, has_left]
    return held, number


def _held(run, box):
    """The tensors that the pass has made and that the program holds, and a number for what they are."""
    held = _C.held_tensors()
    if held is None:  # it runs as it is: another thread's pass has come between
        held, _ = run.parts_of(box)
    return held, run.segments.number_of(("traced", tuple(one.requires_grad for one in held)))


def _hang(run, leaves, is_nested):
    """Hangs what the pass leaves on the loop's graph, at the node that stands for the model."""
    run.outputs = [get_gradient_edge(one) for one in leaves]
    stands = passes.Boundary.apply(run, [one.detach() for one in leaves], [True] * len(leaves), *run.inputs, *run.parameters)
    for one, stand in zip(leaves, stands):
        _C.hang(one, stand)
        if is_nested:
            one.register_hook(passes.Asked(run))
            run.returned.append(weakref.ref(one))


def _with_arguments(run, box):
    """What the pass returned, with the loop's own arguments where that has what stood for them inside."""
    outer = {id(run.inner[id(one)]): one for one in run.tensors if id(one) in run.inner}
    if outer:
        tensors = []
        structure = tree.flatten_result(box, tensors)
        if any(id(one) in outer for one in tensors) and tree.opaque(structure) is None:
            return tree.unflatten(structure, iter([outer.get(id(one), one) for one in tensors]), iter(()))
    return box.pop()
