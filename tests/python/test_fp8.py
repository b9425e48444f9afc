"""precision="fp8": linear layers in float8, against torchao's dynamic scaling written out in PyTorch, and against bf16."""

import re

import pytest
import torch
import transformers as hf

import stepc
from harness import assert_replayed

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
STEPS = 20


# ---- the recipe, as torchao has it, with sums in float32


def scaled(x, dtype, dim):
    """Float8 values and what brings them back: one number, or one for all along `dim`."""
    amax = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    largest = torch.finfo(dtype).max
    scale = (largest / amax.double().clamp(min=1e-12)).float()  # a number / a tensor is a product with its reciprocal
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def product(a, b, types, rowwise):
    """(m, k) x (k, n)."""
    a8, a_unscales = scaled(a, types[0], 1 if rowwise else None)
    b8, b_unscales = scaled(b, types[1], 0 if rowwise else None)
    with torch.autocast("cpu", enabled=False):  # it would round the sums to bfloat16 before they are scaled back
        return (a8.float() @ b8.float() * a_unscales * b_unscales).to(a.dtype)


class Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rowwise):
        ctx.save_for_backward(x, weight)
        ctx.rowwise = rowwise
        return product(x, weight.t(), (E4M3, E4M3), rowwise)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        types = (E4M3 if ctx.rowwise else E5M2, E4M3)
        return product(gradient, weight, types, ctx.rowwise), product(gradient.t(), x, types, ctx.rowwise), None


class Float8Linear(torch.nn.Linear):
    rowwise = False

    def forward(self, x):
        x, weight = x.to(torch.bfloat16), self.weight.to(torch.bfloat16)
        out = Float8Product.apply(x.reshape(-1, x.shape[-1]), weight, self.rowwise)
        out = out.reshape(*x.shape[:-1], out.shape[-1])
        if self.bias is None:
            return out
        # A plan's kernel keeps sums in float32, rounds what leaves it, and this sum goes on to the loss within one. Its
        # gradient leaves one.
        out = out.float() + self.bias.to(torch.bfloat16).float()
        out.register_hook(lambda gradient: gradient.to(torch.bfloat16).float())
        return out


def in_float8(model, rowwise):
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Float8Linear
            module.rowwise = rowwise
    return model


# ---- steps


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96, bias=False), torch.nn.GELU(), torch.nn.Linear(96, 48))


def batches(count, size):
    source = torch.Generator().manual_seed(1)
    return [torch.randn(4, 8, size, generator=source) for _ in range(count)]


def step_of(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x).float() - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def trained(model, precision, recipe="tensorwise", steps=1, **config):
    """Losses and the parameters' changes, a step each, of SGD with rate 1: gradients with the sign turned."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = step_of(model, optimizer)
    accelerated = None
    if precision == "reference":
        plain = step

        def step(*args):
            with torch.autocast("cpu", torch.bfloat16):
                return plain(*args)
    elif precision is not None:
        accelerated = step = stepc.accelerate(
            step, modules=[model], optimizers=[optimizer],
            config=stepc.Config(capture="virtual", precision=precision, fp8_recipe=recipe, pace="off", **config))
    out = []
    for x, y in zip(batches(steps, 64), batches(steps, 48)):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        loss = step(x, y).item()
        out.append((loss, [parameter.detach() - was for parameter, was in zip(model.parameters(), before)]))
    return out, accelerated


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_layer_and_its_gradients_are_torchaos(recipe):
    (ours, step) = trained(layers(), "fp8", recipe)
    (reference, _) = trained(in_float8(layers(), recipe == "rowwise"), "reference")
    (bf16, _) = trained(layers(), "bf16")
    assert step.stats["plain_verifications"] == 1 and not step.stats["eager_calls"], step.stats["warnings"]
    assert ours[0][0] == pytest.approx(reference[0][0], rel=1e-3)
    for have, want, otherwise in zip(ours[0][1], reference[0][1], bf16[0][1]):
        assert distance(have, want) < 5e-3
        assert distance(otherwise, want) > 5 * distance(have, want)


def llama():
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False))


def losses_of(precision, **config):
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():  # a step that makes the optimizer's state is captured by running it
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()

    def step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stepc.accelerate(step, modules=[model], optimizers=[optimizer],
                            config=stepc.Config(precision=precision, pace="off", **config))
    source = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 128, (4, 16), generator=source)
    return [step(ids).item() for _ in range(STEPS)], step


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_losses_are_near_those_of_bf16_and_replays_are_those_of_the_plain_graph(recipe):
    float8, step = losses_of("fp8", fp8_recipe=recipe, capture="virtual", verify="always")
    bf16, _ = losses_of("bf16", capture="virtual")
    assert step.stats["plain_verifications"] == STEPS, step.stats["warnings"]
    assert not step.stats["eager_calls"] and not step.stats["warnings"]
    assert float8 != bf16 and float8[-1] < 0.9 * float8[0]
    apart = [abs(have - want) / want for have, want in zip(float8, bf16)]
    assert max(apart) < 0.1 and sum(apart) / STEPS < 0.03, (float8, bf16)


def test_a_recorded_step_goes_on_in_float8():
    _, step = losses_of("fp8")
    assert_replayed(step.stats, STEPS - 6)
    assert not step.stats["eager_verifications"]


# ---- steps that multiply in float8 themselves


def test_a_step_with_scaled_matmuls_of_its_own_is_one_graph():
    layer = torch.nn.Linear(64, 32, bias=False)

    def step(x):
        a, a_unscale = scaled(x, E4M3, None)
        b, b_unscale = scaled(layer.weight.detach(), E4M3, None)
        out = torch._scaled_mm(a, b.t(), a_unscale, b_unscale, out_dtype=torch.float32)
        return out, a.to(torch.float32), (x / 3).to(E5M2)

    accelerated = stepc.accelerate(step, modules=[layer], optimizers=[], config=stepc.Config(pace="off"))
    for i in range(8):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(i))
        want, have = step(x), accelerated(x)
        torch.testing.assert_close(have[0], want[0], rtol=1e-3, atol=1e-3)
        assert torch.equal(have[1], want[1]) and torch.equal(have[2].view(torch.uint8), want[2].view(torch.uint8))
    assert_replayed(accelerated.stats, 4)
