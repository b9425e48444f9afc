"""What may cut a step short or come beside it: exceptions, signals, threads, forked workers, a step inside a step.

Whatever happens, nothing stays half recorded: the next step is as eager's.
"""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stepc
from harness import Arguments, Training, decay, run_twins, source_of, train


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))


def make_batch(i):
    return torch.randn(8, 6, generator=source_of(i))


# ---- exceptions


def fail_in_forward(kind):
    raise kind


def run_out_of_memory():
    torch.empty(1 << 60, dtype=torch.uint8)


def interrupt():
    signal.raise_signal(signal.SIGINT)


TROUBLES = {
    "user_error": (lambda: fail_in_forward(ValueError("a bad sample")), ValueError),
    "shape_error": (lambda: torch.zeros(2) + torch.zeros(3), RuntimeError),
    "out_of_memory": (run_out_of_memory, RuntimeError),
    "simulated_out_of_memory": (lambda: fail_in_forward(torch.OutOfMemoryError("none left")), RuntimeError),
    "keyboard_interrupt": (interrupt, KeyboardInterrupt),
    "stop_iteration": (lambda: fail_in_forward(StopIteration("the end")), StopIteration),
}
PLACES = ("forward", "backward", "between", "update")


def build_with_trouble(trouble, place, optimizer_type=torch.optim.AdamW):
    """The step gets into trouble at `place` in the calls that an environment variable names; stepc cannot know it."""
    model = mlp()
    optimizer = optimizer_type(model.parameters(), lr=1e-2)

    def meet(here):
        if here == place and os.environ.get("STEP_TROUBLE") == "now":
            trouble()

    def step(x):
        hidden = model(x)
        meet("forward")
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: meet("backward"))
        loss = hidden.square().mean()
        loss.backward()
        meet("between")
        optimizer.step()
        meet("update")
        optimizer.zero_grad()
        return loss

    return Training(step, [model], [optimizer], [decay(optimizer)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_exceptions_while_recording(trouble, place, monkeypatch):
    """Two in a row, when one recording is already there. (Replayed calls run no Python: there is nothing to raise.)"""
    cause, kind = TROUBLES[trouble]

    def before(i, training):
        monkeypatch.setenv("STEP_TROUBLE", "now" if i in (1, 2) else "no")

    run_twins(lambda: build_with_trouble(cause, place), make_batch, steps=14, replays=5, raises=(kind,), before=before)


@pytest.mark.parametrize("optimizer_type, call", [(torch.optim.SGD, 0), (torch.optim.SGD, 1), (torch.optim.SGD, 2),
                                                  (torch.optim.AdamW, 2), (torch.optim.AdamW, 3)])
def test_one_exception_at_each_of_the_first_calls(optimizer_type, call, monkeypatch):
    """The last of them is the verified replay: after two recordings with SGD, after three with AdamW, which makes state."""

    def before(i, training):
        monkeypatch.setenv("STEP_TROUBLE", "now" if i == call else "no")

    build = lambda: build_with_trouble(TROUBLES["user_error"][0], "between", optimizer_type)
    run_twins(build, make_batch, steps=14, replays=5, raises=(ValueError,), before=before)


def test_exception_on_a_new_shape():
    """The plan of the old shape stays; the failed recording of the new one leaves nothing."""

    def build():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, fail=False):
            loss = model(x).square().mean()
            loss.backward()
            if fail:
                raise ValueError("a bad sample")
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)])

    def batch(i):
        return Arguments((make_batch(i)[: 4 if i in (8, 9) else 8],), {"fail": i == 8})

    run_twins(build, batch, steps=18, replays=5, raises=(ValueError,))


def test_the_exception_is_the_users_own():
    """Type, arguments and traceback are those of the step: the last frame is the line that raised."""

    class Odd(Exception):
        pass

    cause = Odd("first", 2)

    def train_step(x):
        raise cause

    step = stepc.accelerate(train_step, modules=[mlp()], optimizers=[], config=stepc.Config(mode="exact"))
    with pytest.raises(Odd) as caught:
        step(make_batch(0))
    assert caught.value is cause
    assert caught.traceback[-1].name == "train_step"


def test_signal_in_the_middle_of_replays():
    """A Ctrl-C that arrives while a plan runs is raised after the step, which is then whole."""
    model = mlp()
    training = train(model, lambda model, x: model(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))
    step = stepc.accelerate(training.step, config=stepc.Config(mode="exact"))
    for i in range(8):
        step(make_batch(i))
    replays = step.stats["replays"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            end = time.monotonic() + 30
            while time.monotonic() < end:
                step(make_batch(0))
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert step.stats["replays"] > replays
    before = model[0].weight.detach().clone()
    assert torch.isfinite(step(make_batch(0))) and not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("verify", ["first", "off"])
@pytest.mark.parametrize("at", range(1, 9))
def test_interrupt_in_an_optimizers_host_code(at, verify):
    """Recorded, verified or replayed: the program gets its KeyboardInterrupt, and the step has written nothing."""

    def build():
        torch.manual_seed(0)
        model, armed = mlp(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def interrupt(*_):
            if armed:
                armed.clear()
                raise KeyboardInterrupt

        optimizer.register_step_pre_hook(interrupt)

        def train_step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, optimizer, train_step, armed

    runs = []
    for accelerated in (False, True):
        model, optimizer, step, armed = build()
        if accelerated:
            step = stepc.accelerate(step, config=stepc.Config(mode="exact", verify=verify))
        for i in range(12):
            if i == at:
                before = [parameter.detach().clone() for parameter in model.parameters()]
                armed.append(True)
                with pytest.raises(KeyboardInterrupt):
                    step(make_batch(i))
                optimizer.zero_grad()
                assert all(map(torch.equal, before, model.parameters()))
            step(make_batch(i))
        runs.append(list(model.parameters()))
    assert all(map(torch.equal, *runs))
    assert step.stats["replays"] >= 2 and not step.stats["warnings"], step.stats


# ---- threads and processes


def test_two_threads_train_two_models():
    """Step by step at the same time; each equals the eager run that was made alone before."""
    steps = 14
    torch.set_num_threads(1)  # kernels may add in another order on other numbers of threads

    def build(seed):
        torch.manual_seed(seed)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def train_step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, train_step

    def expected(seed):
        model, train_step = build(seed)
        losses = [train_step(make_batch(seed * 100 + i)).detach() for i in range(steps)]
        return losses, [parameter.detach() for parameter in model.parameters()]

    wanted = {seed: expected(seed) for seed in (1, 2)}
    models = {seed: build(seed) for seed in (1, 2)}
    barrier, seen, errors = threading.Barrier(2, timeout=60), {}, []

    def work(seed):
        try:
            torch.set_num_threads(1)
            model, train_step = models[seed]
            step = stepc.accelerate(train_step, config=stepc.Config(mode="exact", verify="first"))
            losses = []
            for i in range(steps):
                barrier.wait()
                losses.append(step(make_batch(seed * 100 + i)))
            seen[seed] = losses, [parameter.detach() for parameter in model.parameters()], dict(step.stats)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for seed in (1, 2):
        losses, parameters, stats = seen[seed]
        assert all(torch.equal(a, b) for a, b in zip(losses, wanted[seed][0]))
        assert all(torch.equal(a, b) for a, b in zip(parameters, wanted[seed][1]))
        assert stats["replays"] >= 5 and not stats["warnings"], stats


def test_another_thread_works_with_tensors():
    """What a neighbour computes while a step is recorded or replayed is none of the step's business."""
    stop, done = threading.Event(), []

    def neighbour():
        total = torch.zeros(64, 64)
        while not stop.is_set():
            total = total + torch.ones(64, 64) @ torch.ones(64, 64)
            total = total / total.max()
            done.append(1)

    thread = threading.Thread(target=neighbour)
    thread.start()
    try:
        run_twins(lambda: build_with_trouble(None, None), make_batch, steps=30, replays=20)
    finally:
        stop.set()
        thread.join()
    assert done


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        row = torch.randn(6, generator=source_of(index))
        return row / row.norm()  # ordinary tensor work in the worker


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_data_loader_workers(start):
    """Workers are forked before, while and after plans are made; they inherit the recorder and must not use it."""
    batches = {}

    def load(epoch):
        loader = DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context=start, timeout=60)
        for number, batch in enumerate(loader):
            batches[epoch * 3 + number] = batch

    def make(i):
        if i not in batches:
            load(i // 3)
        return batches[i]

    run_twins(lambda: build_with_trouble(None, None), make, steps=12, replays=5)


def test_a_step_inside_a_forked_child():
    """A child process may go on training with its copy of the model; the parent's plan is not disturbed."""
    training = build_with_trouble(None, None)
    step = stepc.accelerate(training.step, config=stepc.Config(mode="exact"))
    torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
    for i in range(7):
        step(make_batch(i))
    child = os.fork()
    if child == 0:
        try:
            first = step(make_batch(7))
            os._exit(0 if torch.isfinite(first) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.isfinite(step(make_batch(7)))


# ---- nested


def test_an_accelerated_step_inside_another_is_part_of_it(caplog):
    training = build_with_trouble(None, None)
    inner = stepc.accelerate(training.step, modules=training.modules, optimizers=training.optimizers,
                             config=stepc.Config(mode="exact"))

    def outer_step(x):
        return inner(x) * 2

    outer = stepc.accelerate(outer_step, modules=training.modules, optimizers=training.optimizers,
                             config=stepc.Config(mode="exact"))
    with caplog.at_level("WARNING", "stepc"):
        for i in range(8):
            assert torch.isfinite(outer(make_batch(i)))
    assert [line for line in caplog.messages if "this call runs eagerly: it is called by another one" in line]
    assert outer.stats["replays"] + outer.stats["checks"] > 2
    assert torch.isfinite(inner(make_batch(0)))  # alone it is a step of its own, before and after


def test_accelerating_twice_is_refused():
    training = build_with_trouble(None, None)
    step = stepc.accelerate(training.step)
    with pytest.raises(stepc.UserError, match="already"):
        stepc.accelerate(step)
