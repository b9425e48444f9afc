"""The loop unchanged: `model, optimizer = stepc.accelerate(model, optimizer)`, and everything between as written.

A loop is a generator that yields what it sees in every step; it runs once over an eager twin and once over an
accelerated one, step by step, and all that `harness.state_leaves` knows is compared after each.
"""

import queue
import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepc
from harness import Training, Twin, assert_replayed, assert_same, decay, leaves, source_of, state_leaves
from models import MODELS, enable_checkpointing
from stepc.watch.bytecode import why_unwatched

ROWS, BATCH_SIZE = 72, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


def build(module_type=Net, optimizer_type=torch.optim.AdamW):
    model = module_type()
    optimizer = optimizer_type(model.parameters(), lr=1e-2)
    return Training(None, [model], [optimizer], [decay(optimizer)])


def load(shuffle=False):
    source = source_of(0)
    rows = TensorDataset(torch.randn(ROWS, 6, generator=source), torch.randint(4, (ROWS,), generator=source))
    return DataLoader(rows, BATCH_SIZE, shuffle=shuffle, generator=source_of(1))


class Loop:
    """One twin's loop: the generator, its model and the random state that goes with it."""

    def __init__(self, build, loop, load, config):
        self.twin = Twin(build, lambda training: None)
        training = self.twin.training
        (model,), (optimizer,), loader = training.modules, training.optimizers, load()
        if config is not None:
            model, optimizer = stepc.accelerate(model, optimizer, config=config)
            loader = stepc.AsyncLoader(loader, next(model.parameters()).device)
        self.model = model
        self.steps = loop(model, optimizer, training.schedulers[0], loader)

    def advance(self):
        with self.twin.turn():
            seen = next(self.steps, None)
        return seen, list(state_leaves(self.twin.training))


def run_loops(loop, build=build, load=load, replays=5, config=None):
    """Runs both loops to their end and returns the accelerated model."""
    config = config or stepc.Config(mode="exact", verify="first")
    eager, accelerated = Loop(build, loop, load, None), Loop(build, loop, load, config)
    step = 0
    while True:
        (expected, expected_state), (seen, state) = eager.advance(), accelerated.advance()
        assert_same(leaves(expected), leaves(seen), f"step {step}")
        assert_same(expected_state, state, f"state after step {step}")
        if expected is None:
            break
        step += 1
    assert_replayed(stepc.stats(accelerated.model), replays)
    return accelerated.model


def plain(model, optimizer, scheduler, loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield loss.detach()


def accumulating(model, optimizer, scheduler, loader):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        if number % 2:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        yield loss.item()


def clipping(model, optimizer, scheduler, loader):
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y) + 1e-3 * logits.square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        yield {"loss": loss.detach(), "norm": norm, "rate": optimizer.param_groups[0]["lr"]}


def evaluating(model, optimizer, scheduler, loader):
    held_out = torch.randn(10, 6, generator=source_of(9))
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        seen = [loss.detach()]
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                seen.append(model(held_out).softmax(-1))
            model.train()
        yield seen


def logging_much(model, optimizer, scheduler, loader):
    """Looks at everything there is between the three marks."""
    for number, (x, y) in enumerate(loader):
        logits = model(x)
        accuracy = (logits.argmax(-1) == y).float().mean().item()
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        gradients = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
        if gradients["layers.0.weight"] > 0.3:  # a float branch: the loop's own, so as written
            for parameter in model.parameters():
                parameter.grad.mul_(0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        state = {name: value.sum() for name, value in model.state_dict().items()}
        yield number, accuracy, loss.item(), gradients, state, len(optimizer.state_dict()["state"])


def two_losses(model, optimizer, scheduler, loader):
    """The forward segment runs twice before there is a backward, as contrastive training does."""
    for x, y in loader:
        first, second = model(x), model(x + 0.1)
        loss = nn.functional.cross_entropy(first, y) + (first - second).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield loss.detach()


def skipping(model, optimizer, scheduler, loader):
    """Some outputs never see a backward, and some updates are left out."""
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if number % 5 == 4:
            yield loss.detach()
            continue
        loss.backward()
        if number % 7 != 6:
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield loss.detach()


@pytest.mark.parametrize("loop", [plain, accumulating, clipping, evaluating, logging_much], ids=lambda loop: loop.__name__)
def test_loop_is_bit_equal(loop):
    run_loops(loop)


@pytest.mark.parametrize("loop", [two_losses, skipping], ids=lambda loop: loop.__name__)
def test_unusual_loops_are_bit_equal(loop):
    run_loops(loop, replays=3)


def test_loop_with_shuffled_batches_of_which_the_last_is_short():
    def load_uneven():
        source = source_of(0)
        rows = TensorDataset(torch.randn(30, 6, generator=source), torch.randint(4, (30,), generator=source))
        return DataLoader(rows, BATCH_SIZE, shuffle=True, generator=source_of(2))

    def epochs(model, optimizer, scheduler, loader):
        for _ in range(3):
            yield from plain(model, optimizer, scheduler, loader)

    run_loops(epochs, load=load_uneven)


@pytest.mark.parametrize("optimizer_type", [torch.optim.SGD, torch.optim.RAdam, torch.optim.Adagrad])
def test_loop_with_other_optimizers(optimizer_type):
    run_loops(clipping, build=lambda: build(optimizer_type=optimizer_type))


class Dictionaries:
    """Batches as transformers' models want them."""

    def __init__(self, model, masked):
        self.batches = [model.batch(source_of(i), masked) for i in range(12)]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def language_loop(model, optimizer, scheduler, loader):
    for batch in loader:
        output = model(**batch)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield output.loss.detach(), output.logits.detach()


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bert"])
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_models_of_transformers_in_a_loop(name, checkpointed):
    model = MODELS[name]

    def build_model():
        module = model.build().train()
        if checkpointed:
            enable_checkpointing(module)
        return module

    run_loops(language_loop, build=lambda: build(build_model), load=lambda: Dictionaries(model, True))


def test_bf16_by_config_trains_an_unmodified_model():
    """`precision="bf16"` is autocast around the model's forward, and nothing else."""

    class Autocast(Net):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    eager = Loop(lambda: build(Autocast), plain, load, None)
    config = stepc.Config(mode="exact", verify="first", precision="bf16")
    accelerated = Loop(build, plain, load, config)
    for step in range(ROWS // BATCH_SIZE):
        (expected, expected_state), (seen, state) = eager.advance(), accelerated.advance()
        assert_same(leaves(expected), leaves(seen), f"step {step}")
        assert_same(expected_state, state, f"state after step {step}")
    assert_replayed(stepc.stats(accelerated.model), 5)
    assert all(parameter.dtype == torch.float32 for parameter in accelerated.model.parameters())


def test_state_dict_has_the_names_of_the_unmodified_model():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = list(model.state_dict())
    fast, fast_optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
    assert list(fast.state_dict()) == names
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert isinstance(fast, nn.Module) and isinstance(fast_optimizer, torch.optim.Optimizer)
    assert fast_optimizer.state_dict() == optimizer.state_dict()


class _Cached(dict):
    """A data set's, which holds what it has decoded; another entry every time."""

    def put(self, one):
        self[len(self) % 8] = one

    def get(self):
        return self.pop(next(iter(self)))


@pytest.mark.parametrize("holder", [queue.Queue, _Cached])
def test_what_another_thread_makes_is_not_kept_by_the_model(holder):
    """A loader that is ahead, all the time; of rows of the data, and of what it makes of them."""
    ahead, ends, interval = holder(), threading.Event(), sys.getswitchinterval()
    rows = torch.ones(8, 3)
    for _ in range(4):
        ahead.put([torch.ones(3), rows[0]])

    def load_ahead():
        while not ends.is_set():
            ahead.put([torch.ones(3), rows[1]])
            ahead.get()

    thread = threading.Thread(target=load_ahead)
    thread.start()
    sys.setswitchinterval(1e-5)  # in every forward pass
    try:
        model = run_loops(plain, replays=5)
    finally:
        sys.setswitchinterval(interval)
        ends.set()
        thread.join()
    assert not any("keeps a tensor" in warning for warning in stepc.stats(model)["warnings"])


def test_hook_of_a_module_that_comes_late_runs_from_then_on():
    """Though the model has been replayed before."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact"))
    counted = []
    for i in range(14):
        if i == 8:
            assert stepc.stats(model)["replays"] > 0
            hook = model[0].register_forward_hook(lambda _, inputs, output: counted.append(i) or output * 0)
        if i == 12:
            hook.remove()
        outputs = model(torch.randn(5, 6, generator=source_of(i)))
        assert outputs.std(0).max().item() < 1e-6 if 8 <= i < 12 else outputs.std(0).max().item() > 1e-3
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counted == [8, 9, 10, 11]


def test_async_loader_gives_the_same_batches():
    """In order, every one, again in the next epoch, and an error of the loader is the caller's."""
    loader = load()
    fast = stepc.AsyncLoader(load(), prefetch=3)
    assert len(fast) == len(loader)
    for _ in range(2):
        for expected, seen in zip(loader, fast, strict=True):
            assert_same(leaves(expected), leaves(seen), "batch")

    class Broken:
        def __iter__(self):
            yield torch.zeros(2)
            raise ValueError("a torn file")

    seen = []
    with pytest.raises(ValueError, match="a torn file"):
        for batch in stepc.AsyncLoader(Broken(), torch.device("cpu")):
            seen.append(batch)
    assert len(seen) == 1


def test_async_loader_left_early():
    """A loop that breaks leaves no thread behind that goes on loading."""
    loaded = []

    class Endless:
        def __iter__(self):
            while True:
                loaded.append(1)
                yield torch.zeros(2)

    for number, _ in enumerate(stepc.AsyncLoader(Endless(), torch.device("cpu"))):
        if number == 3:
            break
    assert len(loaded) < 100


class Features(nn.Module):
    """Returns what its other result is computed from."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.scale = nn.Linear(6, 8), nn.Linear(8, 4), 1.0

    def forward(self, x):
        hidden = self.body(x).tanh() * self.scale
        return self.head(hidden), hidden


def kept(loss, hidden):
    hidden.retain_grad()
    loss.backward()


def hooked(loss, hidden):
    hidden.register_hook(lambda gradient: gradient / 2)
    (loss + hidden.mean()).backward()


def asked_for(loss, hidden):
    torch.autograd.grad(loss + hidden.mean(), hidden)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("ask", [kept, hooked, asked_for])
def test_gradient_of_a_feature_that_is_asked_for_late(ask, mode):
    net, sgd = accelerated_features(mode)
    for _ in range(6):
        logits, hidden = net(torch.randn(4, 6))
        (logits.mean() + hidden.square().mean()).backward()
    assert stepc.stats(net)["replays"] > 1
    logits, hidden = net(torch.randn(4, 6))
    with pytest.raises(stepc.UserError, match="gradient of an output that another is computed from is .*Ask from the first pass"):
        ask(logits.mean(), hidden)
    before = stepc.stats(net)["eager_calls"]
    logits, hidden = net(torch.randn(4, 6))
    ask(logits.mean(), hidden)
    assert stepc.stats(net)["eager_calls"] == before + 1


def accelerated_features(mode="fast"):
    torch.manual_seed(0)
    net = Features()
    return stepc.accelerate(net, torch.optim.SGD(net.parameters(), lr=0.1), config=stepc.Config(mode=mode))


def run_features(net, steps, before=lambda i: None, backward=lambda i: True):
    for i in range(steps):
        before(i)
        logits, _ = net(torch.randn(4, 6))
        if backward(i):
            logits.mean().backward()
    return stepc.stats(net)


def test_value_that_changes_at_every_pass_is_given_to_one_plan():
    net, _ = accelerated_features()
    stats = run_features(net, 60, before=lambda i: setattr(net, "scale", 1 - i / 100))
    assert stats["replays"] > 45 and stats["plans"] == 1 and not stats["warnings"]
    assert (why_unwatched() or "reads self.scale, which changes from step to step") in stats["traced"]


def test_value_that_changes_now_and_then_is_a_plan_each_time():
    net, _ = accelerated_features()
    stats = run_features(net, 120, before=lambda i: setattr(net, "scale", 1 - i // 30 / 10))
    assert stats["replays"] > 90 and stats["plans"] == 4 and stats["failed_checks"] == 0 and not stats["warnings"]


def test_recordings_without_a_backward_pass_end():
    net, _ = accelerated_features()
    stats = run_features(net, 100, backward=lambda i: i % 2 == 0)
    (warning,) = stats["warnings"]
    assert "no backward pass came" in warning


def test_number_that_decides_is_named_and_followed():
    class Decides(Features):
        def forward(self, x):
            logits, hidden = super().forward(x)
            level = hidden.detach().mean().item()
            return (logits if level < 9 else -logits), hidden

    torch.manual_seed(0)
    net = Decides()
    net, _ = stepc.accelerate(net, torch.optim.SGD(net.parameters(), lr=0.1))
    stats = run_features(net, 30)
    assert stats["replays"] > 15 and not stats["warnings"]
    assert (why_unwatched() or "reads a float that changes from step to step on the host") in stats["traced"]
