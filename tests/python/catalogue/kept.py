"""Programs that look at what is still alive: batches, results and finished runs are let go as in eager."""

import gc
import threading
import weakref

import torch
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import STEPS, adam, batches, data, descend, mlp, sgd


def alive(references):
    """Which objects are still there. The programs make no cycles, so nothing waits for the garbage collector."""
    return [number for number, reference in enumerate(references) if reference() is not None]


@case
def tensors_of_batches(accelerate):
    model, references = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches():
        references.append(weakref.ref(x))
        step(x, y)
        del x, y
        yield None, model, alive(references)


@case
def batch_objects(accelerate):
    class Batch:
        def __init__(self, x, y):
            self.x, self.y = x, y

    model, references = mlp(), []
    optimizer = sgd(model)
    step = accelerate(lambda batch: descend(cross_entropy(model(batch.x), batch.y), optimizer))
    for _, x, y in batches():
        batch = Batch(x, y)
        references.append(weakref.ref(batch))
        step(batch)
        del batch, x, y
        yield None, model, alive(references)


@case
def results(accelerate):
    model, references = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return descend(cross_entropy(logits, y), optimizer).detach(), logits.detach()

    for _, x, y in batches():
        loss, logits = step(x, y)
        references += [weakref.ref(loss), weakref.ref(logits)]
        del loss, logits
        yield None, model, alive(references)


@case
def result_objects(accelerate):
    class Result:
        def __init__(self, logits):
            self.logits = logits

    model, references = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        descend(cross_entropy(logits, y), optimizer)
        return Result(logits.detach())

    for _, x, y in batches():
        result = step(x, y)
        references.append(weakref.ref(result))
        del result
        yield None, model, alive(references)


@case
def activations_between_steps(accelerate):
    """What the forward pass made is gone when the step is over."""
    model, references = mlp(), []
    optimizer = sgd(model)
    model[1].register_forward_hook(lambda module, inputs, output: references.append(weakref.ref(output)))
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).detach())
    for _, x, y in batches():
        step(x, y)
        yield None, model, len(references), alive(references)


@case
def model_replaced(accelerate):
    """The model of the last fold is gone when the next one is trained."""
    holder, references = {}, []
    step = accelerate(lambda x, y: descend(cross_entropy(holder["model"](x), y), holder["optimizer"]).detach())
    for i, x, y in batches(16):
        if i % 8 == 0:
            holder["model"] = mlp()
            holder["optimizer"] = adam(holder["model"])
            references.append(weakref.ref(holder["model"]))
        loss = step(x, y)
        yield loss, holder["model"], alive(references) if i in (7, 15) else None


def finished_run(accelerate, references):
    class Trainer:
        def __init__(self):
            self.model = mlp()
            self.optimizer = sgd(self.model)
            self.fast = accelerate(self.step)

        def step(self, x, y):
            return descend(cross_entropy(self.model(x), y), self.optimizer).detach()

    trainer = Trainer()
    references += [weakref.ref(one) for one in (trainer, trainer.model, trainer.optimizer)]
    for _, x, y in batches():
        yield trainer.fast(x, y)


@case
def finished_trainer(accelerate):
    references = []
    yield from finished_run(accelerate, references)
    gc.collect()  # a trainer that holds its own accelerated method is a cycle
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).detach())
    for _, x, y in batches():
        yield step(x, y), alive(references)


@case
def finished_loop(accelerate):
    references = []
    for run in range(2):
        model = mlp()
        model, optimizer = accelerate(model, sgd(model))
        references += [weakref.ref(model), weakref.ref(optimizer)]
        for _, x, y in batches():
            yield descend(cross_entropy(model(x), y), optimizer).detach(), alive(references)
        del model, optimizer
        gc.collect()


@case
def batches_of_a_loop(accelerate):
    model, references = mlp(), []
    model, optimizer = accelerate(model, sgd(model))
    for _, x, y in batches():
        references.append(weakref.ref(x))
        logits = model(x)
        references.append(weakref.ref(logits))
        descend(cross_entropy(logits, y), optimizer)
        del x, y, logits
        yield None, model, alive(references)


@case
def results_that_are_kept_are_not_written_to(accelerate):
    model, kept = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        return descend(cross_entropy(logits, y), optimizer), logits.detach(), logits.detach()[0]

    for _, x, y in batches():
        kept.append(step(x, y))
        yield kept[-1], model, [logits for _, logits, _ in kept], [row for _, _, row in kept]


@case
def parameters_looked_at_earlier(accelerate):
    """State dicts share memory with the model; clones do not."""
    model = mlp()
    optimizer, views, clones = sgd(model), None, []
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    views = model.state_dict()
    for i, x, y in batches():
        loss = step(x, y)
        clones.append(model[0].weight.detach().clone())
        yield loss, views, clones


# ---- threads


def in_threads(work, count):
    """What `work(number)` gave in threads that run at the same time."""
    found = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: work(n)}), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return [found.get(n, "raised or never ended") for n in range(count)]


@case
def one_step_from_two_threads(accelerate):
    """A step without state: whichever thread comes first, the results are the same."""
    model = mlp()

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return loss.detach(), [g.clone() for g in gradients]

    rows = [data(seed=seed) for seed in range(4)]
    for _ in range(STEPS):
        yield in_threads(lambda n: [step(*rows[n]), step(*rows[n + 2])], 2)


@case
def step_from_another_thread(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).detach())
    for i, x, y in batches():
        yield in_threads(lambda n: step(x, y), 1) if i >= 5 else step(x, y), model, optimizer


@case
def two_steps_in_two_threads(accelerate):
    models = [mlp(), mlp()]
    optimizers = [sgd(model) for model in models]

    def make(n):
        return accelerate(lambda x, y: descend(cross_entropy(models[n](x), y), optimizers[n]).detach())

    steps = [make(n) for n in range(2)]
    for _, x, y in batches():
        yield in_threads(lambda n: steps[n](x, y), 2), *models, *optimizers


@case
def work_beside_the_step(accelerate):
    """Another thread computes while the step runs: none of that is the step's."""
    model, other = mlp(), mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).detach())

    for _, x, y in batches():
        beside = lambda: [other(x).detach().square().sum() for _ in range(20)][-1]
        yield in_threads(lambda n: step(x, y) if n else beside(), 2), model, optimizer
