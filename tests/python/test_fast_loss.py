"""Fast mode's linear layer + cross-entropy: no further from float64 than twice eager's own error, whatever the loss.

Each step trains a small language model; what is compared is the loss and the parameters' changes after a few steps.
"""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

import stepc

VOCABULARY, WIDTH, TOKENS, STEPS = 203, 24, (3, 37), 5
FLOOR = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


class Model(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.body = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embedding(ids))))


def mean(logits, labels):
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def smoothed(logits, labels):
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)


def by_count(logits, labels):
    total = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=7)
    return 1024 * total / (labels != 7).sum()


def a_token_at_a_time(logits, labels):
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * torch.linspace(0, 2, losses.numel(), dtype=losses.dtype)).mean()


def squared(logits, labels):  # its gradient follows from the loss: the logits stay
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten()).square()


LOSSES = (mean, smoothed, by_count, a_token_at_a_time, squared)


def train(model, loss_of, dtype, config=None, all_ignored_at=None):
    """Losses and what became of the parameters, in float64; the step."""
    wide = dtype == torch.float64
    model = copy.deepcopy(model).to(dtype)
    start = [p.detach().double().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train_step(ids, labels):
        logits = model(ids)
        if wide:
            logits.float = lambda: logits  # the reference stays in float64
        loss = loss_of(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = stepc.accelerate(train_step, config=config) if config else train_step
    draw = torch.Generator().manual_seed(1)
    losses = []
    for i in range(STEPS):
        ids = torch.randint(VOCABULARY, TOKENS, generator=draw)
        labels = torch.randint(VOCABULARY, TOKENS, generator=draw)
        labels[:, 30:] = -100 if loss_of is not by_count else 7
        if i == all_ignored_at:
            labels[:] = -100
        losses.append(step(ids, labels).detach().double())
    changes = [p.detach().double() - s for p, s in zip(model.parameters(), start)]
    return [torch.stack(losses), *changes], step


def error(result, reference):
    return float((result - reference).norm() / (reference.norm() + 1e-30))


@pytest.mark.parametrize("tied", [False, True], ids=["two", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("loss_of", LOSSES, ids=lambda loss: loss.__name__)
def test_error_beside_eager(loss_of, dtype, tied):
    torch.manual_seed(0)
    model = Model(tied).to(dtype)
    reference, _ = train(model, loss_of, torch.float64)
    eager, _ = train(model, loss_of, dtype)
    fast, step = train(model, loss_of, dtype, stepc.Config(mode="fast"))
    assert step.stats["replays"] + step.stats["checks"] >= 2, step.stats
    assert step.stats["graph_nodes"] > 0 and not step.stats["warnings"], step.stats
    for mine, theirs, right in zip(fast, eager, reference):
        assert error(mine, right) <= 2 * max(error(theirs, right), FLOOR[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_nothing_that_counts(dtype):
    """The mean over no tokens is not a number, and nothing learns from it; a later batch is as if it had not been."""
    torch.manual_seed(0)
    model = Model(False).to(dtype)
    reference, _ = train(model, mean, torch.float64, all_ignored_at=3)
    eager, _ = train(model, mean, dtype, all_ignored_at=3)
    fast, step = train(model, mean, dtype, stepc.Config(mode="fast"), all_ignored_at=3)
    assert step.stats["replays"] + step.stats["checks"] >= 2
    assert torch.equal(eager[0].isnan(), fast[0].isnan()) and fast[0][3].isnan() and not fast[0][4].isnan()
    for mine, theirs, right in zip(fast[1:], eager[1:], reference[1:]):
        assert error(mine, right) <= 2 * max(error(theirs, right), FLOOR[dtype])


def test_a_label_that_is_no_class_is_an_error_as_in_eager():
    torch.manual_seed(0)
    model = Model(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train_step(ids, labels):
        loss = mean(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = stepc.accelerate(train_step, config=stepc.Config(mode="fast"))
    ids = torch.randint(VOCABULARY, TOKENS)
    for _ in range(6):
        step(ids, ids)
    assert step.stats["replays"] + step.stats["checks"] >= 2
    wrong = ids.clone()
    wrong[1, 2] = VOCABULARY
    with pytest.raises(IndexError, match="Target 203 is out of bounds"):
        step(ids, wrong)
    assert step(ids, ids) > 0
