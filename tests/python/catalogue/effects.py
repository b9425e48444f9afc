"""Programs whose step does something besides computing tensors: it happens at every step, exactly as in eager."""

import collections
import contextvars
import heapq
import io
import itertools
import logging
import random
import types
import warnings

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR

from catalogue.case import case
from catalogue.parts import STEPS, adam, batches, data, descend, fit, mlp, python_module, sgd

# ---- counters and containers


@case
def counter_in_a_closure(accelerate):
    model, count = mlp(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        nonlocal count
        count += 1
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, count


@case
def counter_of_a_trainer(accelerate):
    class Trainer:
        def __init__(self):
            self.model, self.steps_done, self.log = mlp(), 0, {"seen": 0}
            self.optimizer = sgd(self.model)

        def step(self, x, y):
            self.steps_done += 1
            self.log["seen"] += len(x)
            return descend(cross_entropy(self.model(x), y), self.optimizer)

    trainer = Trainer()
    step = accelerate(trainer.step)
    for _, x, y in batches():
        yield step(x, y), trainer.model, trainer.optimizer, trainer.steps_done, trainer.log


@case
def counter_of_a_class(accelerate):
    class Net(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            Net.calls += 1
            return self.layer(x)

    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches():
        yield step(x, y), model, optimizer, Net.calls


@case
def counter_in_forward(accelerate):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(8, 4), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x)

    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches():
        yield step(x, y), model, optimizer, model.calls


@case
def counter_in_another_module(accelerate):
    settings = python_module("calls = 0\ndef count():\n    global calls\n    calls += 1")
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        settings.count()
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, settings.calls


@case
def counter_in_a_hook(accelerate):
    model, calls = mlp(), collections.Counter()
    optimizer = sgd(model)
    model[0].register_forward_hook(lambda module, inputs, output: calls.update(["forward"]))
    model[0].weight.register_hook(lambda gradient: calls.update(["backward"]))
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, calls)


@case
def counter_in_an_autograd_function(accelerate):
    class Double(torch.autograd.Function):
        calls = [0, 0]

        @staticmethod
        def forward(ctx, x):
            Double.calls[0] += 1
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            Double.calls[1] += 1
            return gradient * 2

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(Double.apply(model(x)), y), optimizer))
    yield from fit(step, model, optimizer, Double.calls)


@case
def list_of_losses(accelerate):
    model, losses = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        losses.append(loss.item())
        return loss

    yield from fit(step, model, optimizer, losses)


@case
def list_of_detached_losses(accelerate):
    model, losses = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        losses.append(loss.detach())
        return loss

    yield from fit(step, model, optimizer, losses)


@case
def window_of_losses(accelerate):
    model, window = mlp(), collections.deque(maxlen=4)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        window.append(loss.item())
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, list(window)


@case
def history_by_step(accelerate):
    model, history = mlp(), {}
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        history[len(history)] = {"loss": loss.item(), "right": int((logits.argmax(-1) == y).sum())}
        return loss

    yield from fit(step, model, optimizer, history)


@case
def set_of_classes_seen(accelerate):
    model, seen = mlp(), set()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        seen.update(y.tolist()[:2])
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, sorted(seen)


@case
def best_losses_in_a_heap(accelerate):
    model, best = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        heapq.heappush(best, round(loss.item(), 3))
        if len(best) > 3:
            heapq.heappop(best)
        return loss

    yield from fit(step, model, optimizer, best)


@case
def last_output_kept_on_the_trainer(accelerate):
    model, last = mlp(), types.SimpleNamespace(logits=None)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        last.logits = logits.detach()
        return descend(cross_entropy(logits, y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, last.logits


@case
def feature_kept_by_a_hook(accelerate):
    model, features = mlp(), {}
    optimizer = sgd(model)
    model[1].register_forward_hook(lambda module, inputs, output: features.update(tanh=output.detach()))
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer, features)


@case
def attribute_set_on_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        model[0].weight.times_used = getattr(model[0].weight, "times_used", 0) + 1
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, model[0].weight.times_used


@case
def context_variable_set(accelerate):
    model, count = mlp(), contextvars.ContextVar("count", default=0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        count.set(count.get() + 1)
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, count.get()


# ---- NumPy and Python arithmetic


@case
def running_mean_in_python(accelerate):
    model, mean = mlp(), 0.0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        nonlocal mean
        loss = descend(cross_entropy(model(x), y), optimizer)
        mean = 0.9 * mean + 0.1 * loss.item()
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, mean


@case
def meter_class(accelerate):
    class Meter:
        def __init__(self):
            self.sum, self.count = 0.0, 0

        def update(self, value, n):
            self.sum, self.count = self.sum + value * n, self.count + n

    model, meter = mlp(), Meter()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        meter.update(loss.item(), len(x))
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, vars(meter)


@case
def array_counted_in_place(accelerate):
    model, counts = mlp(), numpy.zeros(4)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        counts[0] += 1
        numpy.add(counts, 0.5, out=counts)
        return descend(cross_entropy(model(x), y), optimizer)

    yield from fit(step, model, optimizer, counts)


@case
def array_of_predictions(accelerate):
    model, confusion = mlp(), numpy.zeros((4, 4), dtype=numpy.int64)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        numpy.add.at(confusion, (y.numpy(), logits.detach().argmax(-1).numpy()), 1)
        return descend(cross_entropy(logits, y), optimizer)

    yield from fit(step, model, optimizer, confusion)


@case
def row_of_a_log(accelerate):
    model, log, row = mlp(), numpy.zeros((STEPS, 2)), iter(range(STEPS))
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        log[next(row)] = loss.item(), optimizer.param_groups[0]["lr"]
        return loss

    yield from fit(step, model, optimizer, log)


# ---- iterators


@case
def itertools_count(accelerate):
    model, numbers = mlp(), itertools.count()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        next(numbers)
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, repr(numbers)


@case
def weights_from_a_cycle(accelerate):
    model, weights = mlp(), itertools.cycle([1.0, 0.5, 0.25])
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * next(weights), optimizer))
    yield from fit(step, model, optimizer)


@case
def weights_from_a_generator(accelerate):
    def decaying():
        weight = 1.0
        while True:
            yield weight
            weight *= 0.9

    model, weights = mlp(), decaying()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * next(weights), optimizer))
    for _, x, y in batches():
        yield step(x, y), model, optimizer, weights.gi_frame.f_locals["weight"]


@case
def batches_from_an_iterator(accelerate):
    """The step fetches its batch itself and starts over at the end of the data."""
    model, rows = mlp(), [data(seed=seed) for seed in range(5)]
    optimizer, loader = sgd(model), iter(rows)

    @accelerate
    def step():
        nonlocal loader
        try:
            x, y = next(loader)
        except StopIteration:
            loader = iter(rows)
            x, y = next(loader)
        return descend(cross_entropy(model(x), y), optimizer)

    for _ in range(STEPS):
        yield step(), model, optimizer, loader.__length_hint__()


@case
def large_batches_from_an_iterator(accelerate):
    """More than is kept as a constant, and gone after the step."""
    model = mlp()
    optimizer = sgd(model)
    arrays = [(x.repeat(1, 5000).numpy(), y.numpy()) for _, x, y in batches()]
    loader = ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in arrays)

    @accelerate
    def step():
        x, y = next(loader)
        return descend(cross_entropy(model(x[:, :8].contiguous()), y), optimizer)

    for _ in range(STEPS):
        yield step(), model, optimizer


# ---- what is said


@case
def printed_loss(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        print(f"loss {loss.item():.4f}")
        return loss

    yield from fit(step, model, optimizer)


@case
def printed_now_and_then(accelerate):
    model, count = mlp(), itertools.count(1)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        if (i := next(count)) % 3 == 0:
            print("step", i, "lr", optimizer.param_groups[0]["lr"])
        return loss

    yield from fit(step, model, optimizer)


@case
def logged_loss(accelerate):
    model, log = mlp(), logging.getLogger("program")
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        log.info("loss %.4f after %d rows", loss.item(), len(x))
        return loss

    yield from fit(step, model, optimizer)


@case
def logged_in_forward(accelerate):
    log = logging.getLogger("program.model")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            log.info("forward of %s", tuple(x.shape))
            return self.layer(x)

    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    yield from fit(step, model, optimizer)


@case
def written_to_a_file(accelerate):
    model, file = mlp(), io.StringIO()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        file.write(f"{loss.item():.3f}\n")
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, file.getvalue()


@case
def progress_bar(accelerate):
    class Bar:
        def __init__(self):
            self.n, self.postfix = 0, ""

        def update(self, n=1):
            self.n += n

        def set_postfix(self, **values):
            self.postfix = ", ".join(f"{name}={value:.3f}" for name, value in values.items())

    model, bar = mlp(), Bar()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        bar.update()
        bar.set_postfix(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, bar.n, bar.postfix


@case
def warnings_counted(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        warnings.warn("still the old loss", UserWarning, stacklevel=1)
        return descend(cross_entropy(model(x), y), optimizer)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _, x, y in batches():
            yield step(x, y), model, optimizer, sum("old loss" in str(warning.message) for warning in caught)


@case
def callbacks(accelerate):
    class History:
        def __init__(self):
            self.events = []

        def on_step_begin(self, number):
            self.events.append(("begin", number))

        def on_step_end(self, number, logs):
            self.events.append(("end", number, logs["loss"]))

    class Trainer:
        def __init__(self, callbacks):
            self.model, self.number, self.callbacks = mlp(), 0, callbacks
            self.optimizer = sgd(self.model)

        def step(self, x, y):
            self.number += 1
            for callback in self.callbacks:
                callback.on_step_begin(self.number)
            loss = descend(cross_entropy(self.model(x), y), self.optimizer)
            for callback in self.callbacks:
                callback.on_step_end(self.number, {"loss": loss.item()})
            return loss

    history = History()
    trainer = Trainer([history])
    step = accelerate(trainer.step)
    yield from fit(step, trainer.model, trainer.optimizer, history.events)


# ---- schedulers and generators


@case
def scheduler_inside(accelerate):
    model = mlp()
    optimizer = sgd(model)
    scheduler = CosineAnnealingLR(optimizer, STEPS)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step()
        return loss

    yield from fit(step, model, optimizer, scheduler)


@case
def two_schedulers_inside(accelerate):
    model = mlp()
    optimizer = adam(model)
    schedulers = [LinearLR(optimizer, 0.1, total_iters=6), CosineAnnealingLR(optimizer, STEPS)]

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        for scheduler in schedulers:
            scheduler.step()
        return loss

    yield from fit(step, model, optimizer, *schedulers)


@case
def one_cycle_with_momentum_inside(accelerate):
    model = mlp()
    optimizer = sgd(model)
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS + 1)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step()
        return loss, scheduler.get_last_lr()[0]

    yield from fit(step, model, optimizer, scheduler)


@case
def scheduler_every_other_step(accelerate):
    model, count = mlp(), itertools.count()
    optimizer = sgd(model)
    scheduler = CosineAnnealingLR(optimizer, STEPS)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        if next(count) % 2:
            scheduler.step()
        return loss

    yield from fit(step, model, optimizer, scheduler)


@case
def python_random_in_the_step(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * (0.5 + random.random()), optimizer))
    yield from fit(step, model, optimizer)


@case
def numpy_random_in_the_step(accelerate):
    model, source = mlp(), numpy.random.default_rng(0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        mixed = float(source.beta(0.4, 0.4))
        x = mixed * x + (1 - mixed) * x.flip(0)
        return descend(mixed * cross_entropy(model(x), y) + (1 - mixed) * cross_entropy(model(x), y.flip(0)), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, repr(source.bit_generator.state)


@case
def shuffled_list(accelerate):
    model, order = mlp(), list(range(8))
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        random.shuffle(order)
        rows = torch.tensor(order)
        return descend(cross_entropy(model(x[rows]), y[rows]), optimizer)

    yield from fit(step, model, optimizer, order)


@case
def layer_dropped_by_python(accelerate):
    layer, head, source = nn.Linear(8, 8), nn.Linear(8, 4), random.Random(3)
    optimizer = sgd(layer, head)

    @accelerate
    def step(x, y):
        if source.random() < 0.5:
            x = x + layer(x)
        return descend(cross_entropy(head(x), y), optimizer)

    for _, x, y in batches(18):
        yield step(x, y), layer, head, optimizer, repr(source.getstate())


@case(draws=True)
def own_torch_generator(accelerate):
    model, noise = mlp(), torch.Generator().manual_seed(1)
    optimizer = sgd(model)
    step = accelerate(
        lambda x, y: descend(cross_entropy(model(x + 0.1 * torch.randn(x.shape, generator=noise)), y), optimizer))
    yield from fit(step, model, optimizer, noise)


@case
def accumulation_counted_in_python(accelerate):
    model, count = mlp(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        nonlocal count
        loss = cross_entropy(model(x), y) / 2
        loss.backward()
        count += 1
        if count % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    for _, x, y in batches():
        yield step(x, y), model, optimizer, count


@case
def moving_average_of_weights(accelerate):
    model, shadow = mlp(), {}
    optimizer = sgd(model)
    shadow.update((name, value.clone()) for name, value in model.state_dict().items())

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                shadow[name] = 0.9 * shadow[name] + 0.1 * value
        return loss

    yield from fit(step, model, optimizer, shadow)


@case
def temperature_that_decays(accelerate):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.temperature = nn.Linear(8, 4), 2.0

        def forward(self, x):
            self.temperature = max(0.5, self.temperature * 0.9)
            return self.layer(x) / self.temperature

    model = Net()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches():
        yield step(x, y), model, optimizer, model.temperature


@case
def latest_outputs_in_a_deque(accelerate):
    """Tensors that one step makes and a later one reads, at no place that has a name."""
    model, latest = mlp(), collections.deque((torch.zeros(8, 4) for _ in range(3)), maxlen=3)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        output = model(x)
        distance = (output - torch.stack(list(latest)).mean(0)).square().mean()
        latest.append(output.detach())
        return descend(cross_entropy(output, y) + 0.1 * distance, optimizer)

    for _, x, y in batches():
        yield step(x, y), model, list(latest)


@case
def queue_of_keys(accelerate):
    """A memory bank, written from a place on that Python counts."""

    class Contrast:
        def __init__(self):
            self.model, self.keys, self.next = mlp(), torch.zeros(4, 24), 0
            self.optimizer = sgd(self.model)

        def step(self, x, y):
            output = self.model(x)
            loss = cross_entropy(output, y) + 0.1 * (output @ self.keys.clone()).square().mean()
            descend(loss, self.optimizer)
            with torch.no_grad():
                self.keys[:, self.next : self.next + len(x)] = output.detach().T
            self.next = (self.next + len(x)) % self.keys.shape[1]
            return loss

    contrast = Contrast()
    step = accelerate(contrast.step)
    for _, x, y in batches(2 * STEPS):
        yield step(x, y), contrast.model, contrast.keys, contrast.next


@case
def schedulers_in_sequence_inside(accelerate):
    model = mlp()
    optimizer = sgd(model)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [4])

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step()
        return loss

    yield from fit(step, model, optimizer, scheduler, warm, decay)


@case
def schedulers_in_a_chain_inside(accelerate):
    model = mlp()
    optimizer = sgd(model)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    scheduler = torch.optim.lr_scheduler.ChainedScheduler(parts)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        scheduler.step()
        return loss

    yield from fit(step, model, optimizer, *parts)


@case(draws=True)
def seed_set_aside_before_a_branch(accelerate):
    model, count = mlp(), [0]
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        count[0] += 1
        with torch.random.fork_rng():
            torch.manual_seed(7)
            x = x + 0.1 * torch.rand(x.shape)
        x = torch.tanh(x) if count[0] % 3 else x.flip(0)
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches(20):
        yield step(x, y), model, optimizer, count
