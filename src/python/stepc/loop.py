"""The door for a loop that stays as it is: the model's forward and backward passes and the optimizer's update each run
from a plan, everything between them as written.

In the loop's autograd graph one node stands for the model, with its parameters and those arguments that require a
gradient as inputs, so that autograd does with their gradients what it is asked for. Where a backward pass is asked for
that a plan does not give (of a graph that is kept or differentiated again, of other outputs than before), the node goes
through the graph that eager would have made, by running the forward pass again on what it found; from then on such
calls run as they are.
"""

import contextlib
import functools
import gc
import hashlib
import logging
import os
import time
import types
import weakref

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch.optim.optimizer import _global_optimizer_pre_hooks

from stepc import _C, around, tree
from stepc.accelerated import Accelerated
from stepc.asking import Asking
from stepc.kept import Made
from stepc.watch.known import HOOKS
from stepc.recording import Recording
from stepc.scout import Scout

_LOG = logging.getLogger("stepc")
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "stepc")  # whose hooks have no effects but on tensors


class _Boundary(torch.autograd.Function):
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


_MOST_TEXTS = 64  # of arguments; texts beside tensors may be others at every call
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
        if output.retains_grad or any(not isinstance(hook, _Asked) for hook in hooks):
            return "the gradient of an output that another is computed from is kept or hooked"
        if output.grad_fn is not None and _ends_at(output.grad_fn):
            return "the gradient of an output that another is computed from is asked for"
    return ""


def _is_nested(outputs):
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


def _given(gradients):
    return {i for i, gradient in enumerate(gradients) if gradient is not None}


class _Asked:
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


class _Timed:
    """A pass, from whose call to the next one the loop is timed."""

    def __init__(self, signature, as_it_is, began):
        self.signature = signature
        self.as_it_is = as_it_is
        self.began = began
        self.came_back = False  # a backward pass has begun

    def see(self, _):
        self.came_back = True


class _InARow:
    """Passes that run as they are one after the other, as they would without plans, for replays to be compared with."""

    def __init__(self, call, looks):
        self.signature = call.signature()
        self.looks = looks  # of their arguments
        self.left = call.compared()


class _Run:
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
        self.outputs = None  # of a forward pass that ran as it is, from `inner`
        self.graph = None  # the same, from the arguments themselves
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
            self.call.leave_recording(why)
            return result
        call, passes = self.call, {}  # by task of the autograd engine, the outputs' nodes that it has come to
        nested = [weakref.ref(output) for output in outputs if output.requires_grad] if _is_nested(outputs) else []

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

    def forward(self):
        outputs, number = self.call.forward(self._eager_forward)
        if self.recorded is not None and self.recorded[-1] is not None:
            return self._left()
        self.recorded = None
        structure, origins, differentiable, is_nested = self.segments.structures[number]
        outputs = _Boundary.apply(self, outputs, differentiable, *self.inputs, *self.parameters)
        for output in outputs if is_nested else ():
            if output.requires_grad:
                output.register_hook(_Asked(self))
                self.returned.append(weakref.ref(output))
        return tree.unflatten(structure, iter(self._with_known(outputs, origins)), iter(()))

    def _parts(self, box):
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
        self.call.leave_recording(why)
        return result

    def _eager_forward(self):
        arguments = self.arguments(inside=True)
        if _C.is_recording():
            self.recorded = self._watched(arguments)
            _, self.outputs, form, _ = self.recorded
        else:
            self.outputs, form = self._parts([self.segments.run(*arguments)])
        differentiable = tuple(output.requires_grad for output in self.outputs)
        number = -1
        if tree.opaque(form[0]) is None:
            number = self.segments.number_of((*form, differentiable, _is_nested(self.outputs)))
        return [output.detach() for output in self.outputs], number

    def _watched(self, arguments):
        """What the model returns (in a list), its parts, and why a plan could not give the program the same; None where
        it could."""
        recording = Recording(self.segments.scout, goes_on=_C.is_recording())
        if recording.goes_on:
            self.recording = recording
        with Made(self.segments.model) as made, recording:
            begin = torch._C._autograd._get_sequence_nr()
            box = [self.segments.run(*arguments)]
            known = recording.known_container(box)
        why = None
        outputs, form = self._parts(box)
        opaque = tree.opaque(form[0])
        if opaque is not None:
            why = f"the model returns {opaque}, which is neither a tensor nor a nest of them"
        elif made.place is not None:
            why = f"the forward pass keeps a tensor that it makes, in {made.place}"
        elif known:
            why = f"the model returns {known}, which was there before"
        elif not any(output.requires_grad for output in outputs):
            why = "nothing that the model returns requires a gradient"
        elif of := self._shared(outputs):
            why = f"the model returns a view of {of}"
        elif reached := self._reached_beside(outputs, begin):
            why = reached
        elif not _C.is_recording() and self.segments.scout.python_reason():
            why = self.segments.scout.python_reason()  # of a recording the engine asks
        return box, outputs, form, why

    def _shared(self, outputs):
        """What was there before the pass and has the memory of something that it has made, in words."""
        memory = {one.untyped_storage()._cdata for one in outputs if one.layout == torch.strided}
        model = self.segments.model
        named = [*model.named_parameters(), *model.named_buffers(), *(("an argument", one) for one in self.tensors)]
        for name, one in named:
            if one.layout == torch.strided and one.untyped_storage()._cdata in memory:
                return name if name == "an argument" else f"'{name}'"
        return ""

    def _reached_beside(self, outputs, begin):
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
        holders = gc.get_referrers(*leaves) if leaves else []
        if any(holder is not leaves and not isinstance(holder, types.FrameType) for holder in holders):
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
        remain = any(i not in self.through and output.requires_grad for i, output in enumerate(outputs or ()))
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
        pairs = [(o, g) for o, g in zip(outputs, gradients) if g is not None and o.requires_grad]
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
        pairs = [(o, g) for o, g in zip(outputs, gradients) if g is not None and o.requires_grad]
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
        outputs, _ = self._parts(results)
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


class ModelSegments:
    """What calls of an accelerated model go to. Decides for each whether its passes run from a plan.

    It stands where Module.compile() puts a compiled call, which no copy of the module takes along: that is a model of
    its own, as it was before.
    """

    def __init__(self, model, config, gradients):
        self.model = model
        self.gradients = gradients  # that ranks have together; None: this process is alone
        self.scout = _ModelScout(model.forward, {"model": model}, {}, config.python == "pure")
        self.engine = _C.Segments(self.scout, config)
        self.precision = config.precision
        self.structures = []  # of results, and which of their tensors carry gradients
        self.numbers = {}
        self.replaced = _weak(model.__dict__.get("forward"))  # by a library, as it was seen last
        self.replacements = 0
        self.saved = torch.zeros(())
        self.is_called = False
        self.asking = Asking()
        self.timed = None  # the call before, where that counts
        self.in_a_row = None
        self.texts = {}  # of arguments, by their structure's repr

    def __deepcopy__(self, memo):
        return None

    def __reduce__(self):
        return type(None), ()

    def number_of(self, structure):
        number = self.numbers.get(structure)
        if number is None:
            number = self.numbers[structure] = len(self.structures)
            self.structures.append(structure)
        return number

    def run(self, args, kwargs):
        """A training pass of the model as it is."""
        if self.precision is None:
            return self.model._call_impl(*args, **kwargs)
        with torch.autocast("cpu", torch.bfloat16):
            return self.model._call_impl(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self.model._call_impl(*args, **kwargs)
        if self.gradients is None:
            return self._call(args, kwargs)
        self.gradients.before_forward()
        result = self._call(args, kwargs)
        self.gradients.after_forward(result)
        return result

    def _call(self, args, kwargs):
        self.is_called = True
        if _C.is_recording():
            return self.run(args, kwargs)
        if not self.asking.is_due():
            self.engine.ran_eagerly()
            return self.run(args, kwargs)
        began = time.perf_counter()
        if self.timed is not None:
            self._tell(began)
        if self.in_a_row is not None and self._goes_on(args, kwargs):
            self.engine.ran_eagerly()
            return self._run_timed(args, kwargs)
        run = self._planned(args, kwargs)
        self.asking.note(run is None)
        if run is None:
            return self.run(args, kwargs)
        if run.call.compared():
            self.in_a_row = _InARow(run.call, _looks_of(run.structure, run.tensors))
            return self._run_timed(args, kwargs)
        given = args, kwargs
        del args, kwargs
        if run.call.is_first():
            return run.probe(*given)
        result = run.forward()
        if run.call.is_timed():
            self.timed = run.timed = _Timed(run.call.signature(), False, began)
        return result

    def _goes_on(self, args, kwargs):
        """Whether this is another one of the passes in a row."""
        row, tensors = self.in_a_row, []
        return _looks_of(tree.flatten((args, kwargs), tensors, []), tensors) == row.looks

    def _run_timed(self, args, kwargs):
        row = self.in_a_row
        row.left -= 1
        if row.left == 0:
            self.in_a_row = None
        timed = _Timed(row.signature, True, time.perf_counter())
        result = self.run(args, kwargs)
        ended = time.perf_counter()
        outputs = []
        tree.flatten_result([result], outputs)
        for node in {output.grad_fn for output in outputs} - {None}:
            node.register_prehook(timed.see)
        timed.began += time.perf_counter() - ended  # this is not the loop's
        self.timed = timed
        return result

    def _tell(self, now):
        timed, self.timed = self.timed, None
        if timed.came_back:
            self.engine.took(timed.signature, timed.as_it_is, now - timed.began)

    def _planned(self, args, kwargs):
        """The pass, or None where the model runs as it is."""
        forward = self.model.__dict__.get("forward")
        if forward is not self.replaced():
            self.replaced = _weak(forward)
            self.replacements += 1
            if self.replacements > 1:
                self.engine.run_eagerly("its forward is replaced again and again")
            return None
        tensors, names = [], []
        structure = tree.flatten((args, kwargs), tensors, names)
        why = self._why_eager(structure, tensors)
        if why:
            self.engine.run_eagerly(why)
            return None
        inner = {id(tensor): tensor.detach().requires_grad_() for tensor in tensors if tensor.requires_grad}
        insides = [inner.get(id(tensor), tensor) for tensor in tensors]
        call = self.engine.begin(insides, names, self._text_of(structure))
        if call is None:
            return None
        if self.scout.hooked:  # known by now
            self.engine.run_eagerly(self.scout.hooked)
            return None
        return _Run(self, call, structure, tensors, inner)

    def _text_of(self, structure):
        """Of arguments, for their signature: for a reader, and exact."""
        exact = repr(structure)
        text = self.texts.get(exact)
        if text is None:
            if len(self.texts) == _MOST_TEXTS:
                self.texts.clear()
            text = f"{tree.describe(structure)} #{hashlib.sha256(exact.encode()).hexdigest()[:16]}"
            self.texts[exact] = text
        return text

    def _why_eager(self, structure, tensors):
        """What of the program around the call a plan would not do, in words."""
        if why := around.why_eager():
            return why
        if _has_any_global_hook():
            return "hooks of all modules are set"
        opaque = tree.opaque(structure)
        if opaque is not None:
            return f"it is given {opaque}: a plan knows tensors, numbers, texts and nests of them"
        kinds = {type(tensor) for tensor in tensors} - {torch.Tensor, torch.nn.Parameter}
        if kinds:
            return f"it is given a {min(kind.__name__ for kind in kinds)}"
        return ""


def _weak(forward):
    return (lambda: None) if forward is None else weakref.ref(forward)


def _looks_of(structure, tensors):
    return repr(structure), [(one.shape, one.dtype, one.requires_grad) for one in tensors]


class _ModelScout(Scout):
    """Of a model: sees hooks too, whose effects no recording shows."""

    def look(self):
        found = super().look()
        self.hooked = ""
        for path, module in self.model.named_modules():
            for name in HOOKS:
                for hook in module.__dict__[name].values():
                    library = (getattr(hook, "__module__", None) or type(hook).__module__).split(".")[0]
                    if library not in _LIBRARIES:
                        self.hooked = f"'{path or 'the model'}' has hooks ({name.strip('_')})"
        return found

    def python_reason(self):
        return self.reason  # what changes from step to step is another plan each time, as no Python runs beside any

    @property
    def model(self):
        return self.modules["model"]


class _OptimizerScout(Scout):
    """Of an optimizer whose step() is ours: the event is what step() was before."""

    def __init__(self, optimizer, original, is_pure):
        self.original = original
        super().__init__(original, {}, {"optimizer": optimizer}, is_pure)

    def call(self, one):
        self.original()

    def step_beneath(self, one):
        return self.original


def is_compiled(model):
    return isinstance(model, torch.jit.ScriptModule) or model.__dict__.get("_compiled_call_impl") is not None


def accelerate_model(model, config, gradients=None):
    """Calls of the model run from plans from now on; on ranks they average its gradients."""
    if is_compiled(model):
        _LOG.warning("this model runs as it is: it is compiled or scripted")
        return
    model.__dict__["_compiled_call_impl"] = ModelSegments(model, config, gradients)


def accelerate_optimizer(optimizer, config, model, updates=None):
    """The optimizer's step() runs from a plan from now on; with `updates` each rank's updates some parameters."""
    optimizer = _innermost(optimizer)
    takes_closure_first = _takes_closure_first(optimizer)
    original = optimizer.step
    said = set()

    def say(text):
        if text not in said:
            said.add(text)
            _LOG.warning(text)

    update = Accelerated(lambda: original(), _OptimizerScout(optimizer, original, config.python == "pure"), config)

    def tell_if_unused():
        segments = model.__dict__.get("_compiled_call_impl")
        if isinstance(segments, ModelSegments) and not segments.is_called:
            say(
                "the accelerated model has made no training pass that its optimizer's step() follows: methods and parts "
                "of it that are called instead of the model run as they are"
            )

    around_update = contextlib.nullcontext if updates is None else updates.shared

    @functools.wraps(original.__func__ if isinstance(original, types.MethodType) else original)
    def step(self, closure=None):
        if closure is None:
            tell_if_unused()
            with around_update():
                return original() if _C.is_recording() else update()
        if _C.is_recording():
            return original(closure)
        if not takes_closure_first or optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks:
            say(
                f"this {type(optimizer).__name__}'s step(closure) runs as it is, since it may call the closure later or "
                "again; the model's passes inside are replayed"
            )
            return original(closure)
        with torch.enable_grad():
            loss = closure()
        tell_if_unused()
        with around_update():
            update()
        return loss

    optimizer.__dict__["step"] = types.MethodType(step, optimizer)
    optimizer.__dict__[_UPDATE] = update


def _takes_closure_first(optimizer):
    """Whether step(closure) is closure() and then step(): so it is in torch's own, but in LBFGS."""
    kind = type(optimizer)
    is_own = kind.__module__.startswith("torch.optim") and not issubclass(kind, torch.optim.LBFGS)
    step = optimizer.__dict__.get("step")
    return is_own and (step is None or getattr(step, "_wrapped_by_lr_sched", False))


_UPDATE = "_stepc_update"  # of an accelerated optimizer; its state, which copies are made of, does not have it


def _innermost(optimizer):
    """Without the wrappers of accelerate and its like."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def is_accelerated(one):
    return _engine_behind(one) is not None


def _engine_behind(one):
    if isinstance(one, torch.nn.Module):
        segments = one.__dict__.get("_compiled_call_impl")
        return segments.engine if isinstance(segments, ModelSegments) else None
    if isinstance(one, torch.optim.Optimizer):
        update = _innermost(one).__dict__.get(_UPDATE)
        return update._engine if update is not None else None
    return None


def _engine_of(one):
    engine = _engine_behind(one)
    if engine is None:
        raise _C.UserError(
            f"this {type(one).__name__} is no model or optimizer that accelerate(model, optimizer) returned; what "
            "accelerate(step) returned has stats, report() and so on itself"
        )
    return engine


def stats(one):
    """Of an accelerated model or optimizer: what was measured so far, a dict."""
    return _engine_of(one).stats()


def report(one):
    """Of an accelerated model or optimizer: planned beside measured, in words."""
    return _engine_of(one).report()


def graph_text(one):
    """Of an accelerated model or optimizer: what was captured last, as text; empty before."""
    return _engine_of(one).graph_text()


def schedule_text(one, target=None):
    """Of an accelerated model or optimizer: the Schedule of the plan that ran last, as text; empty before.

    With a `target`, as Accelerated.schedule_text() has it.
    """
    engine = _engine_of(one)
    if target is None:
        return engine.schedule_text()
    if not hasattr(engine, "plan_for"):
        raise _C.UserError(
            "a plan for another machine is of a whole step: accelerate the step, or the optimizer too, not the model alone"
        )
    plan = engine.plan_for(os.fspath(target))
    return "" if plan is None else plan.schedule_text()
