"""Steps that use more of autograd than one backward pass: accumulation, hooks, several losses, gradients of gradients."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from harness import Arguments, Training, decay, run_twins, source_of, train


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def make_batch(i):
    return torch.randn(8, 6, generator=source_of(i))


def classes(i):
    source = source_of(i)
    return [torch.randn(8, 6, generator=source), torch.randint(4, (8,), generator=source)]


def square(model, x):
    return model(x).square().mean()


def adamw(*modules):
    return torch.optim.AdamW([parameter for module in modules for parameter in module.parameters()], lr=1e-2)


def update(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


# ---- accumulation


@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_steps_in_one_step(set_to_none):
    def build():
        model = mlp()
        optimizer = adamw(model)

        def step(micro_batches):
            losses = []
            for x in micro_batches:
                loss = square(model, x) / len(micro_batches)
                loss.backward()
                losses.append(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            return torch.stack(losses).sum()

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: [make_batch(10 * i + micro) for micro in range(4)])


def test_accumulation_over_calls():
    """An update every third call; a Python argument says which. Gradients outlive the calls in between."""

    def build():
        model = mlp()
        optimizer = adamw(model)

        def step(x, last):
            loss = square(model, x) / 3
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: Arguments((make_batch(i),), {"last": i % 3 == 2}), steps=36, replays=15)


def test_gradients_left_for_the_caller():
    """The step only makes gradients and zeroes them at its beginning; the caller may look at them in between."""

    def build():
        model = mlp()
        optimizer = adamw(model)

        def step(x):
            optimizer.zero_grad()
            loss = square(model, x)
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, make_batch)


# ---- hooks


def test_hooks_on_tensors_and_parameters():
    def build():
        model = mlp()
        model[0].weight.register_hook(lambda gradient: gradient * 2)

        def clamp(parameter):
            parameter.grad.clamp_(-0.01, 0.01)

        model[2].bias.register_post_accumulate_grad_hook(clamp)

        def loss_of(model, x):
            hidden = model[0](x)
            hidden.register_hook(lambda gradient: gradient + x.mean() * 1e-3)
            return model[2](hidden.tanh()).square().mean()

        return train(model, loss_of)

    run_twins(build, make_batch)


def test_hooks_on_modules():
    def build():
        model = mlp()
        model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))
        model[0].register_forward_hook(lambda module, inputs, output: output + inputs[0].mean())
        model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
        model[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0].clamp(-1, 1),))
        return train(model, square)

    run_twins(build, make_batch)


def test_optimizer_in_backward():
    """Every parameter is updated as soon as its gradient is there, by a hook of its own."""

    def build():
        model = mlp()
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in model.parameters()}

        def apply(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(apply)

        def step(x):
            loss = square(model, x)
            loss.backward()
            return loss

        return Training(step, [model], list(optimizers.values()), [decay(each) for each in optimizers.values()])

    run_twins(build, make_batch)


# ---- parts without gradient


def test_no_grad_and_detach():
    def build():
        def loss_of(model, x):
            with torch.no_grad():
                target = model(x).softmax(-1)
            hidden = model[0](x)
            scale = hidden.detach().abs().amax(-1, keepdim=True)
            with torch.inference_mode():
                worst = model(x.clone()).abs().max()
            return cross_entropy(model[2]((hidden / scale).tanh()), target) * worst.clone()

        return train(mlp(), loss_of)

    run_twins(build, make_batch)


def test_frozen_parameters():
    def build():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 4))
        model[0].requires_grad_(False)
        model[2].weight.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return train(model, square, torch.optim.AdamW(trained, lr=1e-2))

    run_twins(build, make_batch)


def test_tied_parameters():
    def build():
        model = nn.ModuleDict({"embed": nn.Embedding(16, 8), "body": nn.Linear(8, 8), "head": nn.Linear(8, 16, False)})
        model["head"].weight = model["embed"].weight

        def loss_of(model, ids):
            logits = model["head"](model["body"](model["embed"](ids)).tanh())
            return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

        return train(model, loss_of)

    run_twins(build, lambda i: torch.randint(16, (3, 7), generator=source_of(i)))


def test_parameters_without_gradient_in_some_steps():
    """One head is used every third step only, so its gradient and its optimizer state come and go."""

    def build():
        body, heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
        optimizer = adamw(body, heads)

        def step(x, head):
            return update(optimizer, heads[head](body(x).tanh()).square().mean())

        return Training(step, [body, heads], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: Arguments((make_batch(i),), {"head": int(i % 3 == 2)}), steps=36, replays=15)


def test_sparse_gradients():
    """An embedding with sparse gradients: held by a recording or not, but equal."""

    def build():
        model = nn.Sequential(nn.Embedding(16, 4, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Training(lambda ids: update(optimizer, square(model, ids)), [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: torch.randint(16, (3, 5), generator=source_of(i)), steps=10, replays=0)


# ---- averages


def test_ema_after_the_update():
    def build():
        model = mlp()
        average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer = adamw(model)

        def step(x):
            loss = update(optimizer, square(model, x))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    average[name].mul_(0.9).add_(parameter, alpha=0.1)
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=average)

    run_twins(build, make_batch)


def test_averaged_model():
    """Its first update is a copy, the others a mean: the count is a buffer that Python asks."""

    def build():
        model = mlp()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = adamw(model)

        def step(x):
            loss = update(optimizer, square(model, x))
            average.update_parameters(model)
            return loss

        return Training(step, [model, average], [optimizer], [decay(optimizer)])

    run_twins(build, make_batch, replays=4)


def test_target_network_copied_now_and_then():
    """Between steps the program copies the trained network over the target."""

    def build():
        model, target = mlp(), mlp().requires_grad_(False)
        optimizer = adamw(model)

        def step(x):
            return update(optimizer, mse_loss(model(x), target(x).detach()))

        return Training(step, [model, target], [optimizer], [decay(optimizer)])

    def copy_weights(i, training):
        if i % 4 == 3:
            model, target = training.modules
            target.load_state_dict(copy.deepcopy(model.state_dict()))

    run_twins(build, make_batch, steps=14, before=copy_weights)


# ---- several losses and optimizers


def test_gan():
    def build():
        generator, critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)), mlp()
        generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
        critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

        def step(real):
            fake = generator(torch.randn(8, 3))
            critic_optimizer.zero_grad()
            critic_loss = critic(fake.detach()).mean() - critic(real).mean()
            critic_loss.backward()
            critic_optimizer.step()
            generator_optimizer.zero_grad()
            generator_loss = -critic(fake).mean()
            generator_loss.backward()
            generator_optimizer.step()
            return {"critic": critic_loss, "generator": generator_loss}

        optimizers = [generator_optimizer, critic_optimizer]
        return Training(step, [generator, critic], optimizers, [decay(each) for each in optimizers])

    run_twins(build, make_batch)


def test_several_losses():
    def build():
        model = mlp()
        optimizer = adamw(model)

        def step(batch):
            x, y = batch
            logits = model(x)
            first, second = cross_entropy(logits, y), logits.square().mean()
            first.backward(retain_graph=True)
            (0.1 * second).backward()
            optimizer.step()
            optimizer.zero_grad()
            return first, {"second": second, "both": first.detach() + second.detach()}

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: (classes(i),))


def test_gradient_penalty():
    def build():
        def loss_of(model, x):
            x = x.clone().requires_grad_()
            scores = model(x).square().sum(-1)
            (gradient,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
            return scores.mean() + 10 * (gradient.norm(dim=-1) - 1).square().mean()

        return train(mlp(), loss_of)

    run_twins(build, make_batch)


def test_functional_gradients():
    """`torch.func.grad` over a functional call, and a Hessian-vector product."""

    def build():
        def loss_of(model, x):
            weights = dict(model.named_parameters())
            loss = lambda weights: torch.func.functional_call(model, weights, (x,)).square().mean()
            (product,) = torch.autograd.functional.vhp(lambda y: model(y).square().sum(), x, torch.ones_like(x))[1:]
            return loss(weights) + product.detach().square().mean()

        return train(mlp(), loss_of)

    run_twins(build, make_batch)


class ScaledTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        result = torch.tanh(x * scale)
        ctx.save_for_backward(result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return gradient * (1 - result * result) * ctx.scale, None


class StraightThrough(torch.autograd.Function):
    """With `setup_context`, and an output that autograd must not differentiate."""

    @staticmethod
    def forward(x):
        return x.round(), x.abs().amax()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, _):
        return gradient.clamp(-0.1, 0.1)


def test_custom_functions():
    def build():
        def loss_of(model, x):
            hidden, largest = StraightThrough.apply(model[0](x) * 4)
            return model[2](ScaledTanh.apply(hidden, 0.5)).square().mean() / (1 + largest)

        return train(mlp(), loss_of)

    run_twins(build, make_batch)


# ---- buffers and metrics


@pytest.mark.parametrize("options", [{}, {"momentum": 0.3}, {"track_running_stats": False}], ids=str)
def test_batch_norm(options):
    run_twins(lambda: train(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **options), nn.Linear(8, 4)), square),
              make_batch)


def test_cumulative_batch_norm():
    """Without momentum the mean's weight is a Python number made from a counter in a buffer: equal, replayed or not."""
    run_twins(lambda: train(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None)), square), make_batch,
              replays=0, steps=12)


def test_spectral_norm():
    build = lambda: train(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 4)), square)
    run_twins(build, make_batch)


def test_weight_norm_and_lstm():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, batch_first=True), nn.Linear(8, 4)
            nn.utils.parametrizations.weight_norm(self.head)

        def forward(self, x):
            return self.head(self.lstm(x.view(2, 4, 6))[0][:, -1])

    run_twins(lambda: train(Recurrent(), square), make_batch)


def test_complex_numbers_and_views_written_in_place():
    def build():
        def loss_of(model, x):
            hidden = model[0](x)
            spectrum = torch.view_as_complex(hidden.view(8, 8, 2)) * torch.polar(torch.ones(8), torch.arange(8.0))
            hidden = torch.cat([spectrum.conj().real, spectrum.imag], dim=-1)
            hidden = hidden + torch.fft.irfft(torch.fft.rfft(hidden, dim=-1), n=16, dim=-1)
            hidden[:, ::2] *= 0.5
            hidden[0].zero_()
            hidden.masked_fill_(hidden > 3, 0.0)
            return model[2](hidden).square().mean()

        return train(mlp(), loss_of)

    run_twins(build, make_batch)


@dataclass
class Metrics:
    loss: torch.Tensor
    accuracy: torch.Tensor
    confusion: torch.Tensor
    name: str = "train"


def test_metrics_under_no_grad():
    def build():
        model = mlp()
        optimizer = adamw(model)
        seen = torch.zeros(4, 4, dtype=torch.long)

        def step(batch):
            x, y = batch
            logits = model(x)
            loss = update(optimizer, cross_entropy(logits, y))
            with torch.no_grad():
                guess = logits.argmax(-1)
                confusion = torch.zeros(16, dtype=torch.long).scatter_add_(0, guess * 4 + y, torch.ones_like(y)).view(4, 4)
                seen.add_(confusion)
                top = logits.topk(2).indices.eq(y[:, None]).any(-1).float().mean()
            return Metrics(loss, (guess == y).float().mean(), confusion), {"top2": top, "logits": logits}

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=seen)

    run_twins(build, lambda i: (classes(i),))


def test_optimizer_with_a_closure():
    def build():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            def closure():
                optimizer.zero_grad()
                loss = square(model, x)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, make_batch, steps=12, replays=0)


def test_lbfgs():
    """Its search is decided by host numbers: equal, and most likely eager."""

    def build():
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def step(x):
            def closure():
                optimizer.zero_grad()
                loss = square(model, x)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return Training(step, [model], [optimizer])

    run_twins(build, make_batch, steps=8, replays=0)
