"""The door for an unchanged loop: the model's forward and backward passes and the optimizer's update each run from a
plan, everything between them runs as written (stepc/passes.py)."""

import contextlib
import functools
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
from stepc.backoff import Backoff
from stepc.passes import Run
from stepc.watch.known import HOOKS
from stepc.scout import Scout

_LOG = logging.getLogger("stepc")
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "stepc")  # whose hooks have no effects but on tensors
_MOST_TEXTS = 64  # of arguments; texts beside tensors may be others at every call


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
        self.nested = {}  # by the number of a traced pass's: whether one of these is computed from another
        self.numbers = {}
        self.replaced = _weak(model.__dict__.get("forward"))  # by a library, as it was seen last
        self.replacements = 0
        self.saved = torch.zeros(())
        self.is_called = False
        self.backoff = Backoff()
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
        if not self.backoff.is_due():
            self.engine.ran_eagerly()
            return self.run(args, kwargs)
        began = time.perf_counter()
        if self.timed is not None:
            self._tell(began)
        if self.in_a_row is not None and self._goes_on(args, kwargs):
            self.engine.ran_eagerly()
            return self._run_timed(args, kwargs)
        run = self._planned(args, kwargs)
        self.backoff.note(run is None)
        if run is None:
            return self.run(args, kwargs)
        if run.call.compared():
            self.in_a_row = _InARow(run.call, _looks_of(run.structure, run.tensors))
            return self._run_timed(args, kwargs)
        given = args, kwargs
        del args, kwargs
        if run.call.is_first():
            return run.probe(*given)
        result = run.forward(given)
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
        return Run(self, call, structure, tensors, inner)

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
