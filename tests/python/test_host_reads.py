"""Steps that read a number from a tensor: the value is bound or guarded, and the step is replayed all the same."""

import logging

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import stepc
from harness import Training, decay, run_twins, source_of, train
from models import MODELS, tokens


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def classes(i):
    source = source_of(i)
    return torch.randn(8, 6, generator=source), torch.randint(4, (8,), generator=source)


# ---- attention masks: the models ask whether anything is masked


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gemma2", "bert"])
def test_attention_masks_that_mask_nothing_now_and_then(name):
    model = MODELS[name]

    def make_batch(i):
        batch = model.batch(source_of(i), True)
        if i % 3 == 2:
            batch = {"input_ids": tokens(source_of(i)), "attention_mask": torch.ones_like(batch["attention_mask"]),
                     "labels": tokens(source_of(i))}
        return batch

    run_twins(lambda: train(model.build(), model.loss_of), make_batch, steps=21, replays=9)


# ---- gradient scaling


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=["default", "fused", "foreach"])
@pytest.mark.parametrize("unscale", [False, True], ids=["plain", "clipped"])
def test_grad_scaler_with_skipped_steps(options, unscale):
    def build():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

        def step(batch):
            x, y = batch["x"], batch["y"]
            loss = cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=scaler.__dict__)

    def make_batch(i):
        x, y = classes(i)
        if i in (1, 8, 11, 12, 17):  # an overflow: this step's update is skipped and the scale halved
            x[0, 0] = float("inf")
        return {"x": x, "y": y}

    run_twins(build, make_batch, steps=24, replays=10)


# ---- branches


def test_early_exit_makes_two_plans():
    def build():
        model, head = nn.Linear(6, 6), nn.Linear(6, 4)
        optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-2)

        def step(x, y):
            hidden = model(x).relu()
            if x.mean() > 0:  # easy: the second layer is not needed
                hidden = model(hidden).relu()
            loss = cross_entropy(head(hidden), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(step, [model, head], [optimizer], [decay(optimizer)])

    def make_batch(i):
        x, y = classes(i)
        return x.abs() * (1 if i // 2 % 2 else -1), y

    step = run_twins(build, make_batch, steps=20, replays=8)
    assert step.stats["plans"] == 2


def test_a_guard_is_decided_before_any_state_is_written():
    """The branch comes after a buffer was updated, a random number drawn and a counter moved: a miss undoes nothing."""

    def build():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
        seen = torch.zeros((), dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            seen.add_(1)
            logits = model(x)
            if bool((x[:, 0] > 0).all()):
                logits = logits * 2 + torch.randn_like(logits)
            loss = cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)], watch=seen)

    def make_batch(i):
        x, y = classes(i)
        x[:, 0] = 1.0 if i in (6, 7, 8, 9, 10, 14, 17) else -1.0
        return x, y

    step = run_twins(build, make_batch, steps=22, replays=10)
    assert step.stats["plans"] == 2 and step.stats["guard_misses"] >= 1


def test_branch_on_a_value_computed_in_the_step():
    """The branch asks the hidden state, which depends on the parameters; either way the loss goes on from there."""

    def build():
        model = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        return train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))

    def loss_of(model, x):
        hidden = x
        for layer in model:
            hidden = layer(hidden).tanh()
            if hidden.abs().mean() < 0.3:
                break
        return hidden.square().mean()

    run_twins(build, lambda i: torch.randn(4, 6, generator=source_of(i)) * (0.2 if i % 4 == 3 else 2.0), steps=24,
              replays=6)


def test_integer_that_decides_a_shape():
    """Trimming a batch to its longest row: one plan for every length that comes."""

    def build():
        return train(nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)), loss_of)

    def loss_of(model, batch):
        longest = int(batch["lengths"].max())
        return model(batch["ids"][:, :longest]).square().mean()

    def make_batch(i):
        return {"ids": torch.randint(16, (3, 9), generator=source_of(i)),
                "lengths": torch.tensor([2, 3, 5 if i % 2 else 7])}

    step = run_twins(build, make_batch, steps=20, replays=8)
    assert step.stats["plans"] == 2


def test_comparisons_of_tensors():
    """`torch.equal`, `allclose` and `any` answer with a bool."""

    def loss_of(model, batch):
        x, same = batch
        if torch.equal(x, same) or torch.allclose(x, same + 1):
            return model(x).square().mean()
        return model(x).abs().mean() if (x > same).any() else model(same).mean()

    def make_batch(i):
        x = torch.randn(4, 6, generator=source_of(i))
        return [x, x.clone() if i % 2 else x - 2.0]

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), lambda i: (make_batch(i),), steps=20, replays=8)


# ---- values


def test_logged_values_are_replayed():
    """`.item()` for the log: numbers of every kind come back as numbers, and as those of this step."""

    def build():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            hits = logits.argmax(-1) == y
            return {"loss": loss.item(), "norm": float(norm), "hits": int(hits.sum()), "first": hits[0].item(),
                    "nested": [loss, (loss.detach().double().item(), "text", None)]}

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, classes)


def test_value_used_again_as_a_scalar():
    def build():
        return train(mlp(), lambda model, batch: cross_entropy(model(batch[0]) * batch[0].std().item(), batch[1]))

    run_twins(build, lambda i: (list(classes(i)),))


def test_arithmetic_between_reading_and_using():
    """Host arithmetic on a value is not seen by a recorder: equal, replayed or not."""

    def build():
        return train(mlp(), lambda model, batch: cross_entropy(model(batch[0]) * (1 + batch[0].std().item()), batch[1]))

    run_twins(build, lambda i: (list(classes(i)),), steps=12, replays=0)


def test_error_if_nonfinite_is_checked_in_every_step():
    """Clipping that raises on a norm that is not finite: also in a step that would be replayed."""

    def build():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            return loss

        return Training(step, [model], [optimizer], [decay(optimizer)])

    def make_batch(i):
        x, y = classes(i)
        if i in (9, 13):
            x[0, 0] = float("inf")
        return x, y

    run_twins(build, make_batch, steps=18, replays=8, raises=(RuntimeError,))


def test_number_that_is_returned_and_decides():
    """Returned, it would be bound; compared, it would take another branch unseen: so it runs eagerly."""

    def build():
        def loss_of(model, x):
            value = model(x).mean().item()
            return (model(x).square().mean() * (2 if value > 0 else 1)), value

        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss, value = loss_of(model, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss, "value": value}

        return Training(step, [model], [optimizer], [decay(optimizer)])

    run_twins(build, lambda i: classes(i)[0], steps=20, replays=0, quiet=False)


def test_decisions_that_hang_on_rounding_are_those_of_the_recorded_calls(caplog):
    """By the plan's sum the step goes one way, and by eager's it would have gone the other."""
    torch.manual_seed(0)
    w, counts = torch.randn(4096, requires_grad=True), [0]
    optimizer = torch.optim.SGD([w], lr=1e-3)

    def look(x):
        return (w * x).exp().sum()

    @stepc.accelerate
    def step(x, limit):
        counts[0] += 1
        total = look(x)
        loss = total / 4096
        if total > limit:
            loss = loss * 2 + total.sqrt()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with caplog.at_level(logging.INFO, "stepc"):
        for _ in range(40):
            x = torch.randn(4096)
            total = look(x).detach()
            said = any("hangs on rounding" in line for line in caplog.messages)
            replays = step.stats["replays"]
            loss = step(x, total)
            assert not said or torch.equal(loss, total / 4096)
    assert said and counts[0] == 40 and step.stats["replays"] > replays > 4 and not step.stats["warnings"], step.stats


def test_many_paths_that_numbers_decide_are_those_of_the_recorded_calls(caplog):
    """No Graph is made for each of them; what the host decides for itself is another matter."""

    def run(decide):
        torch.manual_seed(0)
        w = torch.randn(64, requires_grad=True)
        optimizer, counts = torch.optim.SGD([w], lr=1e-3), [0]

        @stepc.accelerate
        def step(x, paths):
            counts[0] += 1
            loss = (w * x).tanh().sum()
            for k in range(12):
                if decide(x, paths, k):
                    loss = loss + (w * k).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        caplog.clear()
        with caplog.at_level(logging.INFO, "stepc"):
            for i in range(24):
                paths = i // 2
                step(torch.full((64,), paths + 0.5), paths)
        return step.stats, [line for line in caplog.messages if "decided by numbers" in line]

    stats, lines = run(lambda x, paths, k: bool(x[0] > k))
    assert len(lines) == 1 and "test_host_reads.py:" in lines[0] and stats["graph_nodes"] == 0, (lines, stats)
    stats, lines = run(lambda x, paths, k: paths + 0.5 > k)
    assert not lines and stats["graph_nodes"] > 0, stats
