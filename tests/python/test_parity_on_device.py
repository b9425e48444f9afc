"""Parity models on a device: a step's replays have eager's bits, in float32, bfloat16 and autocast. On the emulated device some
of them, on CUDA all; models of transformers where it is installed.
"""

import copy
import functools

import emulated
import pytest
import torch
from torch import nn

import stepc

STEPS = 12
REPLAYS = 5
pytestmark = pytest.mark.process_apart  # PyTorch counts its devices once, at the first backward pass


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 97)

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(self.layers(self.embed(ids))).flatten(0, 1).float(), ids.flatten())


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 16)
        self.body = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
                                  nn.Conv2d(16, 16, 3, stride=2, groups=4), nn.GroupNorm(4, 16), nn.SiLU())
        self.head = nn.Linear(16, 5)

    def forward(self, ids):
        pixels = self.embed(ids).permute(0, 2, 1).reshape(ids.shape[0], 4, 4, 8)
        return self.head(self.body(pixels).mean((2, 3))).float().square().mean()


def of_transformers(name):
    models = pytest.importorskip("models")  # it needs diffusers and timm, too

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = models.MODELS[name].build()

        def forward(self, ids):
            return self.module(input_ids=ids % models.VOCABULARY, labels=ids % models.VOCABULARY).loss

    return Model()


MODELS = {"encoder": Encoder, "images": Images} | {
    name: functools.partial(of_transformers, name) for name in ("llama", "qwen3", "gpt2", "gemma2", "bert", "t5")}
PRECISIONS = ("float32", "bfloat16", "autocast")
# The emulated device has neither autocast nor launches that are cheap.
EMULATED = [("emulated", "encoder", "float32"), ("emulated", "images", "float32"), ("emulated", "llama", "float32"),
            ("emulated", "gpt2", "bfloat16"), ("emulated", "bert", "bfloat16")]
ON_CUDA = [("cuda", name, precision) for name in MODELS for precision in PRECISIONS] * torch.cuda.is_available()


def run(model, device, precision, config):
    """What its steps give, and the model afterwards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
            loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = stepc.accelerate(step, config=config) if config is not None else step
    torch.manual_seed(1)
    source = torch.Generator().manual_seed(3)
    losses = [called(torch.randint(97, (4, 8), generator=source).to(device)) for _ in range(STEPS)]
    return called, [one.cpu() for one in [*losses, *model.state_dict().values()]]


@pytest.mark.parametrize("device, name, precision", EMULATED + ON_CUDA)
def test_replays_have_eagers_bits(device, name, precision, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if device == "emulated":
        device = emulated.device()
    torch.manual_seed(0)
    model = MODELS[name]().to(device, torch.bfloat16 if precision == "bfloat16" else None).train()
    twin = copy.deepcopy(model)
    torch.use_deterministic_algorithms(True)  # eager itself must be the same twice
    try:
        _, wanted = run(twin, device, precision, None)
        called, got = run(model, device, precision, stepc.Config(mode="exact"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert called.stats["replays"] >= REPLAYS and not called.stats["warnings"], called.report()
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert torch.equal(one, other), number
