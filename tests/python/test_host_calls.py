"""Calls that only the step's own run can make: that raise by what they find, that read lengths, of which nothing is known.

Every step here is equal to eager bit by bit, the errors too, and is replayed for the most part.
"""

import pytest
import torch
from torch import nn

import stepc
from harness import Training, WARM_UP, run_twins, source_of, train

TRACED = stepc.Config(python="trace", mode="exact")


def matrix(i, shift=8.0):
    rows = torch.randn(6, 6, generator=source_of(i))
    return rows @ rows.T + shift * torch.eye(6)


def factor_with_jitter(model, x):
    jitter = 0.0
    while True:
        try:
            factor = torch.linalg.cholesky(x + jitter * torch.eye(6))
            return model(factor).square().mean() * (1 + jitter)
        except torch.linalg.LinAlgError:
            jitter = max(1e-3, jitter * 100)


def test_a_caught_error_is_followed_by_what_the_step_does_then():
    """While recording, at the first replay and later."""
    batch = lambda i: matrix(i, shift=-20.0 if i in (1, WARM_UP, WARM_UP + 4) else 8.0)
    step = run_twins(lambda: train(nn.Linear(6, 6), factor_with_jitter), batch, replays=8, steps=WARM_UP + 14)
    assert "_linalg_check_errors" in step.stats["traced"]


def test_an_error_that_is_not_caught():
    def inverted(model, x):
        return (model(x) @ torch.linalg.inv(x)).square().mean()

    batch = lambda i: torch.zeros(6, 6) if i == WARM_UP + 2 else matrix(i)
    run_twins(lambda: train(nn.Linear(6, 6), inverted), batch, replays=5, steps=WARM_UP + 10, raises=RuntimeError)


def rows_or_all(model, batch):
    x, rows = batch["x"], batch["rows"]
    hidden = model(x)
    try:
        return hidden[rows].square().mean()
    except IndexError:
        return hidden.square().sum()


@pytest.mark.parametrize("config", [None, TRACED, stepc.Config(mode="exact")], ids=["found", "traced", "exact"])
def test_an_index_out_of_range_that_is_caught(config):
    """The batch norm's statistics are updated before the kernel that raises: by one run of the step, not by two."""
    bad = WARM_UP + 3, WARM_UP + 4

    def batch(i):
        rows = torch.tensor([0, 3, 80 if i in bad else 5])
        return {"x": torch.randn(8, 6, generator=source_of(i)), "rows": rows}

    build = lambda: train(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)), rows_or_all)
    run_twins(build, batch, replays=6, steps=WARM_UP + 12, config=config)


@pytest.fixture
def library():
    with torch.library._scoped_library("host_calls", "FRAGMENT") as library:
        yield library


def test_an_operator_of_the_programs_own_runs_once_a_step(library):
    """Its Python and all: it is neither run by the plan nor by what the plan is compared with."""
    calls = {"eager": 0, "accelerated": 0}
    turn = []

    def scaled(x, by):
        calls[turn[0]] += 1
        return x * float(by.numpy().max())

    library.define("scaled(Tensor x, Tensor by) -> Tensor")
    library.impl("scaled", scaled, "CPU")
    model, twin = nn.Linear(6, 4), nn.Linear(6, 4)
    twin.load_state_dict(model.state_dict())

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            hidden = torch.ops.host_calls.scaled(model(x).detach(), x.abs()) + 1  # what it makes goes on
            loss = (model(x) * hidden).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    eager, accelerated = step_of(model), stepc.accelerate(step_of(twin), config=stepc.Config(mode="exact"))
    for i in range(14):
        x = torch.randn(5, 6, generator=source_of(i))
        turn[:] = ["eager"]
        wanted = eager(x)
        turn[:] = ["accelerated"]
        assert torch.equal(wanted, accelerated(x))
        assert calls["eager"] == calls["accelerated"] == i + 1
    assert accelerated.stats["replays"] >= 8


def test_another_size_of_an_unknown_result(library):
    library.define("large_ones(Tensor x) -> Tensor")
    library.impl("large_ones", lambda x: x[x.sum(-1) > 0].clone(), "CPU")

    def loss_of(model, x):
        return model(torch.ops.host_calls.large_ones(x)).square().mean()

    def batch(i):
        x = torch.rand(8, 6, generator=source_of(i))
        x[3 if i % 7 < 5 else 5:] *= -1
        return x

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), batch, replays=8, steps=40)


def test_what_the_host_makes_after_it_has_read():
    def loss_of(model, x):
        hidden = model(x)
        bound = hidden.detach().max().item()
        return (hidden * torch.tensor([bound, 2 * bound, 1.0, 0.5])).square().mean()

    batch = lambda i: torch.randn(8, 6, generator=source_of(i))
    run_twins(lambda: train(nn.Linear(6, 4), loss_of), batch, replays=6, steps=WARM_UP + 12, config=TRACED)


def test_numbers_read_from_several_tensors():
    def loss_of(model, batch):
        x, y = batch["x"], batch["y"]
        return model(x).square().mean() * (2.0 if torch.equal(x, y) else 1.0)

    def batch(i):
        x = torch.randn(8, 6, generator=source_of(i))
        return {"x": x, "y": x.clone() if i % 5 else x + 1}

    run_twins(lambda: train(nn.Linear(6, 4), loss_of), batch, replays=4, steps=40, config=TRACED)


def test_values_of_many_elements_as_a_list():
    def loss_of(model, x):
        hidden = model(x)
        return hidden.square().mean() * max(max(row) for row in hidden.detach().tolist())

    batch = lambda i: torch.randn(32, 6, generator=source_of(i))
    run_twins(lambda: train(nn.Linear(6, 4), loss_of), batch, replays=6, steps=WARM_UP + 12)


def test_an_operator_that_draws_runs_eagerly(library, caplog):
    library.define("noisy(Tensor x) -> Tensor")
    library.impl("noisy", lambda x: x + torch.rand_like(x), "CPU")
    step = run_twins(lambda: train(nn.Linear(6, 4), lambda model, x: torch.ops.host_calls.noisy(model(x).detach()).sum()
                                   * model(x).mean()),
                     lambda i: torch.randn(8, 6, generator=source_of(i)), replays=0, steps=10)
    assert "draws random numbers" in step.stats["warnings"][0]
