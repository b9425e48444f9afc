"""Steps beside and on a CUDA device: plans are for the CPU, so what touches a device is eager's, bit by bit, with a line.

Without a device each test says [SKIP].
"""

import copy
import logging

import pytest
import torch
from torch import nn

import stepc

STEPS = 10

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="[SKIP] no CUDA device")


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """Eager itself must be the same twice."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Block(nn.Module):
    def __init__(self, width=64, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (one.view(batch, length, 4, width // 4).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + nn.functional.dropout(mixed, self.dropout, self.training)


class Decoder(nn.Module):
    def __init__(self, dropout=0.0, vocabulary=97, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model, ids):
    logits = model(ids)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def batches(device, count=STEPS):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(97, (4, 32), generator=generator).to(device) for _ in range(count)]


class Run:
    """A model, an optimizer, and what each step returned."""

    def __init__(self, device, dropout=0.0, dtype=None, **options):
        torch.manual_seed(0)
        self.model = Decoder(dropout).to(device, dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, **options)
        self.seen = []

    def update(self, loss):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self):
        tensors = [*self.model.state_dict().values(), *self.seen]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value)]
        return [tensor.detach().cpu() for tensor in tensors]


def assert_same(run, want):
    for number, (one, other) in enumerate(zip(run.state(), want.state(), strict=True)):
        assert torch.equal(one, other), number


def steps_of(run, accelerate, given, step):
    """What `step(run, batch)` does at each batch of `given`, the generators being as they are at every run's start."""
    called = stepc.accelerate(lambda batch: step(run, batch), config=accelerate) if accelerate is not None else None
    torch.manual_seed(1)
    for batch in given:
        run.seen.append(called(batch) if called else step(run, batch))
    return called


def assert_eagers(step_of, given):
    """`step_of(run)` gives the step of a run, with what it keeps; a run on the device as it is and one accelerated."""
    want, run = Run("cuda"), Run("cuda")
    steps_of(want, None, given, step_of(want))
    steps_of(run, stepc.Config(), given, step_of(run))
    assert_same(run, want)


def said_lines(caplog):
    return [line for line in caplog.messages if "eager" in line]


OPTIMIZERS = {"foreach": {}, "fused": {"fused": True}, "capturable": {"capturable": True}}


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_step_on_the_device_is_eagers(mode, options, caplog):
    def step(run, ids):
        return run.update(loss_of(run.model, ids))

    want, run = Run("cuda", dropout=0.1, **options), Run("cuda", dropout=0.1, **options)
    steps_of(want, None, batches("cuda"), step)
    with caplog.at_level(logging.WARNING):
        called = steps_of(run, stepc.Config(mode=mode), batches("cuda"), step)
    assert_same(run, want)
    assert called.stats["replays"] == 0
    assert len(said_lines(caplog)) == 1 and "cuda" in said_lines(caplog)[0], caplog.messages


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_step_that_moves_its_batch_to_the_device_is_eagers(mode, caplog):
    def step(run, ids):
        return run.update(loss_of(run.model, ids.to("cuda", non_blocking=True))).item()

    want, run = Run("cuda"), Run("cuda")
    given = [ids.pin_memory() for ids in batches("cpu")]
    steps_of(want, None, given, step)
    with caplog.at_level(logging.WARNING):
        called = steps_of(run, stepc.Config(mode=mode), given, step)
    assert run.seen == want.seen
    run.seen = want.seen = []
    assert_same(run, want)
    assert called.stats["replays"] == 0
    assert len(said_lines(caplog)) == 1 and "cuda" in said_lines(caplog)[0], caplog.messages


def test_autocast_and_a_loss_scaler_on_the_device_are_eagers():
    def of(run):
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

        def step(run, ids):
            with torch.autocast("cuda", torch.float16):
                loss = loss_of(run.model, ids)
            scaler.scale(loss).backward()
            scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
            return loss.detach()

        return step

    assert_eagers(of, batches("cuda"))


def loop(run, given, accelerates, **config):
    model, optimizer = run.model, run.optimizer
    if accelerates:
        model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(**config))
    torch.manual_seed(1)
    for ids in given:
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.seen.append(loss.detach())
    return model


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_unchanged_loop_on_the_device_is_eagers(mode, options, caplog):
    want, run = Run("cuda", dropout=0.1, **options), Run("cuda", dropout=0.1, **options)
    loop(want, batches("cuda"), accelerates=False)
    with caplog.at_level(logging.WARNING):
        model = loop(run, batches("cuda"), accelerates=True, mode=mode)
    assert_same(run, want)
    assert stepc.stats(model)["replays"] == 0
    said = said_lines(caplog)
    assert 1 <= len(said) <= 2 and all("cuda" in line for line in said), caplog.messages


def test_the_loop_with_a_prefetching_loader(caplog):
    want, run = Run("cuda"), Run("cuda")
    loop(want, batches("cuda"), accelerates=False)
    loop(run, stepc.AsyncLoader(batches("cpu"), torch.device("cuda")), accelerates=True)
    assert_same(run, want)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_step_on_the_cpu_replays_beside_a_device_in_use(mode):
    """Pinned batches, a CUDA generator that is drawn from, work in flight on the device."""
    def step(run, ids):
        return run.update(loss_of(run.model, ids))

    busy = torch.randn(1024, 1024, device="cuda")
    want, run = Run("cpu", dropout=0.1 if mode == "exact" else 0.0), Run("cpu", dropout=0.1 if mode == "exact" else 0.0)
    given = [ids.pin_memory() for ids in batches("cpu")]
    steps_of(want, None, given, step)
    busy = busy @ busy
    called = steps_of(run, stepc.Config(mode=mode), given, step)
    assert called.stats["replays"] >= 4, called.report()
    if mode == "exact":
        assert_same(run, want)
    else:
        torch.testing.assert_close(torch.stack(run.seen), torch.stack(want.seen), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(busy[0, 0])


def test_a_model_that_goes_to_the_device_between_steps():
    def step(run, ids):
        return run.update(loss_of(run.model, ids.to(run.model.head.weight.device)))

    def trained(accelerates):
        run = Run("cpu")
        called = stepc.accelerate(lambda ids: step(run, ids), config=stepc.Config(mode="exact")) if accelerates else None
        for number, ids in enumerate(batches("cpu", 12)):
            if number == 6:
                state = copy.deepcopy(run.optimizer.state_dict())
                run.model.to("cuda")
                run.optimizer.load_state_dict(state)
            run.seen.append((called(ids) if called else step(run, ids)).cpu())
        return run, called

    (want, _), (run, called) = trained(False), trained(True)
    assert called.stats["replays"] >= 1
    assert_same(run, want)


def test_a_model_with_a_part_on_each_device():
    def of(run):
        run.model.embed.cpu()
        run.model.forward = lambda ids: nn.Sequential(*run.model.blocks, run.model.head)(run.model.embed(ids).cuda())

        def step(run, ids):
            loss = nn.functional.cross_entropy(run.model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten().cuda())
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            return loss.detach()

        return step

    assert_eagers(of, batches("cpu"))


def test_an_error_of_the_device_is_the_programs():
    run = Run("cuda")

    @stepc.accelerate
    def step(ids, weights):
        return run.update(loss_of(run.model, ids) * weights.sum())

    with pytest.raises(RuntimeError, match="same device|two devices|found at least|argument") as caught:
        step(batches("cuda")[0], torch.ones(3, 5, device="cuda") @ torch.ones(5, 2))
    assert "stepc" not in str(caught.value)
