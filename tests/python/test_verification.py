"""What a plan is compared with before it counts: the plain graph, eager where that can be, float64 where eager errs."""

import pytest
import torch

import stepc
from harness import source_of
from stepc.scout import Scout

STEPS = 8


def trained(step, batch, config=None, steps=STEPS):
    step = stepc.accelerate(step, config=config)
    for i in range(steps):
        step(batch(i))
    return step


def embedding_training(vocabulary=16, width=32):
    """A language model's ends in bf16: as few rows, and as many tokens for each, as eager's sums in bf16 go wrong on."""
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(vocabulary, width), torch.nn.Linear(width, vocabulary)
    model = torch.nn.Sequential(embedding, head).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(ids):
        loss = model(ids).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def batch(i):
        return torch.randint(vocabulary, (64, 256), generator=source_of(i))

    return model, optimizer, step, batch


def test_a_plan_that_is_nearer_to_float64_than_eager_is_kept():
    """Eager sums the embedding's gradient in bf16."""
    _, _, step, batch = embedding_training()
    step = trained(step, batch)
    assert step.stats["graph_nodes"] > 0 and not step.stats["warnings"], step.stats["warnings"]
    assert step.stats["float64_verifications"] == 1 and step.stats["verifications"] == 2
    assert step.stats["replays"] + step.stats["checks"] == STEPS - 5
    assert "aten::embedding_dense_backward is" in step.report() and "away from float64" in step.report()


def norm_training(factor=lambda: 1.0):
    """Eager's norm adds lane by lane in float32: 0.3 % off for so many elements."""
    weight = torch.nn.Parameter(torch.ones(1 << 22))
    optimizer = torch.optim.SGD([weight], lr=1e-3, momentum=0.9)

    def step(x):
        loss = (weight * x * factor()).sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    return step, lambda i: torch.full((1 << 22,), 1e-2)


def test_norms_that_eager_adds_up_badly():
    step = trained(*norm_training())
    assert step.stats["graph_nodes"] > 0 and not step.stats["warnings"], step.stats["warnings"]
    assert step.stats["float64_verifications"] == 1
    assert step.stats["replays"] + step.stats["checks"] == STEPS - 5


def test_a_capture_that_is_wrong_beside_a_norm_that_eager_adds_up_badly_is_refused(monkeypatch, tmp_path):
    """A number that the recording did not see to change: in a file."""
    monkeypatch.setattr(Scout, "python_reason", lambda scout: "")
    factor = tmp_path / "factor"
    factor.write_text("1")
    step, batch = norm_training(lambda: float(factor.read_text()))
    step = stepc.accelerate(step, config=stepc.Config(python="watch"))
    for i in range(STEPS):
        if step.stats["plans"] == 1:
            factor.write_text("2")
        step(batch(i))
    assert step.stats["replays"] == 0 and step.stats["float64_verifications"] == 0
    assert len(step.stats["warnings"]) == 1 and "a replay differs from" in step.stats["warnings"][0]


def small_training(dropout=0.0, width=48, layers=1, rows=256):
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.Dropout(dropout), *hidden,
                                torch.nn.Linear(width, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, step, lambda i: torch.randn(rows, 8, generator=source_of(i))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_every_plan_is_compared_with_the_plain_graph(dropout):
    """And with eager, where that draws the same numbers."""
    _, step, batch = small_training(dropout)
    step = trained(step, batch)
    with_eager = 0 if dropout else 1
    assert (step.stats["plain_verifications"], step.stats["eager_verifications"]) == (1, with_eager)
    assert f"1 replays compared with the plain graph, {with_eager} with eager" in step.report()
    assert not step.stats["warnings"] and step.stats["replays"] >= 3


def test_eager_is_left_out_where_it_exceeds_the_budget():
    """The step that counts is then a replay, and everything is as eager would have it. What layers keep outweighs what
    kernels work with, so that the budget can be met."""
    model, step, batch = small_training(layers=8, rows=1024)
    twin, twin_step, _ = small_training(layers=8, rows=1024)
    plain = trained(step, batch)
    budget = plain.stats["state_bytes"] + plain.stats["planned_peak_bytes"] * 3 // 4
    assert plain.stats["planned_peak_bytes"] * 3 // 4 < plain.stats["eager_peak_bytes"]
    model, step, _ = small_training(layers=8, rows=1024)
    step = trained(step, batch, stepc.Config(memory_budget=f"{budget} B"))
    for i in range(STEPS):
        twin_step(batch(i))
    assert (step.stats["plain_verifications"], step.stats["eager_verifications"]) == (1, 0)
    assert step.stats["eager_calls"] == 0 and step.stats["replays"] == plain.stats["replays"] + plain.stats["checks"]
    assert not step.stats["warnings"]
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(model.parameters(), twin.parameters()))
