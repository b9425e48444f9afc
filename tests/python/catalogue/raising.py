"""Programs whose kernels or Python raise, and that catch it: the same error, and the state as eager leaves it."""

import types

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from catalogue.case import case
from catalogue.parts import STEPS, batches, descend, mlp, sgd

BAD = (2, 7)  # the steps at which it goes wrong: while recording, and while replaying


def tried(step, *arguments):
    """The step's result, or what it raised; a replay may add where it was."""
    try:
        return step(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].partition(' (in the replayed step')[0]}"


def matrices(bad):
    """(step, symmetric matrices), `bad` of them at the bad steps."""
    for i in range(STEPS + 4):
        rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(i))
        good = rows @ rows.T + 8 * torch.eye(8)
        yield i, bad(good) if i in BAD else good


@case
def cholesky_that_fails(accelerate):
    model = nn.Linear(8, 8)
    optimizer = sgd(model, lr=0.01)

    @accelerate
    def step(matrix):
        factor = torch.linalg.cholesky(matrix)
        return descend((model(factor) - factor).square().mean(), optimizer)

    for _, matrix in matrices(lambda good: -good):
        yield tried(step, matrix), model, optimizer


@case
def cholesky_with_jitter(accelerate):
    """The program's own try: more and more is added to the diagonal."""
    model = nn.Linear(8, 8)
    optimizer = sgd(model, lr=0.01)

    @accelerate
    def step(matrix):
        jitter = 0.0
        while True:
            try:
                factor = torch.linalg.cholesky(matrix + jitter * torch.eye(8))
                break
            except torch.linalg.LinAlgError:
                jitter = max(1e-3, jitter * 100)
        return descend((model(factor) - factor).square().mean(), optimizer), jitter

    for _, matrix in matrices(lambda good: good - 12 * torch.eye(8)):
        yield step(matrix), model, optimizer


@case
def inverse_of_a_singular_matrix(accelerate):
    model = nn.Linear(8, 8)
    optimizer = sgd(model, lr=0.01)

    @accelerate
    def step(matrix):
        return descend((model(matrix) @ torch.linalg.inv(matrix)).square().mean(), optimizer)

    for _, matrix in matrices(torch.zeros_like):
        yield tried(step, matrix), model, optimizer


@case
def system_without_a_solution(accelerate):
    model = nn.Linear(8, 8)
    optimizer = sgd(model, lr=0.01)
    step = accelerate(
        lambda matrix: descend(torch.linalg.solve(matrix, model(matrix)).square().mean(), optimizer))
    for _, matrix in matrices(torch.zeros_like):
        yield tried(step, matrix), model, optimizer


@case
def token_out_of_range(accelerate):
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
    optimizer = sgd(model)
    step = accelerate(lambda tokens, y: descend(cross_entropy(model(tokens), y), optimizer))
    for i, _, y in batches(16):
        tokens = torch.randint(10, (8,), generator=torch.Generator().manual_seed(i))
        yield tried(step, tokens + (100 if i in BAD else 0), y), model, optimizer


@case
def class_out_of_range(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(16):
        yield tried(step, x, y + (50 if i in BAD else 0)), model, optimizer


@case
def index_out_of_range(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y, rows: descend(cross_entropy(model(x)[rows], y[rows]), optimizer))
    for i, x, y in batches(16):
        yield tried(step, x, y, torch.tensor([0, 3, 80 if i in BAD else 5])), model, optimizer


@case
def assertion_about_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        assert bool((x > -50).all()), "inputs are out of range"
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches(16):
        yield tried(step, x - (100 if i in BAD else 0), y), model, optimizer


@case
def assertion_of_torch(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        torch._assert_async((x > -50).all())
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches(16):
        yield tried(step, x - (100 if i in BAD else 0), y), model, optimizer


@case
def error_of_the_programs_own(accelerate):
    """Raised between the backward pass and the update: the gradients stay."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        if torch.isnan(loss):
            raise FloatingPointError("the loss is not a number")
        optimizer.step()
        return loss

    for i, x, y in batches(16):
        yield tried(step, x * (float("nan") if i in BAD else 1.0), y), model, optimizer


@case
def error_after_the_update(accelerate):
    model, state = mlp(), types.SimpleNamespace(count=0)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = descend(cross_entropy(model(x), y), optimizer)
        state.count += 1
        if state.count - 1 in BAD:
            raise KeyError("a callback that fails")
        return loss

    for i, x, y in batches(16):
        yield tried(step, x, y), model, optimizer, state.count


@case
def error_inside_a_module(accelerate):
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(8), nn.Linear(8, 4, bias=False)

        def forward(self, x):
            x = self.norm(x)  # its statistics are updated before the error
            if (x.abs() > 2.6).all(-1).any():
                raise ValueError("a row of outliers")
            return self.layer(x)

    model = Checked()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(16):
        if i in BAD:
            x[0] = 1e4
        yield tried(step, x, y), model, optimizer


@case
def shape_that_does_not_fit(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(16):
        yield tried(step, x[:, :5] if i in BAD else x, y), model, optimizer


@case
def batch_without_a_key(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda batch: descend(cross_entropy(model(batch["x"]), batch["y"]), optimizer))
    for i, x, y in batches(16):
        yield tried(step, {"x": x} if i in BAD else {"x": x, "y": y}), model, optimizer


@case
def fallback_inside_the_step(accelerate):
    """The step catches the error itself and goes on with something else."""
    model, failed = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y, rows):
        try:
            logits, wanted = model(x)[rows], y[rows]
        except IndexError:
            failed.append(len(failed))
            logits, wanted = model(x), y
        return descend(cross_entropy(logits, wanted), optimizer)

    for i, x, y in batches(16):
        yield step(x, y, torch.tensor([0, 3, 80 if i in BAD else 5])), model, optimizer, failed


@case(draws=True)
def probabilities_below_zero(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, probabilities):
        rows = torch.multinomial(probabilities, 4)
        return descend(cross_entropy(model(x)[rows], y[rows]), optimizer)

    for i, x, y in batches(16):
        yield tried(step, x, y, torch.full((8,), -1.0 if i in BAD else 1.0)), model, optimizer


@case
def error_and_generators(accelerate):
    """A failed step has drawn what it drew before it failed."""
    model, noise = mlp(), torch.Generator().manual_seed(1)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        shift = torch.randn(1, generator=noise)
        if bool((x > 50).any()):
            raise ValueError("out of range")
        return descend(cross_entropy(model(x), y) + 0.0 * shift.sum(), optimizer)

    for i, x, y in batches(16):
        yield tried(step, x + (100 if i in BAD else 0), y), model, optimizer, noise


@case
def eigenvalues_that_do_not_converge(accelerate):
    model = nn.Linear(8, 4)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        out = model(x)
        try:
            spread = torch.linalg.eigvalsh(out.T @ out / len(out) + torch.eye(4)).log().sum()
        except torch.linalg.LinAlgError:
            return None
        return descend(cross_entropy(out, y) - 0.01 * spread, optimizer)

    for i, x, y in batches(20):
        yield step(x * float("nan") if i in BAD else x, y), model, optimizer


# ---- kernels that nothing here describes


def beside_a_norm(accelerate, extra_of, good, bad, after=False):
    """extra_of(x, data) once the norm has written its statistics, or after the update, out of gradients' sight."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = sgd(model)

    @accelerate
    def step(x, y, data):
        loss = cross_entropy(model(x), y)
        if not after:
            loss = loss + 0.1 * extra_of(x, data).float().mean()
        loss = descend(loss, optimizer)
        with torch.no_grad():
            return loss, extra_of(x, data) if after else 0

    for i, x, y in batches(16):
        yield tried(step, x, y, (bad if i in BAD else good)(i)), model, optimizer


@case
def sorter_out_of_range(accelerate):
    yield from beside_a_norm(accelerate, lambda x, sorter: torch.searchsorted(x[0], x[1], sorter=sorter),
                             lambda i: torch.arange(8).roll(i), lambda i: torch.arange(8) + 5)


@case
def factorisation_that_checks_itself(accelerate):
    yield from beside_a_norm(accelerate, lambda _, matrix: torch.linalg.cholesky_ex(matrix, check_errors=True)[0],
                             lambda i: (i + 1) * torch.eye(4), lambda i: -torch.eye(4))


@case
def pivots_out_of_range(accelerate):
    yield from beside_a_norm(accelerate, lambda x, pivots: torch.lu_unpack(x, pivots)[1],
                             lambda i: torch.arange(1, 9, dtype=torch.int32), lambda i: torch.full((8,), 50).int())


@case
def division_by_an_integer_0(accelerate):
    yield from beside_a_norm(accelerate, lambda _, counts: 70 // counts + 70 % counts,
                             lambda i: torch.arange(1, 9) + i, lambda i: torch.arange(8))


@case
def scatter_out_of_range(accelerate):
    yield from beside_a_norm(accelerate, lambda _, places: torch.zeros(8, 4).scatter(1, places[:, None], 1.0),
                             lambda i: torch.arange(8) % (i % 3 + 2), lambda i: torch.arange(8))


@case
def index_out_of_range_after_the_update(accelerate):
    yield from beside_a_norm(accelerate, lambda x, rows: x[rows], lambda i: torch.tensor([i % 8, 3]),
                             lambda i: torch.tensor([i, 80]), after=True)


@case
def result_of_another_size(accelerate):
    """Nothing says of this operator that its size depends on data, and it is no error."""
    yield from beside_a_norm(accelerate, lambda _, classes: torch.ops.aten._unique(classes)[0],
                             lambda i: torch.arange(8) % 4 + i, lambda i: torch.arange(8) % 3)
