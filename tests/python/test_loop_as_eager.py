"""Loops that ask more of an accelerated model than one backward pass: each is eager's, and says where it leaves it to eager.

A case builds its model and takes steps, each of which returns what it saw; it runs once as it is and once accelerated.
"""

import contextlib
import copy
import gc
import io
import logging
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call

import stepc
from harness import assert_same, leaves, source_of

STEPS = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


class Case:
    """A model, an optimizer, and a step over them. `replays`: whether plans run, or what the one warning says."""

    model_type = Net
    replays = True
    is_rounded = False  # up to rounding in exact mode too
    learning_rate = 0.05

    def __init__(self, config=None):
        torch.manual_seed(0)
        self.model = self.build()
        self.before_accelerating()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.learning_rate, momentum=0.9)
        if config is not None:
            self.model, self.optimizer = stepc.accelerate(self.model, self.optimizer, config=config)
        self.prepare()
        self.generator = torch.get_rng_state()

    def build(self):
        return self.model_type()

    def before_accelerating(self):
        pass

    def prepare(self):
        pass

    def take(self, i):
        torch.set_rng_state(self.generator)
        seen = self.step(i)
        self.generator = torch.get_rng_state()
        tensors = {name: value.detach() for name, value in self.model.state_dict().items()}
        gradients = {name: value.grad for name, value in self.model.named_parameters()}
        return seen, copy.deepcopy([tensors, gradients, self.generator])

    def x(self, i, rows=8):
        return torch.randn(rows, 6, generator=source_of(i))

    def y(self, i, rows=8):
        return torch.randn(rows, 4, generator=source_of(100 + i))

    def loss(self, output, i):
        return (output - self.y(i)).square().mean()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, i):
        raise NotImplementedError


CASES = []


def case(kind):
    CASES.append(kind)
    return kind


# ---- what a backward pass is asked for


@case
class GradientOfInput(Case):
    """No parameter's gradient is touched."""

    def step(self, i):
        x = self.x(i).requires_grad_()
        (found,) = torch.autograd.grad(self.loss(self.model(x), i), x)
        return found


@case
class BackwardToInputs(Case):
    def step(self, i):
        x = self.x(i).requires_grad_()
        self.loss(self.model(x), i).backward(inputs=[x])
        return x.grad


@case
class BackwardToOneParameter(Case):
    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        loss.backward(inputs=[self.model.second.weight])
        return loss.detach()


@case
class GradientsOfParameters(Case):
    """An update by hand."""

    def step(self, i):
        parameters = list(self.model.parameters())
        found = torch.autograd.grad(self.loss(self.model(self.x(i)), i), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found):
                parameter -= 0.1 * gradient
        return found


@case
class AllowUnused(Case):
    def step(self, i):
        unused = torch.zeros(3, requires_grad=True)
        loss = self.loss(self.model(self.x(i)), i)
        return torch.autograd.grad(loss, [self.model.second.bias, unused], allow_unused=True)


class UnusedParameter(Net):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


@case
class AllowUnusedParameter(Case):
    model_type = UnusedParameter

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        found = torch.autograd.grad(loss, list(self.model.parameters()), allow_unused=True, retain_graph=False)
        assert found[0] is None
        return found


@case
class GradientPenalty(Case):
    replays = "create_graph"

    def step(self, i):
        x = self.x(i).requires_grad_()
        loss = self.loss(self.model(x), i)
        (found,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + found.square().sum()).backward()
        self.update()
        return loss.detach(), found.detach(), x.grad


@case
class PenaltyOfParameters(Case):
    """A Hessian-vector product: double backward without an input that requires a gradient."""

    replays = "create_graph"

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        found = torch.autograd.grad(loss, list(self.model.parameters()), create_graph=True)
        (loss + 1e-3 * sum(gradient.square().sum() for gradient in found)).backward()
        self.update()
        return loss.detach()


@case
class BackwardTwice(Case):
    replays = "create_graph"

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        loss.backward(create_graph=True)
        norm = sum(parameter.grad.square().sum() for parameter in self.model.parameters())
        found = torch.autograd.grad(norm, self.model.first.weight)
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.detach()
        self.update()
        return found


@case
class Critic(Case):
    """A WGAN-GP critic: three passes, one of them differentiated twice, and one backward pass."""

    replays = None
    learning_rate = 0.005  # a larger one lets the critic grow without end, and the last bit with it
    model_type = staticmethod(lambda: nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))

    def step(self, i):
        real, fake = self.x(i), self.x(i + 50)
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        (found,) = torch.autograd.grad(self.model(mixed).sum(), mixed, create_graph=True)
        penalty = (found.norm(dim=1) - 1).square().mean()
        loss = self.model(fake).mean() - self.model(real).mean() + 10 * penalty
        loss.backward()
        self.update()
        return loss.detach()


@case
class SeveralLosses(Case):
    replays = "retain_graph"

    def step(self, i):
        output = self.model(self.x(i))
        self.loss(output, i).backward(retain_graph=True)
        first = self.model.first.weight.grad.clone()
        output.abs().mean().backward()
        self.update()
        return first


@case
class KeptForNothing(Case):
    replays = "retain_graph"

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward(retain_graph=True)
        self.update()


@case
class SecondBackwardWithoutGraph(Case):
    def step(self, i):
        output = self.model(self.x(i))
        loss = self.loss(output, i)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.sum().backward()
        self.update()
        return loss.detach()


@case
class ThroughTheModelTwice(Case):
    """Each pass's output is the next one's argument."""

    replays = None
    model_type = staticmethod(lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6)))

    def step(self, i):
        output = self.model(self.model(self.x(i)))
        output.square().mean().backward()
        self.update()
        return output.detach()


@case
class PenaltyOutsideOfTheModel(Case):
    """Parameters used beside the model, with gradients that accumulate."""

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        loss = loss + 1e-2 * sum(parameter.square().sum() for parameter in self.model.parameters())
        loss.backward()
        if i % 2:
            self.update()
        return loss.detach()


@case
class HooksOnParameters(Case):
    replays = "hooks on its gradient"

    def prepare(self):
        self.seen = []
        self.model.first.weight.register_hook(lambda gradient: self.seen.append(gradient.norm().item()))
        self.model.second.weight.register_post_accumulate_grad_hook(lambda p: self.seen.append(p.grad.norm().item()))

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return list(self.seen)


# ---- what a forward pass leaves


class Auxiliary(Net):
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.aux_loss = hidden.abs().mean()
        return self.second(hidden)


@case
class AuxiliaryLoss(Case):
    model_type = Auxiliary

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i) + 0.1 * self.model.aux_loss
        loss.backward()
        self.update()
        return loss.detach()


@case
class AuxiliaryLossOfInput(AuxiliaryLoss):
    def step(self, i):
        x = self.x(i).requires_grad_()
        loss = self.loss(self.model(x * 2), i) + 0.1 * self.model.aux_loss
        loss.backward()
        self.update()
        return loss.detach(), x.grad


class Remembering(Net):
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.last = hidden.detach()
        return self.second(hidden)


@case
class DetachedFeature(Case):
    model_type = Remembering

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return self.model.last.clone()


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 4)
        self.hidden = None

    def forward(self, x):
        hidden = torch.zeros(len(x), 4) if self.hidden is None else self.hidden.detach()
        self.hidden = self.cell(x, hidden)
        return self.hidden


@case
class HiddenState(Case):
    model_type = Stateful

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        loss.backward()
        self.update()
        return loss.detach(), self.model.hidden.detach()


class Reassigning(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.second(hidden - self.mean)


@case
class BufferReassigned(Case):
    model_type = Reassigning

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return self.model.mean.clone()


KEPT = {}


class IntoAGlobal(Net):
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        KEPT.setdefault(id(self), []).append(hidden)
        return self.second(hidden)


@case
class FeatureInAGlobal(Case):
    """Attached, and not the module's at all."""

    model_type = IntoAGlobal

    def step(self, i):
        kept = KEPT.setdefault(id(self.model), [])
        kept.clear()
        loss = self.loss(self.model(self.x(i)), i) + kept[0].square().mean()
        loss.backward()
        self.update()
        return loss.detach()


@case
class FeaturesOfHooks(Case):
    def prepare(self):
        self.features = []
        self.model.first.register_forward_hook(lambda module, args, output: self.features.append(output))
        self.model.norm.register_forward_hook(lambda module, args, output: self.features.append(output.detach()))

    def step(self, i):
        self.features.clear()
        loss = self.loss(self.model(self.x(i)), i) + 0.1 * self.features[0].square().mean()
        loss.backward()
        self.update()
        return loss.detach(), [feature.detach() for feature in self.features]


@case
class HooksOfBackward(Case):
    def prepare(self):
        self.seen = []
        self.model.first.register_full_backward_hook(lambda module, ins, outs: self.seen.append(outs[0].norm()))

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return list(self.seen)


class CachedOnce(Net):
    """Makes a table in its first pass, as rotary embeddings do."""

    def forward(self, x):
        if "table" not in self.__dict__:
            self.table = torch.linspace(0, 1, 16)
        return self.second(torch.relu(self.first(x)) * self.table)


@case
class TableMadeOnce(Case):
    model_type = CachedOnce

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()


class Holder:
    def __init__(self, logits):
        self.logits = logits


class ReturnsObject(Net):
    def forward(self, x):
        return Holder(super().forward(x))


@case
class ObjectReturned(Case):
    model_type = ReturnsObject

    def step(self, i):
        loss = self.loss(self.model(self.x(i)).logits, i)
        loss.backward()
        self.update()
        return loss.detach()


class ReturnsTheSameTwice(Net):
    def forward(self, x):
        holder = Holder(super().forward(x))
        return holder, holder


@case
class ObjectReturnedTwice(Case):
    model_type = ReturnsTheSameTwice

    def step(self, i):
        one, other = self.model(self.x(i))
        assert one is other
        loss = self.loss(one.logits, i)
        loss.backward()
        self.update()
        return loss.detach()


class KeepsWhatItReturns(Net):
    def forward(self, x):
        self.last = weakref.ref(holder := Holder(super().forward(x)))
        return holder


@case
class ObjectReturnedAndKnown(Case):
    model_type = KeepsWhatItReturns

    def step(self, i):
        output = self.model(self.x(i))
        assert self.model.last() is output
        loss = self.loss(output.logits, i)
        loss.backward()
        self.update()
        return loss.detach()


class TakesObject(Net):
    def forward(self, batch):
        return super().forward(batch.logits)


@case
class ObjectGiven(Case):
    model_type = TakesObject
    replays = "Holder"

    def step(self, i):
        loss = self.loss(self.model(Holder(self.x(i))), i)
        loss.backward()
        self.update()
        return loss.detach()


# ---- outputs


class Heads(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return {"first": self.second(hidden), "other": self.other(hidden)}


@case
class OneHeadOfTwo(Case):
    model_type = Heads

    def step(self, i):
        self.loss(self.model(self.x(i))["first"], i).backward()
        self.update()


@case
class HeadsInTurn(Case):
    model_type = Heads
    replays = None

    def step(self, i):
        self.loss(self.model(self.x(i))["first" if i % 2 else "other"], i).backward()
        self.update()


@case
class AnotherHeadLater(Case):
    """After plans were made: the forward pass runs again, on what it found."""

    model_type = Heads
    replays = "other outputs"

    def step(self, i):
        self.loss(self.model(self.x(i))["first" if i < 8 else "other"], i).backward()
        self.update()


class Towers(Net):
    """Its outputs have graphs of their own."""

    def __init__(self):
        super().__init__()
        self.other = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return {"first": super().forward(x), "other": self.other(x)}


@case
class TowersApartLater(Case):
    """One backward pass over both, and later one each."""

    model_type = Towers
    replays = "other outputs"
    second = staticmethod(contextlib.nullcontext)  # around the second of them

    def step(self, i):
        outputs = self.model(self.x(i))
        losses = [self.loss(outputs[name], i) for name in ("other", "first")]
        if i < 8:
            sum(losses).backward()
        else:
            losses[0].backward()
            with self.second():
                losses[1].backward()
        self.update()


@case
class SharedHeadsApartLater(TowersApartLater):
    """What lies under both is gone when the second backward pass comes: the same error."""

    model_type = Heads

    @staticmethod
    def second():
        return pytest.raises(RuntimeError, match="backward through the graph a second time")


class Sigmoid(Net):
    def forward(self, x):
        return torch.sigmoid(super().forward(x))


@case
class OutputChangedInPlace(Case):
    """The loop may, where the backward pass does not need it."""

    def step(self, i):
        output = self.model(self.x(i))
        output *= 2
        output[:, 0] = 0
        self.loss(output, i).backward()
        self.update()
        return output.detach()


def raised(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


@case
class NeededOutputChangedInPlace(Case):
    """And where it does, the error is eager's."""

    model_type = Sigmoid
    replays = None

    def step(self, i):
        output = self.model(self.x(i))
        output.mul_(2)
        text = raised(lambda: self.loss(output, i).backward())
        assert "modified by an inplace operation" in text
        self.optimizer.zero_grad()


@case
class NeededOutputChangedLater(Case):
    model_type = Sigmoid
    replays = "output is changed in place"

    def step(self, i):
        output = self.model(self.x(i))
        if i >= 8:
            output.mul_(2)
        text = raised(lambda: self.loss(output, i).backward())
        assert (text is not None and "modified by an inplace operation" in text) == (i >= 8)
        self.update()


@case
class ArgumentChangedInPlace(Case):
    """What autograd does not need of it is the loop's to write over."""

    replays = "changed in place between"

    class FirstCopies(Net):
        def forward(self, x):
            return super().forward(x * 2.0)

    model_type = FirstCopies

    def step(self, i):
        x = self.x(i)
        loss = self.loss(self.model(x), i)
        x.zero_()
        loss.backward()
        self.update()
        return loss.detach()


@case
class PartlyUsed(Case):
    """Passes that end without a backward pass, and one that waits while others go on."""

    replays = None

    def step(self, i):
        waiting = self.model(self.x(i))
        other = self.model(self.x(i + 50))
        if i % 3:
            self.loss(other, i).backward()
        self.loss(waiting, i).backward()
        self.update()
        return other.detach()


# ---- after plans were made


class Noisy(nn.Module):
    """Draws, and has a buffer that its output depends on."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):
        self.count.mul_(1.1)
        return self.layers(x) * self.count


class Later(Case):
    """Does something else from the ninth step on. Fast mode's random numbers are its own, so its model draws none."""

    model_type = Noisy

    def build(self):
        model = self.model_type()
        if self.fast:
            model.layers[2] = nn.Identity()
        return model

    def __init__(self, config=None):
        self.fast = Later.is_fast
        super().__init__(config)

    is_fast = False

    def step(self, i):
        x = self.x(i)
        output = self.model(x)
        if i < 8:
            self.loss(output, i).backward()
        else:
            self.otherwise(i, output)
        self.update()
        return output.detach(), self.model.count.clone()


@case
class KeptLater(Later):
    replays = "retain_graph"

    def otherwise(self, i, output):
        self.loss(output, i).backward(retain_graph=True)
        output.abs().sum().backward()


@case
class PenaltyLater(Later):
    """Gradients meet at the parameters then that eager adds up before."""

    replays = "create_graph"
    is_rounded = True

    def otherwise(self, i, output):
        loss = self.loss(output, i)
        found = torch.autograd.grad(loss, list(self.model.parameters()), create_graph=True)
        (loss + 1e-3 * sum(gradient.square().sum() for gradient in found)).backward()


@case
class ChangedLater(Later):

    def otherwise(self, i, output):
        output[0] = 0
        self.loss(output, i).backward()


# ---- models


class WithStats(Net):
    def __init__(self):
        super().__init__()
        self.stats = {"calls": 3}
        self.report = "mine"

    def graph_text(self):
        return "mine"


@case
class NamesOfItsOwn(Case):
    model_type = WithStats

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return self.model.stats, self.model.report, self.model.graph_text()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(self.cells(x.unsqueeze(1))[0][:, 0])


@case
class LongShortTermMemory(Case):
    model_type = Recurrent

    def step(self, i):
        loss = self.loss(self.model(self.x(i)), i)
        loss.backward()
        self.update()
        return loss.detach()


class Redirecting(nn.Module):
    """Passes on what is assigned to it, as Fabric's modules do."""

    def __init__(self):
        super().__init__()
        self.inside = Net()

    def __setattr__(self, name, value):
        inside = self.__dict__.get("_modules", {}).get("inside")
        if inside is not None and hasattr(inside, name):
            setattr(inside, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, x):
        return self.inside(x)


@case
class OwnSetattr(Case):
    model_type = Redirecting

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()


@case
class ForwardReplacedEveryTime(Case):
    """As libraries do that let other methods go through a module's call."""

    replays = "forward"

    def step(self, i):
        forward = self.model.forward
        self.model.forward = lambda x: 2 * forward(x)
        output = self.model(self.x(i))
        del self.model.forward
        self.loss(output, i).backward()
        self.update()
        return output.detach()


@case
class ForwardReplacedOnce(Case):
    replays = None

    def prepare(self):
        forward = self.model.forward
        self.model.forward = lambda x: 2 * forward(x)

    def step(self, i):
        output = self.model(self.x(i))
        self.loss(output, i).backward()
        self.update()
        return output.detach()


class WithMethods(Net):
    def encode(self, x):
        return torch.relu(self.first(x))


def test_a_loop_that_does_not_call_the_model_is_told_so(caplog):
    case = MethodInsteadOfForward(stepc.Config(mode="exact"))
    with caplog.at_level(logging.WARNING, "stepc"):
        for i in range(4):
            case.take(i)
    assert [record.message.split(":")[0] for record in caplog.records if "instead of the model" in record.message] == [
        "the accelerated model has made no training pass that its optimizer's step() follows"
    ]


@case
class MethodInsteadOfForward(Case):
    model_type = WithMethods
    replays = None

    def step(self, i):
        loss = self.model.second(self.model.encode(self.x(i))).square().mean()
        loss.backward()
        self.update()
        return loss.detach()


@case
class Closure(Case):
    def step(self, i):
        def closure():
            self.optimizer.zero_grad()
            loss = self.loss(self.model(self.x(i)), i)
            loss.backward()
            return loss

        return self.optimizer.step(closure).detach()


def test_a_closure_is_followed_by_a_replayed_update(caplog):
    case = Closure(stepc.Config(mode="exact"))
    with caplog.at_level(logging.WARNING, "stepc"):
        for i in range(8):
            case.take(i)
    stats = stepc.stats(case.optimizer)
    assert stats["replays"] + stats["checks"] >= 4 and not caplog.records


def test_an_optimizer_that_may_call_its_closure_again_is_told_of(caplog):
    model = Net()
    model, optimizer = stepc.accelerate(model, torch.optim.LBFGS(model.parameters(), max_iter=3))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        return loss

    with caplog.at_level(logging.WARNING, "stepc"):
        for _ in range(4):
            optimizer.step(closure)
    assert [record.message.split(" runs")[0] for record in caplog.records] == ["this LBFGS's step(closure)"]


@case
class ArgumentsByName(Case):
    """Two arguments of one shape, given in turn."""

    class TwoArguments(Net):
        def forward(self, a=None, b=None):
            return super().forward(a if b is None else a - 2 * b)

    model_type = TwoArguments

    def step(self, i):
        a, b = self.x(i), self.x(i + 50)
        given = {"a": a, "b": b} if i % 2 else {"b": a, "a": b}
        loss = self.loss(self.model(**dict(sorted(given.items(), reverse=bool(i % 2)))), i)
        loss.backward()
        self.update()
        return loss.detach()

    def take(self, i):
        return super().take(i)


# ---- copies


@case
class AverageByCopy(Case):
    def prepare(self):
        self.average = copy.deepcopy(self.model)

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.model.parameters()):
                slow.lerp_(fast, 0.1)
            plain = self.average(self.x(i))
        return plain, self.average(self.x(i)).detach()


@case
class AveragedModel(Case):
    def prepare(self):
        self.average = torch.optim.swa_utils.AveragedModel(self.model)

    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        self.average.update_parameters(self.model)
        return self.average(self.x(i)).detach(), [value.detach() for value in self.average.parameters()]


@case
class TrainedCopy(Case):
    def prepare(self):
        self.copied = copy.deepcopy(self.model)
        self.other = torch.optim.SGD(self.copied.parameters(), lr=0.3)

    def step(self, i):
        for model, optimizer in ((self.model, self.optimizer), (self.copied, self.other)):
            self.loss(model(self.x(i)), i).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [value.detach().clone() for value in self.copied.parameters()]


@case
class CopiedOptimizer(Case):
    def step(self, i):
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        state = copy.deepcopy(self.optimizer).state_dict()
        return pickle.loads(pickle.dumps(self.optimizer)).state_dict()["state"], state["param_groups"]


# ---- torch.func and exporters, beside the loop


@case
class FunctionalCall(Case):
    replays = "no leaf"

    def step(self, i):
        weights = {name: value * 1.5 for name, value in self.model.named_parameters()}
        loss = self.loss(functional_call(self.model, weights, self.x(i)), i)
        loss.backward()
        self.update()
        return loss.detach()


@case
class InnerLoop(Case):
    """MAML: a step inside the step."""

    replays = None
    model_type = staticmethod(lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))

    def step(self, i):
        weights = dict(self.model.named_parameters())
        loss = self.loss(functional_call(self.model, weights, self.x(i)), i)
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: value - 0.1 * gradient for (name, value), gradient in zip(weights.items(), found)}
        outer = self.loss(functional_call(self.model, weights, self.x(i + 50)), i + 50)
        outer.backward()
        self.update()
        return outer.detach()


@case
class FunctionTransforms(Case):
    replays = None
    model_type = staticmethod(lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))

    def step(self, i):
        weights = {name: value.detach() for name, value in self.model.named_parameters()}

        def loss_of(weights, x, y):
            return (functional_call(self.model, weights, x) - y).square().mean()

        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, self.x(i), self.y(i))
        batched = torch.vmap(self.model)(self.x(i).unsqueeze(1))
        self.loss(self.model(self.x(i)), i).backward()
        self.update()
        return each, batched.detach()


def run(kind, mode):
    config = stepc.Config(mode=mode, verify="first")
    Later.is_fast = mode == "fast"
    eager, accelerated = kind(), kind(config)
    for i in range(STEPS):
        expected, seen = eager.take(i), accelerated.take(i)
        if mode == "exact" and not kind.is_rounded:
            assert_same(leaves(expected), leaves(seen), f"step {i}")
            continue
        for (path, a), (_, b) in zip(leaves(expected), leaves(seen), strict=True):
            if isinstance(a, torch.Tensor) and a.is_floating_point():
                torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5, msg=lambda text: f"step {i}, {path}: {text}")
            else:
                assert path.endswith("generator") or not isinstance(a, torch.Tensor) or torch.equal(a, b)
    return accelerated


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_loop_is_as_eager(kind, mode):
    accelerated = run(kind, mode)
    stats = stepc.stats(accelerated.model)
    if kind.replays is None:
        return
    if kind.replays is True:
        assert stats["replays"] >= 3 and not stats["warnings"], stats
        return
    assert len(stats["warnings"]) == 1 and kind.replays in stats["warnings"][0], stats["warnings"]
    if kind.replays not in ("other outputs",) and not issubclass(kind, Later) and "Later" not in kind.__name__:
        assert stats["replays"] == 0, stats
    else:
        assert stats["replays"] >= 3, stats


def test_a_second_backward_pass_begun_later_is_told_and_then_eagers():
    """Where the first one is as a plan has it, nothing of the pass is left when the second comes."""
    torch.manual_seed(0)
    model = Towers()
    eager = copy.deepcopy(model)
    model, _ = stepc.accelerate(model, torch.optim.SGD(model.parameters(), lr=0.1), config=stepc.Config(mode="exact"))

    def losses(one, i):
        outputs = one(torch.randn(8, 6, generator=source_of(i)))
        return [outputs[name].square().mean() for name in ("first", "other")]

    for i in range(8):
        losses(model, i)[0].backward()
        losses(eager, i)[0].backward()
    assert stepc.stats(model)["replays"] >= 4
    first, other = losses(model, 8)
    first.backward()
    with pytest.raises(stepc.UserError, match="backward passes of their own, as they had not before.*runs eagerly from here on"):
        other.backward()
    for loss in losses(eager, 8)[:1] + losses(eager, 9) + losses(model, 9):
        loss.backward()
    expected, seen = (leaves([p.grad for p in one.parameters()]) for one in (eager, model))
    assert_same(expected, seen, "gradients")
    assert "backward passes of their own" in stepc.stats(model)["warnings"][0]


# ---- what is the user's stays the user's


def accelerated_pair(model=None, steps=8, **config):
    torch.manual_seed(0)
    model = model if model is not None else Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(**{"mode": "exact", **config}))
    train(model, optimizer, steps)
    return model, optimizer


def train(model, optimizer, steps):
    for i in range(steps):
        model(torch.randn(8, 6, generator=source_of(i))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_class_is_the_users():
    model, optimizer = accelerated_pair()
    assert type(model) is Net and model.__class__ is Net and type(optimizer) is torch.optim.AdamW
    assert set(vars(model)) - set(vars(Net())) == {"_compiled_call_impl"}
    assert model.forward.__func__ is Net.forward
    assert stepc.stats(model)["replays"] > 0 and stepc.stats(optimizer)["replays"] > 0
    for one in (model, optimizer):
        assert "planned" in stepc.report(one) and stepc.graph_text(one) and stepc.schedule_text(one)
    for one in (Net(), copy.deepcopy(model), torch.optim.SGD(Net().parameters(), lr=1.0), copy.deepcopy(optimizer), 3):
        with pytest.raises(stepc.UserError, match="accelerate"):
            stepc.stats(one)


def test_saved_models_are_plain():
    model, _ = accelerated_pair()
    model.eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    x = torch.randn(8, 6, generator=source_of(1))
    for other in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(other) is Net and "_compiled_call_impl" not in vars(other)
        assert torch.equal(other(x), model(x))
        with torch.no_grad():
            other.second.bias.add_(1)
        assert not torch.equal(other(x), model(x))


def test_a_model_that_saves_everything_is_plain_too():
    class Everything(Net):
        def __getstate__(self):
            return self.__dict__.copy()

    model, _ = accelerated_pair(Everything())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.second.bias.add_(1)
    x = torch.randn(8, 6)
    assert not torch.equal(other.eval()(x), model.eval()(x))


def test_exporters_see_the_model():
    model, _ = accelerated_pair(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)))
    x = torch.randn(8, 6, generator=source_of(1))
    traced = torch.jit.trace(model, x)
    exported = torch.export.export(model, (x,))
    assert torch.equal(traced(x), model(x)) and torch.equal(exported.module()(x), model(x))
    assert torch.equal(torch.jit.script(model)(x), model(x))


def test_a_new_optimizer_for_an_accelerated_model():
    model, _ = accelerated_pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
    train(model, optimizer, 8)
    assert stepc.stats(optimizer)["replays"] > 0
    for again in ((model,), (model, optimizer)):
        with pytest.raises(stepc.UserError, match="accelerated already"):
            stepc.accelerate(*again)


def test_prepared_by_accelerate():
    accelerate = pytest.importorskip("accelerate")

    def run(is_accelerated):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        prepared = accelerate.Accelerator(cpu=True)
        model, optimizer = prepared.prepare(model, optimizer)
        if is_accelerated:
            model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
        for i in range(10):
            prepared.backward(model(torch.randn(8, 6, generator=source_of(i))).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    (expected, _), (model, optimizer) = run(False), run(True)
    assert_same(leaves(expected.state_dict()), leaves(model.state_dict()), "state")
    of_model, of_optimizer = stepc.stats(model), stepc.stats(optimizer)
    assert of_model["replays"] >= 5 and of_optimizer["replays"] + of_optimizer["checks"] >= 5


def test_compiled_models_run_as_they_are(caplog):
    model = Net()
    model.__dict__["_compiled_call_impl"] = lambda x: "compiled"
    with caplog.at_level(logging.WARNING, "stepc"):
        assert stepc.accelerate(model)(torch.zeros(2, 6)) == "compiled"
    assert sum("compiled" in record.message for record in caplog.records) == 1


# ---- precision


def test_bf16_is_of_training_passes_alone():
    model, _ = accelerated_pair(precision="bf16")
    x = torch.randn(8, 6, generator=source_of(1))
    assert model(x).dtype == torch.bfloat16
    model.eval()
    with torch.no_grad():
        assert model(x).dtype == torch.float32
    assert copy.deepcopy(model)(x).dtype == torch.float32


def test_bf16_of_a_step_ends_with_the_step():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        output = model(x)
        output.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return output

    fast = stepc.accelerate(step, config=stepc.Config(mode="exact", precision="bf16"))
    for i in range(8):
        assert fast(torch.randn(8, 6, generator=source_of(i))).dtype == torch.bfloat16
        assert model(torch.zeros(8, 6)).dtype == torch.float32
    assert fast.stats["replays"] + fast.stats["checks"] > 3
    assert "forward" not in vars(model)


# ---- nothing is kept


def test_batches_and_results_of_a_loop_are_let_go():
    model, optimizer = accelerated_pair(steps=0)
    for i in range(8):
        x = torch.randn(8, 6, generator=source_of(i))
        output = model(x)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen = [weakref.ref(x), weakref.ref(output), weakref.ref(x.untyped_storage())]
        del x, output
        assert [one() for one in seen[:2]] == [None, None], f"step {i}, with the loss still there"
        del loss
        assert [one() for one in seen] == [None, None, None], f"step {i}"
    assert stepc.stats(model)["replays"] >= 4


def test_a_pass_without_a_backward_pass_is_let_go():
    model, optimizer = accelerated_pair()
    for _ in range(3):
        x = torch.randn(8, 6)
        output = model(x)
        seen = [weakref.ref(x), weakref.ref(output)]
        del x, output
        assert [one() for one in seen] == [None, None]
    before = stepc.stats(model)["replays"]
    train(model, optimizer, 2)
    assert stepc.stats(model)["replays"] == before + 2


class Batch:
    def __init__(self, x):
        self.x = x


def test_batch_objects_of_a_loop_are_let_go():
    class Taking(Net):
        def forward(self, batch):
            return super().forward(batch.x)

    torch.manual_seed(0)
    model = Taking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
    for i in range(6):
        batch = Batch(torch.randn(8, 6))
        seen = weakref.ref(batch)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del batch
        assert seen() is None, f"step {i}"


@pytest.mark.parametrize("steps", [0, 2, 8])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_models_of_finished_runs_are_let_go(steps, mode):
    model, optimizer = accelerated_pair(steps=steps, mode=mode)
    seen = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.first.weight)]
    del model, optimizer
    gc.collect()
    assert [one() for one in seen] == [None, None, None]


class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.fast = stepc.accelerate(self.step, config=stepc.Config(mode="exact"))

    def step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def test_a_trainer_that_holds_its_accelerated_step_is_let_go():
    trainer = Trainer()
    for i in range(8):
        trainer.fast(torch.randn(8, 6))
    assert trainer.fast.stats["replays"] + trainer.fast.stats["checks"] > 3
    seen = [weakref.ref(trainer), weakref.ref(trainer.model), weakref.ref(trainer.model.first.weight)]
    del trainer
    gc.collect()
    assert [one() for one in seen] == [None, None, None]


@pytest.mark.parametrize("kind", [Batch, lambda x: Kept(x), lambda x: x.numpy()], ids=["object", "equal", "array"])
def test_objects_given_to_a_step_and_returned_by_it_are_let_go(kind):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        loss = model(torch.as_tensor(getattr(batch, "x", batch))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "batch": Batch(loss.detach())}

    fast = stepc.accelerate(step, config=stepc.Config(mode="exact"))
    for i in range(5):
        batch = kind(torch.randn(8, 6, generator=source_of(i)))
        result = fast(batch)
        assert torch.equal(result["batch"].x, result["loss"])
        seen = [weakref.ref(batch), weakref.ref(result["batch"])]
        del batch, result
        gc.collect()
        assert [one() for one in seen] == [None, None], f"step {i}"


class Kept(Batch):
    """Equal to its like, as configurations are."""

    def __eq__(self, other):
        return type(other) is Kept

    def __hash__(self):
        return 7


# ---- threads


def in_threads(work, threads=4):
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001: any of them fails the test
            errors.append(error)

    started = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not errors, errors


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_one_step_called_from_several_threads_takes_turns(mode):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.randn(8, 6, generator=source_of(i)) for i in range(4)]
    expected = [model(x).square().mean().item() for x in batches]

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    fast = stepc.accelerate(step, config=stepc.Config(mode=mode))

    def work(number):
        for _ in range(25):
            assert abs(fast(batches[number]).item() - expected[number]) < 1e-5

    in_threads(work)
    assert fast.stats["replays"] > 20


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_one_model_called_from_several_threads(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    batches = [torch.randn(8, 6, generator=source_of(i)) for i in range(4)]
    expected = []
    for x in batches:
        expected.append(torch.autograd.grad(model(x).square().mean(), list(model.parameters())))
    model = stepc.accelerate(model, config=stepc.Config(mode=mode))

    def work(number):
        for _ in range(25):
            found = torch.autograd.grad(model(batches[number]).square().mean(), list(model.parameters()))
            for a, b in zip(found, expected[number], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    in_threads(work)
