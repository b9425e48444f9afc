"""One pass of a loop's model: its forward pass, and the backward passes that belong to it.

In the loop's autograd graph one node stands for the model. Its inputs are the model's parameters and the arguments that
require a gradient, so that autograd handles their gradients as usual. If the loop asks for a backward pass that a plan
does not give (of a graph that is kept or differentiated again, of other outputs than before), the node runs the forward
pass again on the state that it had found, and uses the graph that eager makes. Such calls then run eagerly.
"""

import contextlib
import functools
import types
import weakref

import torch
from torch.autograd.graph import GradientEdge

from stepc import _C, traced_pass, tree
from stepc.kept import Made
from stepc.recording import Recording
from stepc.watch import bare


class Boundary(torch.autograd.Function):
    """Stands for the whole model in the loop's autograd graph."""

    @staticmethod
    def forward(ctx, run, outputs, differentiable, *sources):
        ctx.run = run
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(run.segments.saved)
        ctx.mark_non_differentiable(*(o for o, needed in zip(outputs, differentiable) if not needed))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        if ctx.run.is_over(gradients):
            ctx.saved_tensors  # autograd's own error: the graph was let go
        return (None, None, None, *ctx.run.backward(list(gradients)))


NOTHING = "nothing that the model returns requires a gradient"
_OF_THEIR_OWN = "its outputs have backward passes of their own"


def _asked_of_graph():
    """What a backward pass that runs now asks of the graph that a plan has not got, in words."""
    if torch.is_grad_enabled():
        return "its backward pass is differentiated again (create_graph)"
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return "its graph is kept after a backward pass (retain_graph)"
    return ""


def _asked_of_outputs(outputs):
    """What the program asks of the gradients of these outputs (weak references), in words."""
    for output in (one for ref in outputs if (one := ref()) is not None):
        hooks = (output._backward_hooks or {}).values()
        if output.retains_grad or any(not isinstance(hook, Asked) for hook in hooks):
            return "the gradient of an output that another is computed from is kept or hooked"
        if output.grad_fn is not None and _ends_at(output.grad_fn):
            return "the gradient of an output that another is computed from is asked for"
    return ""


def is_nested(outputs):
    """Whether one of these outputs is computed from another one."""
    ends = level = {output.grad_fn for output in outputs} - {None}
    known = set()
    while level and len(ends) > 1:
        known |= level
        reached = [to for node in level for to, _ in node.next_functions]
        if any(to in ends for to in reached):
            return True
        level = set(reached) - known - {None}
    return False


def _ends_at(node):
    """Whether the backward pass that runs now goes to this node of a graph and no further."""
    return _runs(node) and not any(_runs(to) for to, _ in node.next_functions if to is not None)


def _runs(node):
    """Whether the backward pass that runs now goes to this node."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient is asked for
        return True


def _requires_grad(output):
    return isinstance(output, GradientEdge) or output.requires_grad


def _given(gradients):
    return {i for i, gradient in enumerate(gradients) if gradient is not None}


class Asked:
    """A hook on an output that another one is computed from.

    The loop's graph has outputs side by side at one node, so that a gradient of one never goes through another: what is
    asked of it there for the first time cannot be had.
    """

    __torch_unserializable__ = True

    def __init__(self, run):
        self.run = weakref.ref(run)

    def __call__(self, _):
        if (run := self.run()) is not None:
            run.refuse_if_asked()


class Run:
    """One forward pass and the backward passes through it."""

    def __init__(self, segments, call, structure, tensors, inner):
        self.segments = segments
        self.call = call
        self.signature = b""  # of the call, once that is gone
        self.timed = None
        self.structure = structure  # of the arguments
        self.tensors = tensors
        self.inner = inner  # id of an argument that requires a gradient -> what stands for it inside
        self.inputs = list({id(tensor): tensor for tensor in tensors if id(tensor) in inner}.values())
        self.parameters = call.parameters()
        self.autocast = {
            "enabled": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        self.returned = []  # weakly, outputs as the loop has them, where one is computed from another
        self.outputs = None  # of a forward pass that ran as it is, from `inner`; of a traced one, edges of its graph
        self.graph = None  # the same, from the arguments themselves
        self.is_traced = False  # the model's own code has run beside its plan, or to become one that does
        self.recorded = None  # what a recorded forward pass returned, and why that is left to eager
        self.recording = contextlib.nullcontext()  # that the backward pass goes on with
        self.through = set()  # outputs that a backward pass has begun at
        self.is_left = False
        self.is_differentiated = False  # the graph of its gradients goes through its own
        self.is_run_again = False

    def arguments(self, inside):
        tensors = [self.inner.get(id(tensor), tensor) for tensor in self.tensors] if inside else self.tensors
        return tree.unflatten(self.structure, iter(tensors), iter(()))

    # ---- the forward pass

    def probe(self, *given):
        """Runs it as it is, on the very objects, and sees whether it may be recorded: what it does, and what is asked of
        its graph."""
        (result,), outputs, _, why = self._watched(given)
        if why is not None:
            self.call.leave_recording(*why)
            return result
        call, passes = self.call, {}  # by task of the autograd engine, the outputs' nodes that it has come to
        nested = [weakref.ref(output) for output in outputs if output.requires_grad] if is_nested(outputs) else []

        def see(node, _):
            now = torch._C._current_graph_task_id()
            passes.setdefault(now, set()).add(node)
            before = [nodes for task, nodes in passes.items() if task != now]
            asked = _asked_of_graph() or _asked_of_outputs(nested)
            if not asked and before and not any(node in nodes for nodes in before):
                asked = _OF_THEIR_OWN
            if asked:
                call.leave(asked)

        for number, node in enumerate({output.grad_fn for output in outputs} - {None}):
            node.register_prehook(functools.partial(see, number))
        return result

    def forward(self, given):
        if self.segments.engine.is_traced():
            return traced_pass.forward(self, given)
        del given
        outputs, number = self.call.forward(self._eager_forward)
        if self.recorded is not None and self.recorded[-1] is not None:
            return self._left()
        self.recorded = None
        structure, origins, differentiable, is_nested = self.segments.structures[number]
        outputs = Boundary.apply(self, outputs, differentiable, *self.inputs, *self.parameters)
        for output in outputs if is_nested else ():
            if output.requires_grad:
                output.register_hook(Asked(self))
                self.returned.append(weakref.ref(output))
        return tree.unflatten(structure, iter(self._with_known(outputs, origins)), iter(()))

    def parts_of(self, box):
        """Of what a pass returned, alone in a list: the tensors that it has made, each once, and the result's form, its
        structure and where all of its tensors come from: ("made", the number there), ("argument", which) or (the
        model's container, module, name)."""
        outputs, known = [], {}
        structure = tree.flatten_result(box, outputs)
        for i, one in enumerate(self.tensors):
            known[id(one)] = known[id(self.inner.get(id(one), one))] = ("argument", i)
        for path, module in self.segments.model.named_modules():
            for container in ("_parameters", "_buffers"):
                for name, one in module.__dict__[container].items():
                    known.setdefault(id(one), (container, path, name))
        made, origins = [], []
        for output in outputs:
            if id(output) not in known:
                known[id(output)] = ("made", len(made))
                made.append(output)
            origins.append(known[id(output)])
        return made, (structure, tuple(origins))

    def _with_known(self, made, origins):
        """All tensors of a result: what stands there now, where the pass returns what was there before."""
        for origin in origins:
            if origin[0] == "made":
                yield made[origin[1]]
            elif origin[0] == "argument":
                yield self.tensors[origin[1]]
            else:
                container, path, name = origin
                yield self.segments.model.get_submodule(path).__dict__[container][name]

    def _left(self):
        (result,), _, _, why = self.recorded
        if self.inputs:
            result = self._run_again(inside=False)
        self.call.leave_recording(*why)
        return result

    def _eager_forward(self):
        arguments = self.arguments(inside=True)
        if _C.is_recording():
            self.recorded = self._watched(arguments)
            _, self.outputs, form, _ = self.recorded
        else:
            self.outputs, form = self.parts_of([self.segments.run(*arguments)])
        differentiable = tuple(output.requires_grad for output in self.outputs)
        number = -1
        if tree.opaque(form[0]) is None:
            number = self.segments.number_of((*form, differentiable, is_nested(self.outputs)))
        return [output.detach() for output in self.outputs], number

    def _watched(self, arguments):
        """What the model returns (in a list), its parts, and why a plan could not give the program the same, with whether
        it could beside the model's own code; None where it could."""
        scout = self.segments.scout
        recording = Recording(scout, goes_on=_C.is_recording())
        if recording.goes_on:
            self.recording = recording
        is_traced = self.segments.engine.is_traced()
        made = contextlib.nullcontext() if is_traced else Made(self.segments.model)
        with made, recording:
            begin = torch._C._autograd._get_sequence_nr()
            box = [self.segments.run(*arguments)]
            known = recording.known_container(box)
        outputs, form = self.parts_of(box)
        opaque = tree.opaque(form[0])
        of_python = None if is_traced else self._why_traced(opaque, made, known, outputs)
        if of_python is not None:
            why = of_python, True
        elif opaque is None and not any(output.requires_grad for output in outputs):
            why = NOTHING, False
        elif reached := self.reached_beside(outputs, begin):
            why = reached, False
        elif not is_traced and not _C.is_recording() and scout.python_reason():
            why = scout.python_reason(), True  # of a recording the engine asks
        else:
            why = None
        return box, outputs, form, why

    def _why_traced(self, opaque, made, known, outputs):
        """What of the pass only the model's own code can do again, in words; None: nothing."""
        if opaque is not None:
            return f"the model returns {opaque}, which is neither a tensor nor a nest of them"
        if made.place is not None:
            return f"the forward pass keeps a tensor that it makes, in {made.place}"
        if known:
            return f"the model returns {known}, which was there before"
        if of := self._shared(outputs):
            return f"the model returns a view of {of}"
        return self.segments.scout.hooked or None

    def _shared(self, outputs):
        """What was there before the pass and has the memory of something that it has made, in words."""
        memory = {one.untyped_storage()._cdata for one in outputs if one.layout == torch.strided}
        model = self.segments.model
        named = [*model.named_parameters(), *model.named_buffers(), *(("an argument", one) for one in self.tensors)]
        for name, one in named:
            if one.layout == torch.strided and one.untyped_storage()._cdata in memory:
                return name if name == "an argument" else f"'{name}'"
        return ""

    def reached_beside(self, outputs, begin):
        """What the graph of the outputs leads to beside parameters and arguments, in words.

        The loop's graph has one node for the pass, whose sources those are: a graph that was there before would be gone
        through twice where the loop goes through it too, and never by a plan.
        """
        sources = {id(one) for one in (*self.segments.model.parameters(), *self.inputs, *self.inner.values())}
        known = {tensor.grad_fn for tensor in self.inputs}
        level = {output.grad_fn for output in outputs} - known - {None}
        leaves = []
        while level:
            known |= level
            for node in level:
                if isinstance(node, torch._C._functions.AccumulateGrad):
                    leaves += [node.variable] if id(node.variable) not in sources else []
                elif node._sequence_nr() < begin:
                    return "the forward pass uses a tensor whose graph was there before"
            level = {to for node in level for to, _ in node.next_functions} - known - {None}
        # What the pass alone has had in hand (checkpoint's placeholder) is nobody's.
        if any(holder is not leaves and not isinstance(holder, types.FrameType) for holder in bare.referrers_of(leaves)):
            return "the forward pass uses a tensor that requires a gradient and is no parameter or argument"
        return None

    # ---- the backward pass

    def is_over(self, gradients):
        """Whether no backward pass is left of it. Raises where a plan has had one and this one begins elsewhere; the next
        ones run as they are."""
        if self.call is not None:
            return False
        if self.through.isdisjoint(_given(gradients)):
            self.segments.engine.leave(self.signature, _OF_THEIR_OWN)
            raise _C.UserError(f"{_OF_THEIR_OWN}, as they had not before: a replayed pass has one for all of them. "
                               "The model runs eagerly from here on; where that is so from its first pass on, so is this one")
        return True

    def backward(self, gradients):
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        self.through |= _given(gradients)
        if not self.is_left:
            self.refuse_if_asked()
            why = _asked_of_graph() or self.call.why_not_backward(gradients)
            self.is_left = bool(why)
            if self.is_left:
                self.call.leave(why)
        if self.is_left:
            found = self._backward_of_graph(gradients, keeps)
        else:
            if self.timed is not None:
                self.timed.came_back = True
            found = self.call.backward(gradients, self._backward_inside)
        if self._is_last(keeps):
            self._release()
        return found

    def _is_last(self, keeps):
        """Whether no backward pass may follow: the graph is let go, and if a pass as it is has left it, no other outputs of
        it remain to begin at."""
        outputs = (self.outputs if self.graph is None else self.graph) if self.is_left else None
        remain = any(i not in self.through and _requires_grad(output) for i, output in enumerate(outputs or ()))
        return not keeps and not remain

    def refuse_if_asked(self):
        """Raises where the program asks for a gradient that this pass has not got; the next ones run as they are."""
        if asked := _asked_of_outputs(self.returned):
            self.call.leave(asked)
            raise _C.UserError(f"{asked}, as it was not before: a replayed pass has it without what comes through the other. "
                               "Ask from the first pass on; the model runs eagerly then, as it does from here on")

    def _backward_inside(self, gradients, keeps=False):
        outputs = self.outputs
        if self._is_last(keeps):
            self.outputs = None
        pairs = [(o, g) for o, g in zip(outputs, gradients) if g is not None and _requires_grad(o)]
        if pairs:
            with self.recording:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs], retain_graph=keeps)
        self.recording = contextlib.nullcontext()
        insides = [self.inner[id(tensor)] for tensor in self.inputs]
        found = [inside.grad for inside in insides]
        for inside in insides:
            inside.grad = None
        return found

    def _backward_of_graph(self, gradients, keeps):
        """As eager: of the graph that its forward pass has left, or that another one leaves."""
        again = torch.is_grad_enabled()
        if again and self.is_traced and self.inputs:
            raise _C.UserError("its backward pass is differentiated again (create_graph), as it was not before: its own code would "
                               "run twice for that. Ask from the first pass on; the model runs eagerly then, as it does from here on")
        if self.is_differentiated and self.is_run_again:
            self.outputs = self.graph = None  # younger than the node, and so perhaps let go of already
        self.is_differentiated |= again
        keeps |= self.is_differentiated
        if again and self.inputs and self.graph is None:
            self._run_again(inside=False)
        elif self.graph is None and self.outputs is None:
            self._run_again(inside=True)
        if not again and self.graph is None:
            return self.call.eager_backward(gradients, functools.partial(self._backward_inside, keeps=keeps))
        outputs = self.outputs if self.graph is None else self.graph
        pairs = [(o, g) for o, g in zip(outputs, gradients) if g is not None and _requires_grad(o)]
        if not pairs:
            return [None] * (len(self.inputs) + len(self.parameters))
        return list(
            torch.autograd.grad(
                [o for o, _ in pairs],
                self.inputs + self.parameters,
                [g for _, g in pairs],
                retain_graph=keeps,
                create_graph=again,
                allow_unused=True,
            )
        )

    def _run_again(self, inside):
        """Runs the forward pass as it is, from the same state of generators and buffers, and leaves its graph."""
        results = []
        self.is_run_again = True

        def run():
            with torch.enable_grad(), torch.autocast("cpu", **self.autocast):
                results.append(self.segments.run(*self.arguments(inside)))

        self.call.run_as_before(run)
        outputs, _ = self.parts_of(results)
        for index, output in enumerate(outputs):
            if self.call.is_changed(index):  # autograd then says so where the backward pass needs it
                torch.autograd.graph.increment_version(output.detach())
        if inside:
            self.outputs = outputs
        else:
            self.graph = outputs
        return results[0]

    def _release(self):
        self.signature = self.call.signature()
        self.call = self.tensors = self.inner = self.inputs = self.parameters = self.outputs = self.graph = None
