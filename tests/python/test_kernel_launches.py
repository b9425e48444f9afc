"""Kernels that are launched past PyTorch's dispatcher (Triton, Liger, bitsandbytes, ctypes): such steps run as they are, and the
one warning names the kernel. On the emulated device, with modules that stand in for these libraries.
"""

import ctypes
import sys
import types

import emulated
import pytest
import torch
from torch import nn

import stepc

STEPS = 14
pytestmark = pytest.mark.process_apart  # PyTorch counts its devices once, at the first backward pass


@pytest.fixture
def device():
    return emulated.device()


@pytest.fixture
def double():
    """A kernel of a library of somebody's own: doubles `count` floats at an address of the device's."""
    emulated.device()
    kernel = emulated.library().emulated_device_double
    kernel.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return kernel


def address_unseen(tensor):
    """As a launcher in C finds it."""
    return torch._C.StorageBase.data_ptr(tensor.untyped_storage())


@pytest.fixture
def triton(double, monkeypatch):
    """A module like Triton's: its launcher finds addresses in C."""
    module = types.ModuleType("triton.runtime.jit")

    class JITFunction:
        def __init__(self, fn):
            self.fn = fn

        def __getitem__(self, grid):
            return lambda *args: self.run(*args, grid=grid, warmup=False)

        def run(self, tensor, *, grid, warmup):
            if not warmup:
                double(address_unseen(tensor), tensor.numel())

    module.JITFunction = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    return JITFunction


def as_liger(triton):
    """An operation like Liger's: a Triton kernel in a function of autograd, and one in its backward pass."""
    forward = triton(types.FunctionType((lambda tensor: None).__code__, {"__name__": "liger_kernel.ops.swiglu"}, "_swiglu_forward_kernel"))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            y = x.clone()
            forward[(1,)](y)
            return y

        @staticmethod
        def backward(context, gradient):
            out = gradient.clone()
            forward[(1,)](out)
            return out

    return Double.apply


def as_bitsandbytes(double):
    """A call like bitsandbytes': a function of a library, through ctypes."""
    def function(x):
        out = x.detach().clone()
        double(ctypes.c_void_p(out.data_ptr()), out.numel())
        return x + (out - x).detach()

    return function


def of_a_storage(double):
    def function(x):
        out = x.detach().clone()
        double(out.untyped_storage().data_ptr(), out.numel())
        return x + (out - x).detach()

    return function


def of_inductor(monkeypatch, double):
    module = types.ModuleType("torch._inductor.runtime.triton_heuristics")

    class CachingAutotuner:
        def __init__(self):
            self.fn = types.SimpleNamespace(__name__="triton_poi_fused_mul_0", __module__="cabc123")

        def run(self, tensor, *, stream):
            double(address_unseen(tensor), tensor.numel())

    module.CachingAutotuner = CachingAutotuner
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", module)
    kernel = CachingAutotuner()

    def function(x):
        out = x.detach().clone()
        kernel.run(out, stream=0)
        return x + (out - x).detach()

    return function


def kinds(triton, double, monkeypatch):
    return {
        "triton": (as_liger(triton), "the Triton kernel 'liger_kernel.ops.swiglu._swiglu_forward_kernel' (at test_kernel_launches.py"),
        "ctypes": (as_bitsandbytes(double), "Tensor.data_ptr() (at test_kernel_launches.py"),
        "storage": (of_a_storage(double), "UntypedStorage.data_ptr() (at test_kernel_launches.py"),
        "inductor": (of_inductor(monkeypatch, double), "the kernel of torch.compile 'cabc123.triton_poi_fused_mul_0'"),
    }


class Training:
    def __init__(self, device, function):
        torch.manual_seed(0)
        self.function = function
        self.one, self.two = nn.Linear(6, 8).to(device), nn.Linear(8, 4).to(device)
        self.optimizer = torch.optim.SGD([*self.one.parameters(), *self.two.parameters()], lr=0.1)

    def step(self, x):
        loss = self.two(self.function(self.one(x)).tanh()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self):
        return [one.detach().cpu() for one in (*self.one.parameters(), *self.two.parameters())]


@pytest.mark.parametrize("python", ["watch", "trace"])
@pytest.mark.parametrize("kind", ["triton", "ctypes", "storage", "inductor"])
def test_a_step_with_a_launch_runs_as_it_is_and_names_it(device, triton, double, monkeypatch, kind, python):
    function, words = kinds(triton, double, monkeypatch)[kind]
    want, run = Training(device, function), Training(device, function)
    step = stepc.accelerate(run.step, config=stepc.Config(python=python))
    for i in range(STEPS):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(i)).to(device)
        assert torch.equal(step(x).cpu(), want.step(x).cpu()), i
    assert all(torch.equal(one, other) for one, other in zip(run.state(), want.state(), strict=True))
    assert step.stats["replays"] == 0 and len(step.stats["warnings"]) == 1, step.stats
    assert words in step.stats["warnings"][0]


@pytest.mark.parametrize("kind", ["triton", "ctypes"])
def test_a_loop_with_a_launch_runs_as_it_is_and_names_it(device, triton, double, monkeypatch, kind):
    function, words = kinds(triton, double, monkeypatch)[kind]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.two(function(self.one(x)).tanh())

    def train(accelerated):
        torch.manual_seed(0)
        model = Model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if accelerated:
            model, optimizer = stepc.accelerate(model, optimizer)
        for i in range(STEPS):
            loss = model(torch.randn(5, 6, generator=torch.Generator().manual_seed(i)).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    model, twin = train(True), train(False)
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    warnings = stepc.stats(model)["warnings"]
    assert len(warnings) == 1 and words in warnings[0], warnings


def test_nothing_is_watched_between_steps(device, triton, double):
    was = triton.run, torch.UntypedStorage.data_ptr
    step = stepc.accelerate(Training(device, as_bitsandbytes(double)).step)
    for _ in range(3):
        step(torch.ones(5, 6).to(device))
    assert (triton.run, torch.UntypedStorage.data_ptr) == was
