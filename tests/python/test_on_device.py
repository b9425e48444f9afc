"""Steps on a device. In exact mode their recorded calls are replayed, bit by bit as eager; in fast mode a Graph runs, within
rounding of eager. On the emulated device, and on CUDA where there is one.
"""

import copy
import json
import re

import emulated
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import stepc

STEPS = 10
pytestmark = pytest.mark.process_apart  # PyTorch counts its devices once, at the first backward pass


@pytest.fixture(params=["emulated"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return emulated.device() if request.param == "emulated" else "cuda"


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
        return [torch.as_tensor(tensor).detach().cpu() for tensor in tensors]


def assert_same(run, want, mode="exact"):
    """Bit by bit, or in fast mode the losses within rounding."""
    if mode == "fast":
        losses = [torch.stack([torch.as_tensor(loss).detach().cpu() for loss in one.seen]) for one in (run, want)]
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
        return
    for number, (one, other) in enumerate(zip(run.state(), want.state(), strict=True)):
        assert torch.equal(one, other), number


def assert_graph(stats, mode, report=""):
    """What ran: in fast mode a Graph with kernels of stepc's own."""
    assert (stats["graph_nodes"] > 0) == (stats["kernels"] > 0) == (mode == "fast"), report
    assert stats["recorded_replays"] == 0, report


def steps_of(run, accelerate, given, step):
    """What `step(run, batch)` does at each batch of `given`, the generators being as they are at every run's start."""
    called = stepc.accelerate(lambda batch: step(run, batch), config=accelerate) if accelerate is not None else None
    torch.manual_seed(1)
    for batch in given:
        run.seen.append(called(batch) if called else step(run, batch))
    return called


def assert_eagers(device, step_of, given, mode="exact"):
    """`step_of(run)` gives the step of a run, with what it keeps; a run on the device as it is and one accelerated."""
    want, run = Run(device), Run(device)
    steps_of(want, None, given, step_of(want))
    steps_of(run, stepc.Config(mode=mode, device_kernels=True), given, step_of(run))
    assert_same(run, want, mode)


OPTIMIZERS = {"foreach": {}, "fused": {"fused": True}, "capturable": {"capturable": True}}
MODES = ["exact", "fast"]


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_step_replays(device, mode, options, graphs):
    if device == "emulated" and "capturable" in options:
        pytest.skip("PyTorch has capturable optimizers for kinds of devices that it knows")

    def step(run, ids):
        return run.update(loss_of(run.model, ids))

    dropout = 0.1 if mode == "exact" else 0.0
    want, run = Run(device, dropout=dropout, **options), Run(device, dropout=dropout, **options)
    steps_of(want, None, batches(device), step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True, device_graphs=graphs), batches(device), step)
    assert_same(run, want, mode)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 3, called.report()
    assert (called.stats["device_graphs"] >= 2) == graphs, called.report()
    if device == "cuda" or not graphs:  # the emulated device's launches allocate
        assert called.stats["unplanned_allocations"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_moves_its_batch_to_the_device_and_reads_its_loss(device, mode):
    def step(run, ids):
        return run.update(loss_of(run.model, ids.to(device, non_blocking=True))).item()

    want, run = Run(device), Run(device)
    given = [ids.pin_memory() for ids in batches("cpu")]
    steps_of(want, None, given, step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True), given, step)
    assert_graph(called.stats, mode, called.report())
    assert_same(run, want, mode)
    assert mode == "fast" or run.seen == want.seen
    assert called.stats["replays"] >= 3, called.report()


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_goes_to_the_host_beside_the_step(device, mode):
    """Into page-locked memory, without a wait in the step."""
    want, run = Run(device), Run(device)
    lasts = {}
    for one, config in ((want, None), (run, stepc.Config(mode=mode, device_kernels=True))):
        last = torch.zeros((), pin_memory=True)

        def step(run, ids):
            loss = run.update(loss_of(run.model, ids.to(device, non_blocking=True)))
            last.copy_(loss, non_blocking=True)
            return loss

        called = stepc.accelerate(lambda ids: step(one, ids), config=config) if config else lambda ids: step(one, ids)
        lasts[one] = []
        for ids in batches("cpu"):
            one.seen.append(called(ids.pin_memory()))
            torch.accelerator.synchronize()
            lasts[one].append(last.item())
    for one in (run, want):
        assert lasts[one] == [loss.item() for loss in one.seen]
    assert_same(run, want, mode)
    assert called.stats["replays"] >= 3, called.report()


def test_the_emulated_device_copies_beside_the_host():
    """What these tests rely on."""
    device = emulated.device()
    host = torch.ones(3).pin_memory()
    assert host.is_pinned() and not torch.ones(3).is_pinned()
    on_device = host.to(device, non_blocking=True)
    host.zero_()
    with pytest.raises(RuntimeError, match="12 bytes of page-locked memory were changed while they were copied to the device"):
        torch.accelerator.synchronize()
    host.copy_(on_device, non_blocking=True)
    assert host.isnan().all()
    torch.accelerator.synchronize()
    assert host.tolist() == [1, 1, 1]
    host.copy_(on_device + 1, non_blocking=True)
    assert on_device.sum().item() == 3 and host.tolist() == [2, 2, 2]  # reading one value waits for all


@pytest.mark.parametrize("mode", MODES)
def test_checkpointed_blocks_draw_the_same_numbers_again(device, mode):
    def step(run, ids):
        x = run.model.embed(ids)
        for block in run.model.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        logits = run.model.head(x)
        return run.update(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))

    dropout = 0.1 if mode == "exact" else 0.0
    want, run = Run(device, dropout=dropout), Run(device, dropout=dropout)
    steps_of(want, None, batches(device), step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True, device_graphs=True), batches(device), step)
    assert_same(run, want, mode)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 3, called.report()


@pytest.mark.parametrize("mode", MODES)
def test_a_narrow_model_and_a_norm_with_running_statistics(device, mode):
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

        def forward(self, images):
            return self.layers(images)

    def trained(accelerates):
        torch.manual_seed(0)
        model = Narrow().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(images, labels):
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        called = stepc.accelerate(step, config=stepc.Config(mode=mode, device_kernels=True, device_graphs=True)) if accelerates else step
        torch.manual_seed(1)
        seen = [called(torch.randn(4, 3, 8, 8).to(device), torch.randint(10, (4,)).to(device)).item() for _ in range(STEPS)]
        return seen, [tensor.cpu() for tensor in model.state_dict().values()], called

    (want, want_state, _), (seen, state, called) = trained(False), trained(True)
    if mode == "exact":
        assert seen == want
        assert all(map(torch.equal, state, want_state))
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(want), rtol=1e-3, atol=1e-3)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 3, called.report()


def test_autocast_and_a_loss_scaler(device):
    if device == "emulated":
        pytest.skip("the emulated device has no autocast")

    def of(run):
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)

        def step(run, ids):
            with torch.autocast(device, torch.float16):
                loss = loss_of(run.model, ids)
            scaler.scale(loss).backward()
            scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
            return loss.detach()

        return step

    assert_eagers(device, of, batches(device))


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["foreach", "fused"])
def test_the_unchanged_loop(device, mode, options):
    dropout = 0.1 if mode == "exact" else 0.0
    want, run = Run(device, dropout=dropout, **options), Run(device, dropout=dropout, **options)
    loop(want, batches(device), accelerates=False)
    model = loop(run, batches(device), accelerates=True, mode=mode, device_graphs=mode == "exact")
    assert_same(run, want, mode)
    assert_graph(stepc.stats(model), mode, stepc.report(model))
    assert stepc.stats(model)["replays"] >= 3, stepc.report(model)


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_with_a_prefetching_loader(device, mode):
    want, run = Run(device), Run(device)
    loop(want, batches(device), accelerates=False)
    loop(run, stepc.AsyncLoader(batches("cpu"), torch.device(device)), accelerates=True, mode=mode)
    assert_same(run, want, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_on_the_cpu_replays_beside_a_device_in_use(device, mode):
    """Pinned batches, a device's generator that is drawn from, work in flight on the device."""
    def step(run, ids):
        return run.update(loss_of(run.model, ids))

    busy = torch.randn(1024, 1024, device=device)
    want, run = Run("cpu", dropout=0.1 if mode == "exact" else 0.0), Run("cpu", dropout=0.1 if mode == "exact" else 0.0)
    given = [ids.pin_memory() for ids in batches("cpu")]
    steps_of(want, None, given, step)
    busy = busy @ busy
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True), given, step)
    assert called.stats["replays"] >= 4, called.report()
    if mode == "exact":
        assert_same(run, want)
    else:
        torch.testing.assert_close(torch.stack(run.seen), torch.stack(want.seen), rtol=1e-3, atol=1e-3)
    assert torch.isfinite(busy[0, 0])


def test_a_model_that_goes_to_the_device_between_steps(device):
    def step(run, ids):
        return run.update(loss_of(run.model, ids.to(run.model.head.weight.device)))

    def trained(accelerates):
        run = Run("cpu")
        called = stepc.accelerate(lambda ids: step(run, ids), config=stepc.Config(mode="exact")) if accelerates else None
        for number, ids in enumerate(batches("cpu", 18)):
            if number == 6:
                state = copy.deepcopy(run.optimizer.state_dict())
                run.model.to(device)
                run.optimizer.load_state_dict(state)
            run.seen.append((called(ids) if called else step(run, ids)).cpu())
        return run, called

    (want, _), (run, called) = trained(False), trained(True)
    assert called.stats["replays"] >= 4 and called.stats["plans"] == 2, called.report()
    assert_same(run, want)


def test_a_model_with_a_part_on_each_device(device):
    def of(run):
        run.model.embed.cpu()
        run.model.forward = lambda ids: nn.Sequential(*run.model.blocks, run.model.head)(run.model.embed(ids).to(device))

        def step(run, ids):
            loss = nn.functional.cross_entropy(run.model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten().to(device))
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            return loss.detach()

        return step

    assert_eagers(device, of, batches("cpu"))


def test_an_error_of_the_device_is_the_programs(device):
    run = Run(device)

    @stepc.accelerate
    def step(ids, weights):
        return run.update(loss_of(run.model, ids) * weights.sum())

    with pytest.raises(RuntimeError, match="same device|two devices|found at least|argument|another device") as caught:
        step(batches(device)[0], torch.ones(3, 5, device=device) @ torch.ones(5, 2))
    assert "stepc" not in str(caught.value)


def test_the_plan_says_what_lies_on_the_device(device):
    run = Run(device)
    called = steps_of(run, stepc.Config(), batches(device, 6), lambda run, ids: run.update(loss_of(run.model, ids)))
    text = called.schedule_text()
    assert f"\nmemory {torch.zeros(1, device=device).device} from " in text
    assert " device" in text


@pytest.mark.parametrize("mode", MODES)
def test_a_report_has_the_devices_times(device, mode, monkeypatch):
    run = Run(device)
    if device == "emulated":
        monkeypatch.setenv("EMULATED_CARD", "90 80000000000 80000000000 card of nobody")
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True), batches(device, 14),
                      lambda run, ids: run.update(loss_of(run.model, ids)))
    stats, number = called.stats, r"[\d.]+ [mu]?s"
    assert 1 <= stats["device_replays"] <= stats["replays"] and stats["device_seconds"] > 0, called.report()
    measured = rf"measured {number} on the device, the mean of {stats['device_replays']} replays; the host's calls {number}\n"
    assert re.search(measured, called.report()), called.report()
    if device == "emulated":  # which runs its kernels within their calls
        assert stats["device_seconds"] <= stats["execute_seconds"]
        assert "predicted" not in called.report() and called.predicted_seconds is None
        monkeypatch.setenv("EMULATED_CARD", "90 80000000000 80000000000 NVIDIA H100 80GB HBM3")
        assert re.search(rf"step time +predicted {number} a step, from data sheets and published rates of the card; "
                         rf"{measured}", called.report()), called.report()
        assert 0 < called.predicted_seconds < 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_a_profile_has_the_devices_times_beside_the_hosts(device, mode, tmp_path, monkeypatch):
    if device == "emulated":
        monkeypatch.setenv("EMULATED_CARD", "90 80000000000 80000000000 NVIDIA H100 80GB HBM3")
    want, run, given = Run(device), Run(device), batches(device, 12)
    steps_of(want, None, given, lambda run, ids: run.update(loss_of(run.model, ids)))
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True), given[:8],
                      lambda run, ids: run.update(loss_of(run.model, ids)))
    for ids in given[8:]:
        with called.profile(tmp_path / "trace.json") as profile:
            run.seen.append(called(ids))
    assert_same(run, want, mode)
    trace = json.loads((tmp_path / "trace.json").read_text())
    tracks = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert tracks[1] == "measured on the device" and tracks[3] == "the host's calls"
    slices = {track: [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == track]
              for track in tracks}
    step_us = trace["otherData"]["step_us"]
    for track, events in slices.items():
        assert [event["args"]["instruction"] for event in events] == list(range(called.stats["instructions"])), track
        for event, after in zip(events, [*events[1:], {"ts": step_us if track != 2 else float("inf")}]):
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["ts"] + event["dur"] <= after["ts"] + 1, track
    assert trace["otherData"]["device"] == str(torch.zeros(1, device=device).device)
    assert sum(event["dur"] for event in slices[1]) > 0
    if device == "emulated":  # which ends a call's kernels within the call
        for there, call in zip(slices[1], slices[3]):
            assert there["dur"] >= call["dur"] - 1 and abs(there["ts"] - call["ts"]) < step_us / 10
        assert "predicted from data sheets and published rates of NVIDIA H100 80GB\n" in str(profile)
        assert sum(event["dur"] for event in slices[2]) == pytest.approx(1e6 * called.predicted_seconds, rel=0.1)
    assert re.search(rf"step \({mode} mode on {device}:0\) [\d.]+ [mu]?s: .*\ntimes are the device's, each instruction launched "
                     rf"by itself; the host made its calls in [\d.]+ [mu]?s\n", str(profile)), str(profile)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_the_device_cannot_take_down_runs_call_by_call(device, mode):
    """Boolean masks are sized on the host: their calls stand between the graphs."""
    def step(run, ids):
        logits = run.model(ids)[:, :-1].flatten(0, 1)
        wanted = ids[:, 1:].flatten()
        kept = wanted > 5
        return run.update(nn.functional.cross_entropy(logits[kept], wanted[kept]))

    want, run = Run(device), Run(device)
    given = [batches(device)[0]] * STEPS
    steps_of(want, None, given, step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True, device_graphs=True), given, step)
    assert_same(run, want, mode)
    assert called.stats["replays"] >= 1, called.report()


@pytest.mark.parametrize("mode", MODES)
def test_a_learning_rate_that_changes_reaches_the_device(device, mode):
    def trained(accelerates):
        run = Run(device, fused=True)
        called = stepc.accelerate(lambda ids: run.update(loss_of(run.model, ids)),
                                  config=stepc.Config(mode=mode, device_kernels=True, device_graphs=True)) if accelerates else None
        for number, ids in enumerate(batches(device, 14)):
            run.optimizer.param_groups[0]["lr"] = 1e-2 / (1 + number)
            run.seen.append(called(ids) if called else run.update(loss_of(run.model, ids)))
        return run, called

    (want, _), (run, called) = trained(False), trained(True)
    assert_same(run, want, mode)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 3, called.report()


def test_a_device_graph_is_a_choice_of_true_or_false():
    with pytest.raises(stepc.UserError, match="device_graphs is 'yes'; it is True or False"):
        stepc.Config(device_graphs="yes")


@pytest.mark.parametrize("mode", MODES)
def test_python_that_runs_beside_every_replay(device, mode):
    def step(run, ids):
        return run.update(loss_of(run.model, ids))

    dropout = 0.1 if mode == "exact" else 0.0
    want, run = Run(device, dropout=dropout), Run(device, dropout=dropout)
    steps_of(want, None, batches(device), step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True, python="trace", device_graphs=True), batches(device), step)
    assert_same(run, want, mode)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 5, called.report()


def test_what_is_saved_on_a_device_comes_back_there(device, tmp_path):
    run = Run(device)
    called = steps_of(run, stepc.Config(), batches(device, 6), lambda run, ids: run.update(loss_of(run.model, ids)))
    called.save(tmp_path, step=6)
    saved = run.state()
    for ids in batches(device, 2):
        called(ids)
    called.load(tmp_path)
    assert all(map(torch.equal, run.state(), saved))
    assert run.model.head.weight.device.type == device


@pytest.mark.parametrize("mode", MODES)
def test_data_that_the_step_makes_on_the_device(device, mode):
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def step(run, ids):
        scale = torch.tensor([0.5, 2.0], device=device).prod() * weights.to(device).mean() / torch.arange(1, 5, device=device).sum()
        return run.update(loss_of(run.model, ids) * scale)

    want, run = Run(device), Run(device)
    steps_of(want, None, batches(device), step)
    called = steps_of(run, stepc.Config(mode=mode, device_kernels=True, device_graphs=True), batches(device), step)
    assert_same(run, want, mode)
    assert_graph(called.stats, mode, called.report())
    assert called.stats["replays"] >= 2, called.report()


def stats_of_steps(device, more=1):
    """`more`: elements that a step has beside its model's."""
    run = Run(device)
    step = stepc.accelerate(lambda ids: run.update(loss_of(run.model, ids) + torch.zeros(more, device=device).sum()),
                            config=stepc.Config(mode="exact"))
    for batch in batches(device):
        step(batch)
    return step.stats


def test_two_devices_in_a_step_run_as_they_are():
    device = emulated.device()
    run, spare = Run(device), torch.empty(2, 2, device="emulated:1")

    def step(ids):
        spare.view(4)
        return run.update(loss_of(run.model, ids))

    called = stepc.accelerate(step)
    for batch in batches(device):
        called(batch)
    assert called.stats["replays"] == 0 and len(called.stats["warnings"]) == 1
    assert re.search("tensors of two devices meet in the step, emulated:[01] and emulated:[01]: a step has one", called.stats["warnings"][0])


def test_a_device_that_is_too_old_runs_steps_as_they_are(monkeypatch):
    monkeypatch.setenv("EMULATED_CARD", "70 16000000000 16000000000 Tesla V100-SXM2-16GB")
    stats = stats_of_steps(emulated.device())
    assert stats["replays"] == 0 and len(stats["warnings"]) == 1
    assert "Tesla V100-SXM2-16GB (sm_70) is too old: PyTorch has kernels for sm_75 and newer" in stats["warnings"][0]


def test_a_plan_that_the_device_has_no_room_for_says_so(monkeypatch, caplog):
    monkeypatch.setenv("EMULATED_CARD", "90 1000 80000000000 NVIDIA H100 80GB HBM3")
    stats = stats_of_steps(emulated.device(), more=2**26)  # more than other tests' arenas, which the device keeps
    assert stats["replays"] == 0
    said = [record.getMessage() for record in caplog.records if "the plan needs" in record.getMessage()]
    assert len(said) == 1 and re.search(r"the plan needs 25\d\.\d MiB on emulated:0 \(NVIDIA H100 80GB HBM3\), of whose 74.5 GiB "
                                        r"there are 1000 B free; the step runs as it is", said[0]), caplog.text
