"""Steps that draw random numbers, save and restore generators or seed them: the draws and the final states are eager's."""

import itertools

import pytest
import timm.layers
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torchvision.ops import StochasticDepth

import stepc
from harness import Training, decay, run_twins, source_of, train
from models import MODELS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 8))

    def forward(self, x):
        return x + functional.dropout(self.layers(x), 0.1, self.training)


def make_batch(i):
    return torch.randn(5, 8, generator=source_of(i))


def square(model, x):
    return model(x).square().mean()


def run_loss(loss_of, build=lambda: nn.Sequential(Block(), Block()), **options):
    return run_twins(lambda: train(build(), loss_of), make_batch, **options)


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU(),
                                   nn.Dropout1d(0.3), StochasticDepth(0.5, "row"), timm.layers.DropPath(0.4)],
                         ids=lambda layer: type(layer).__name__)
def test_layers_that_draw(layer):
    run_loss(square, lambda: nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 4)))


def test_draws_of_every_kind():
    """Odd sizes too: a generator keeps half of a pair of normal numbers for later."""

    def loss_of(model, x):
        hidden = model(x) + torch.randn(3, 1, 1).mean() + torch.randn(()) + torch.empty(17).normal_(1, 2).sum()
        hidden = hidden * torch.rand_like(hidden) * torch.empty(5, 1).uniform_(1, 2)
        hidden = hidden[torch.randperm(5)] * torch.bernoulli(torch.full((5, 8), 0.5))
        hidden = hidden + torch.randint(3, (5, 8)) + torch.normal(torch.zeros(5, 8), 1.0)
        hidden = hidden + torch.empty(5, 8).exponential_() + torch.empty(5, 8).geometric_(0.5)
        rows = torch.multinomial(torch.ones(5), 7, replacement=True)
        return hidden[rows].square().mean() + torch.distributions.Gumbel(torch.zeros(2), torch.ones(2)).sample().sum()

    run_loss(loss_of)


# ---- checkpoints


@pytest.mark.parametrize("reentrant", [False, True], ids=["nonreentrant", "reentrant"])
@pytest.mark.parametrize("preserve", [True, False], ids=["preserved", "redrawn"])
def test_checkpoint_with_dropout(reentrant, preserve):
    def loss_of(model, x):
        hidden = x.clone().requires_grad_()
        for block in model:
            hidden = checkpoint(block, hidden, use_reentrant=reentrant, preserve_rng_state=preserve)
        return functional.dropout(hidden, 0.1).square().mean()

    run_loss(loss_of)


def test_checkpoint_in_a_checkpoint():
    def loss_of(model, x):
        inner = lambda y: checkpoint(model[1], model[0](y), use_reentrant=False)
        return checkpoint(inner, x, use_reentrant=False).square().mean()

    run_loss(loss_of)


def test_checkpoint_sequential():
    def loss_of(model, x):
        return checkpoint_sequential(model, 2, x.clone().requires_grad_(), use_reentrant=True).square().mean()

    run_loss(loss_of)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["nonreentrant", "reentrant"])
def test_models_with_dropout_and_checkpoints(name, reentrant):
    def build():
        module = MODELS[name].build()
        module.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return train(module, MODELS[name].loss_of)

    run_twins(build, lambda i: MODELS[name].batch(source_of(i), False))


# ---- whole layers left out


def test_layers_left_out_at_random():
    """The choice is read from a random tensor, so it is a guard, and every choice becomes a plan."""

    def loss_of(model, x):
        for block in model:
            if torch.rand(()) < 0.4:
                continue
            x = block(x)
        return x.square().mean() + 0 * sum(parameter.sum() for parameter in model.parameters())

    run_loss(loss_of, steps=40, replays=10)


def test_layerdrop_of_speech_t5():
    def build():
        module = MODELS["speech_t5"].build()
        module.speecht5.encoder.wrapped_encoder.layerdrop = 0.3
        return train(module, MODELS["speech_t5"].loss_of)

    run_twins(build, lambda i: MODELS["speech_t5"].batch(source_of(i), False), steps=30, replays=5)


# ---- generators and seeds


def test_generators_passed_explicitly():
    def build():
        model = nn.Linear(8, 4)
        noise, mask = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            x = x + torch.randn(x.shape, generator=noise) * torch.bernoulli(torch.full_like(x, 0.5), generator=mask)
            x = functional.dropout(x, 0.1) + torch.empty(3, 1).normal_(generator=noise).mean()
            loss = model(x[torch.randperm(5, generator=mask)]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=[noise, mask])

    run_twins(build, make_batch)


def test_generator_of_a_module():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, x):
            return self.linear(x) + torch.randn(5, 8, generator=self.generator)

    def build():
        model = Noisy()
        return train(model, square, watch=model.generator)

    run_twins(build, make_batch)


def test_fork_rng():
    def loss_of(model, x):
        before = functional.dropout(model(x), 0.2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            fixed = torch.randn(5, 8)
        with torch.random.fork_rng(devices=[]):
            free = torch.randn(5, 8)
        return (before * fixed + free + torch.randn(5, 8)).square().mean()

    run_loss(loss_of)


def test_seed_set_in_the_step():
    def loss_of(model, x):
        before = torch.randn(5, 8)
        torch.manual_seed(1234)
        return (functional.dropout(model(x), 0.5) + before + torch.randn(5, 8)).square().mean()

    run_loss(loss_of)


def test_seed_taken_from_the_batch():
    """Every seed is another program: equal, replayed or not."""

    def build():
        def loss_of(model, batch):
            torch.manual_seed(int(batch["seed"]))
            return functional.dropout(model(batch["x"]), 0.5).square().mean()

        return train(nn.Sequential(Block(), Block()), loss_of)

    run_twins(build, lambda i: {"x": make_batch(i), "seed": torch.tensor(i // 4)}, steps=14, replays=0)


def test_state_saved_and_put_back_by_hand():
    def loss_of(model, x):
        state = torch.get_rng_state()
        first = functional.dropout(model(x), 0.5)
        torch.set_rng_state(state)
        second = functional.dropout(model(x), 0.5)
        return (first * second).square().mean() + torch.rand(())

    run_loss(loss_of)


def test_generator_copied_from_another():
    """An explicit generator follows the global one and the other way round: equal, replayed or not."""

    def build():
        generator = torch.Generator()

        def loss_of(model, x):
            generator.set_state(torch.get_rng_state())
            x = x + torch.randn(5, 8, generator=generator)
            loss = model(x).square().mean() + torch.rand(())
            torch.set_rng_state(generator.get_state())
            return loss

        return train(nn.Sequential(Block(), Block()), loss_of, watch=generator)

    run_twins(build, make_batch, steps=12, replays=0)


def test_seeds_set_between_steps():
    """A program that seeds before every step, as for a repeatable evaluation."""
    run_loss(square, before=lambda i, training: torch.manual_seed(i) if i % 2 else None)




# ---- steps whose Python runs along: nothing is drawn while it sets states


def run_traced(make_loss_of, replays, steps=14):
    """`make_loss_of()` gives each twin a loss_of(model, x, i) of step i."""

    def build():
        loss_of, step = make_loss_of(), itertools.count()
        return train(nn.Sequential(Block(), Block()), lambda model, x: loss_of(model, x, next(step)))

    config = stepc.Config(mode="exact", python="trace")
    step = run_twins(build, make_batch, steps=steps, replays=replays, config=config, quiet=False)
    assert step.stats["departures"] > 0
    return step


def dropped(model, x):
    return functional.dropout(model(x), 0.5).square().mean()


def test_traced_seed_changes():
    def make():
        def loss_of(model, x, i):
            torch.manual_seed(i // 7)
            return dropped(model, x)

        return loss_of

    run_traced(make, replays=1)


def test_traced_seed_is_taken_from_the_batch():
    def build():
        def loss_of(model, batch):
            torch.manual_seed(int(batch["seed"]))
            return dropped(model, batch["x"])

        return train(nn.Sequential(Block(), Block()), loss_of)

    config = stepc.Config(mode="exact", python="trace")
    run_twins(build, lambda i: {"x": make_batch(i), "seed": torch.tensor(i // 5)}, steps=16, replays=0, config=config)


@pytest.mark.parametrize("seed", [3, 4], ids=["same", "another"])
def test_traced_step_seeds_once_more(seed):
    """The generator's state says nothing of it where the seed is the one before: nothing has been drawn since."""

    def make():
        def loss_of(model, x, i):
            torch.manual_seed(3)
            noise = torch.randn(5, 8)
            if i >= 8:
                torch.manual_seed(seed)
            return dropped(model, x + noise)

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_seeds_no_more():
    def make():
        def loss_of(model, x, i):
            first = dropped(model, x)
            if i < 8:
                torch.manual_seed(5)
            return first + dropped(model, x)

        return loss_of

    run_traced(make, replays=1)


@pytest.mark.parametrize("way", ("between", "at the end"))
def test_traced_step_that_leaves_among_its_draws_has_a_plan_of_its_own(way):
    """At every fourth step: what it had drawn by then is drawn again under the recorder."""

    def make():
        def loss_of(model, x, i):
            leaves = i % 4 == 3
            first = functional.dropout(model(x), 0.5)
            if leaves and way == "between":
                first = functional.dropout(first.sin(), 0.25)
            loss = (first * functional.dropout(x, 0.5).sum()).square().mean()
            return loss + torch.rand(()) if leaves and way == "at the end" else loss

        return loss_of

    step = run_traced(make, replays=8, steps=28)
    assert step.stats["departures"] == 1 and step.stats["plans"] == 2 and not step.stats["warnings"]


def test_traced_step_leaves_after_a_state_was_put_back():
    def make():
        def loss_of(model, x, i):
            start = torch.get_rng_state()
            first = functional.dropout(model(x), 0.5)
            between = torch.get_rng_state()
            torch.set_rng_state(start)
            second = functional.dropout(model(x), 0.5)
            if i in (8, 9):
                second = second.sin()
            torch.set_rng_state(between)
            return (first * second).square().mean() + torch.rand(())

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_puts_another_state_back():
    def make():
        def loss_of(model, x, i):
            start = torch.get_rng_state()
            first = functional.dropout(model(x), 0.5)
            between = torch.get_rng_state()
            second = functional.dropout(model(x), 0.5)
            torch.set_rng_state(between if i < 8 else start)
            return (first * second).square().mean() + functional.dropout(x, 0.5).sum()

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_seeds_at_its_end():
    def make():
        def loss_of(model, x, i):
            loss = dropped(model, x)
            if i >= 8:
                torch.manual_seed(i)
            return loss

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_reads_between_its_draws():
    def make():
        def loss_of(model, x, i):
            start = torch.get_rng_state()
            first = dropped(model, x)
            scale = 2.0 if first.item() > 0 else 1.0
            torch.set_rng_state(start)
            second = dropped(model, x)
            return (scale * second).cos() if i == 9 else scale * second + torch.rand(())

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_makes_its_generator():
    def make():
        def loss_of(model, x, i):
            generator = torch.Generator().manual_seed(11 if i < 8 else 12)
            loss = dropped(model, x + torch.randn(5, 8, generator=generator))
            if i == 6:
                loss = loss.sin()
            return loss + torch.rand((), generator=generator)

        return loss_of

    run_traced(make, replays=1)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_seed_of_a_generator_that_the_step_makes_is_an_input(mode):
    """Mixup and noise by seed: another one in every step."""
    torch.manual_seed(0)
    model, count = nn.Linear(8, 4), itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @stepc.accelerate(config=stepc.Config(mode=mode))
    def step(x):
        generator = torch.Generator().manual_seed(next(count))
        rows, share = torch.randperm(5, generator=generator), torch.rand(1, generator=generator)
        noise = torch.empty(5, 8).normal_(0, 0.1, generator=generator)
        mixed = share * x + (1 - share) * x[rows] + noise
        loss = model(mixed).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return mixed, torch.randint(100, (2,), generator=generator)

    for i in range(14):
        generator, x = torch.Generator().manual_seed(i), make_batch(i)
        mixed, numbers = step(x)
        rows, share = torch.randperm(5, generator=generator), torch.rand(1, generator=generator)
        noise = torch.empty(5, 8).normal_(0, 0.1, generator=generator)
        torch.testing.assert_close(mixed, share * x + (1 - share) * x[rows] + noise, rtol=0, atol=0 if mode == "exact" else 1e-6)
        assert torch.equal(numbers, torch.randint(100, (2,), generator=generator))
    assert step.stats["replays"] >= 9 and step.stats["departures"] == 0 and not step.stats["warnings"], step.stats


def test_mixup_by_seed_trains_as_eager():
    def build():
        count = itertools.count()

        def loss_of(model, x):
            generator = torch.Generator().manual_seed(next(count))
            share = torch.empty(5, 1).uniform_(generator=generator)
            return functional.dropout(model(share * x + (1 - share) * x[torch.randperm(5, generator=generator)])).square().mean()

        return train(nn.Sequential(Block(), Block()), loss_of)

    run_twins(build, make_batch)


def test_traced_checkpoint_that_the_step_leaves():
    def make():
        def loss_of(model, x, i):
            hidden = checkpoint(model, x, use_reentrant=False)
            return hidden.square().mean() if i != 8 else hidden.sin().mean()

        return loss_of

    run_traced(make, replays=1)


def test_traced_step_samples():
    def make():
        def loss_of(model, x, i):
            rows = torch.multinomial(functional.softmax(model(x).detach().sum(1), 0), 3)
            loss = functional.dropout(model(x)[rows], 0.5).square().mean()
            return loss if i != 8 else loss.sin()

        return loss_of

    run_traced(make, replays=1)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_seeds_that_change_every_step_are_named_and_given_up_soon(mode):
    torch.manual_seed(0)
    model, count = nn.Linear(4, 2), itertools.count(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @stepc.accelerate(config=stepc.Config(mode=mode))
    def step(x):
        torch.manual_seed(next(count))
        noise = torch.randn(x.shape)
        loss = model(x + noise).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return noise

    for i in range(1, 31):
        assert torch.equal(step(torch.ones(3, 4)), torch.randn(3, 4, generator=torch.Generator().manual_seed(i)))
    assert step.stats["departures"] <= 4 and step.stats["eager_calls"] >= 15, step.stats
    assert len(step.stats["warnings"]) == 1 and "a seed that changes from step to step" in step.stats["warnings"][0]
