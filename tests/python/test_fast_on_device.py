"""Fast mode on a device: a Graph with kernels of stepc's own runs there, on the emulated device, and on CUDA where there is one."""

import logging

import emulated
import pytest
import torch
from torch import nn

import stepc

STEPS = 12
pytestmark = pytest.mark.process_apart  # PyTorch counts its devices once, at the first backward pass


@pytest.fixture(params=["emulated"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return emulated.device() if request.param == "emulated" else "cuda"


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
}


def network(device, dtype=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device, dtype)


def batch(number, device):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 16, generator=generator).to(device), torch.randn(8, 4, generator=generator).to(device)


def trained(device, optimizer, config=None, dtype=None, where=None, change=None, after=None):
    """The losses, and the step if it was accelerated. `where`: of the batches; `change`: what happens between two steps;
    `after`: what is done with the step behind each call."""
    model = network(device, dtype)
    optimizer = OPTIMIZERS[optimizer](model.parameters())

    def step(x, y):
        x, y = x.to(device), y.to(device)
        loss = nn.functional.mse_loss(model(x.to(dtype)).float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = stepc.accelerate(step, config=config) if config else step
    losses = []
    for number in range(STEPS):
        if change:
            change(number, optimizer)
        losses.append(called(*batch(number, where or device)).item())
        if after:
            after(called)
    return torch.tensor(losses), called


def fast(device, optimizer, **options):
    graphs = options.pop("device_graphs", False)
    want, _ = trained(device, optimizer, **options)
    losses, called = trained(device, optimizer, config=stepc.Config(mode="fast", device_graphs=graphs, device_kernels=True), **options)
    tolerance = 1e-2 if options.get("dtype") else 1e-4
    torch.testing.assert_close(losses, want, rtol=tolerance, atol=tolerance)
    stats = called.stats
    assert stats["replays"] >= 3 and stats["kernels"] > 0 and stats["graph_nodes"] > 0, called.report()
    assert stats["plain_verifications"] >= 1 and stats["eager_verifications"] >= 1, called.report()
    assert stats["recorded_replays"] == 0 and stats["opaque_calls"] == [], called.report()
    return called


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_network_trains(device, optimizer, graphs):
    called = fast(device, optimizer, device_graphs=graphs)
    assert (called.stats["device_graphs"] >= 1) == graphs, called.report()
    if device == "cuda" or not graphs:  # the emulated device's launches allocate
        assert called.stats["unplanned_allocations"] == 0, called.report()
    text = called.schedule_text()
    assert "device cuda sm_" in text.splitlines()[1]


def test_in_bfloat16(device):
    fast(device, "fused", dtype=torch.bfloat16)


@pytest.mark.parametrize("card", [None, "80 80000000000 85000000000 NVIDIA A100-SXM4-80GB"], ids=["H100", "A100"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_in_float8(recipe, card, monkeypatch, caplog):
    """Where the card multiplies float8, it does; elsewhere the numbers are those of float8 too, as on the CPU."""

    def losses(device, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 96, bias=False), nn.GELU(), nn.Linear(96, 48)).to(device, torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x):
            loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        called = stepc.accelerate(step, config=stepc.Config(precision="fp8", fp8_recipe=recipe, **options))
        source = torch.Generator().manual_seed(0)
        batches = [torch.randn(32, 64, generator=source).to(device, torch.bfloat16) for _ in range(STEPS)]
        return torch.tensor([called(x).item() for x in batches]), called

    want, _ = losses("cpu")
    if card:
        monkeypatch.setenv("EMULATED_CARD", card)
    caplog.set_level(logging.INFO, "stepc")
    caplog.clear()
    made, called = losses(emulated.device(), device_kernels=True)
    torch.testing.assert_close(made, want, rtol=1e-2, atol=1e-2)
    stats = called.stats
    assert stats["replays"] >= 3 and stats["recorded_replays"] == 0 and not stats["warnings"], called.report()
    assert (" scaled_matmul " in called.schedule_text()) == (card is None)
    assert ("this card has no float8" in caplog.text) == (card is not None), caplog.text


def test_batches_of_the_host(device):
    fast(device, "adamw", where="cpu")


def test_a_learning_rate_that_changes(device):
    def change(number, optimizer):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + number)

    fast(device, "adamw", change=change)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["f32", "bf16"])
def test_matmuls_compute_sums(device, dtype):
    """Gradients of two micro-batches, and a bias with its relu."""
    def losses(accelerates):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device, dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            total = 0
            for one, other in zip(x.chunk(2), y.chunk(2)):
                loss = nn.functional.mse_loss(model(one.to(dtype)).float(), other)
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total

        called = stepc.accelerate(step, config=stepc.Config(device_kernels=True)) if accelerates else step
        return torch.tensor([called(*batch(number, device)).item() for number in range(STEPS)]), called

    (want, _), (have, called) = losses(False), losses(True)
    tolerance = 1e-2 if dtype else 1e-5
    torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance)
    stats, text = called.stats, called.schedule_text()
    assert stats["replays"] >= 3 and stats["recorded_replays"] == 0 and not stats["warnings"], called.report()
    assert text.count(" op matmul_add ") == 2 and text.count(" op matmul_bias ") >= 2 and "relu=true" in text, text


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.dropout = dropout

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (one.view(batch, length, 2, width // 2).transpose(1, 2) for one in self.qkv(self.first(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + nn.functional.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)), self.dropout)
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, dropout=0.0, vocabulary=61, width=16, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def tokens(number, rows=2):
    return torch.randint(61, (rows, 12), generator=torch.Generator().manual_seed(number))


def decoder_step(device, dropout=0.0):
    torch.manual_seed(0)
    model = Decoder(dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def step(ids):
        loss = model(ids.to(device, non_blocking=True))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_decoder_trains_in_micro_batches(device, dropout):
    """As in one piece, and in any number with the same masks. Batches come from the host; rows of 88 bytes begin anywhere."""
    losses = []
    for count in (2 if dropout else 1, 4):
        called = stepc.accelerate(decoder_step(device, dropout)[1],
                                  config=stepc.Config(micro_batches=count, device_kernels=True))
        losses.append(torch.stack([called(tokens(number, rows=4)[:, :11]) for number in range(STEPS)]).cpu())
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    assert called.stats["eager_calls"] == 0 and "cut into    4 micro-batches" in called.report(), called.report()
    # At each micro-batch what lies between embedding and loss, at least.
    assert called.stats["device_graphs"] >= 4 + 1 and called.stats["unplanned_allocations"] == 0, called.report()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_micro_batches_train_as_eager_while_rates_change_and_memory_moves(device, graphs, optimizer):
    """Launched from the fourth step on; where the parameters lie elsewhere, recorded again."""
    parameters, launched = [], []

    def change(number, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
        parameters[:] = optimizer.param_groups[0]["params"]
        if number == 8:
            for one in parameters:
                one.data = one.data.clone()

    want, _ = trained(device, optimizer, change=change)
    wanted = [one.detach().cpu() for one in parameters]
    config = stepc.Config(micro_batches=2, device_kernels=True, device_graphs=graphs)
    losses, called = trained(device, optimizer, config, change=change,
                             after=lambda step: launched.append(step.stats["device_graphs"]))
    torch.testing.assert_close(losses, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close([one.detach().cpu() for one in parameters], wanted, rtol=1e-3, atol=1e-4)
    assert called.stats["eager_calls"] == 0 and not called.stats["warnings"], called.report()
    assert launched[:2] == [0, 0] and len({*launched[3:8], *launched[9:]}) == 1 and (launched[-1] >= 3) == graphs, launched
    assert launched[8] < launched[7] or not graphs, launched
    # The first replays, and what was recorded, each time.
    assert called.stats["plain_verifications"] == (6 if graphs else 2), called.report()


@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_a_decoder_trains(device, graphs):
    eager, (model, step) = decoder_step(device)[1], decoder_step(device)
    called = stepc.accelerate(step, config=stepc.Config(device_graphs=graphs, device_kernels=True))
    given = [tokens(number).pin_memory() for number in range(STEPS)]
    want = torch.stack([eager(ids) for ids in given]).cpu()
    losses = torch.stack([called(ids) for ids in given]).cpu()
    torch.testing.assert_close(losses, want, rtol=1e-3, atol=1e-3)
    stats = called.stats
    assert stats["replays"] >= 3 and stats["kernels"] > 0 and stats["recorded_replays"] == 0, called.report()
    assert next(model.parameters()).device.type == device


def test_an_index_that_is_not_there_is_the_programs_error(device):
    """A guard finds it before anything is written; the recorded calls raise what eager raises."""
    if device == "cuda":
        pytest.skip("there it ends the process, as in eager")
    model, step = decoder_step(device)
    called = stepc.accelerate(step, config=stepc.Config(device_kernels=True))
    for number in range(6):
        called(tokens(number))
    before = [parameter.detach().cpu() for parameter in model.parameters()]
    with pytest.raises((IndexError, RuntimeError), match="index|range"):
        called(tokens(1).fill_(61))
    assert all(torch.equal(one.detach().cpu(), other) for one, other in zip(model.parameters(), before))


def test_dropout_draws_anew_at_every_step(device):
    model, step = decoder_step(device, dropout=0.3)
    called = stepc.accelerate(step, config=stepc.Config(device_kernels=True))
    losses = [called(tokens(0)).item() for _ in range(STEPS)]
    assert called.stats["kernels"] > 0 and called.stats["replays"] >= 3, called.report()
    assert len(set(losses)) == STEPS
    for parameter in model.parameters():
        assert parameter.isfinite().all()


def test_the_unchanged_loop(device):
    def losses(accelerates):
        torch.manual_seed(0)
        model = Decoder().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run, update = stepc.accelerate(model, optimizer) if accelerates else (model, optimizer)
        out = []
        for number in range(STEPS):
            loss = run(tokens(number).to(device))
            loss.backward()
            update.step()
            update.zero_grad()
            out.append(loss.item())
        return torch.tensor(out), run

    (want, _), (have, run) = losses(False), losses(True)
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    stats = stepc.stats(run)
    assert stats["replays"] >= 3 and stats["kernels"] > 0 and stats["recorded_replays"] == 0, stepc.report(run)


def test_what_no_graph_can_hold_replays_its_recorded_calls(device, caplog):
    """A call without a row in the op table that works on the host."""
    caplog.set_level("INFO", "stepc")
    model = network(device)

    def step(x, weights):
        loss = (model(x.to(device)) * torch.special.i0(weights).to(device)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        return loss.detach()

    called = stepc.accelerate(step, config=stepc.Config(device_kernels=True))
    for number in range(STEPS):
        x, weights = batch(number, "cpu")
        called(x, weights)
    stats = called.stats
    assert stats["replays"] >= 3 and stats["graph_nodes"] == stats["kernels"] == 0, called.report()
    assert caplog.text.count("the plan replays the recorded calls: aten::i0 works in the host's memory") == 1


# ---- linear + cross-entropy

LOSSES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "smoothed": {"label_smoothing": 0.1},
    "a class ignored": {"ignore_index": 3, "label_smoothing": 0.2},
}


class Labelled(nn.Module):
    """A linear layer and its cross-entropy behind another layer. Targets begin where no kernel may read 16 bytes at once."""

    def __init__(self, options, frozen=False):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 61, bias=False)
        self.head.weight.requires_grad_(not frozen)
        self.options = options

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.head(torch.tanh(self.body(x))).float(), labels[1:], **self.options)


def labelled(tokens):
    generator = torch.Generator().manual_seed(tokens)
    x, labels = torch.randn(tokens, 16, generator=generator), torch.randint(61, (tokens + 1,), generator=generator)
    labels[5:9] = -100
    return x, labels


def gradients(model, x, labels):
    loss = model(x, labels)
    loss.backward()
    made = [loss.detach()] + [p.grad for p in model.parameters() if p.grad is not None]
    for parameter in model.parameters():
        parameter.grad = None
    return made


def distance(made, exact):
    pairs = zip((one.detach().cpu().double() for one in made), exact, strict=True)
    return [((one - other).norm() / other.norm()).item() for one, other in pairs]


def check_loss(device, options, tokens, dtype, frozen=False):
    x, labels = labelled(tokens)
    if "ignore_index" in options:
        labels[labels < 0] = 0
    torch.manual_seed(0)
    model = Labelled(options, frozen).to(dtype)
    exact = Labelled(options, frozen).double()
    exact.load_state_dict(model.state_dict())
    want = gradients(exact, x.to(dtype).double(), labels)
    model, x, labels = model.to(device), x.to(device, dtype), labels.to(device)
    eager = distance(gradients(model, x, labels), want)
    step = stepc.accelerate(lambda x, labels: gradients(model, x, labels), config=stepc.Config(device_kernels=True))
    for _ in range(STEPS):
        made = step(x, labels)
    stats = step.stats
    assert stats["replays"] >= 3 and stats["kernels"] > 0 and stats["recorded_replays"] == 0, step.report()
    assert stats["plain_verifications"] >= 1 and not stats["warnings"], step.report()
    # The errors of tokens' rounded logits cancel in their mean by chance, eager's too.
    by_chance = max(1e-6, torch.finfo(dtype).eps / tokens**0.5)
    for have, error in zip(distance(made, want), eager, strict=True):
        assert have <= 2 * error + by_chance, (have, error)
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES)
def test_a_loss_in_chunks(device, options, dtype):
    """Logits of 1,024 tokens at a time; the last chunk is shorter."""
    step = check_loss(device, options, 2 * 1024 + 76, dtype)
    text = step.schedule_text()
    assert " loss linear_cross_entropy " in text and " chunks 1024 programs " in text, text
    if dtype == torch.float32:
        assert step.stats["unplanned_allocations"] == 0, step.report()


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_a_loss_in_one_chunk(device, frozen):
    assert " chunks 40 programs " in check_loss(device, {}, 40, torch.bfloat16, frozen).schedule_text()


def test_a_loss_without_gradients(device):
    torch.manual_seed(0)
    model = Labelled({}).to(device)
    x, labels = (one.to(device) for one in labelled(1024 + 40))

    def step(x, labels):
        with torch.no_grad():
            return model(x, labels)

    called = stepc.accelerate(step, config=stepc.Config(device_kernels=True, device_graphs=True))
    losses = torch.stack([called(x, labels) for _ in range(STEPS)]).cpu()
    assert " chunks 1024 programs " in called.schedule_text() and called.stats["recorded_replays"] == 0, called.report()
    torch.testing.assert_close(losses, step(x, labels).cpu().expand(STEPS))


def test_the_plan_for_a_card_has_the_loss_that_runs(device):
    step = check_loss(device, {}, 1100, torch.bfloat16)
    line = next(one for one in step.schedule_text().splitlines() if " loss linear_cross_entropy " in one)
    planned = next(one for one in step.schedule_text(target="h100").splitlines() if " loss linear_cross_entropy " in one)
    chunks = [one[one.index(" chunks ") :].split(" programs ")[0] for one in (line, planned)]
    scratch = [int(one.split(" scratch ")[1].split()[0]) for one in (line, planned)]
    assert chunks == [" chunks 1024"] * 2
    assert scratch[0] == 1024 * 61 * 2 + 61 * 16 * 4 and scratch[1] == scratch[0] + (32 << 20), scratch
