"""Config(shapes=...): lengths between a few sizes are padded, all sizes are compiled in the first call, and nothing of the
program's state shows that."""

import contextlib
import io
import logging
import random

import pytest
import torch
from torch.nn.functional import cross_entropy

import stepc

pytestmark = pytest.mark.usefixtures("short_collections")

VOCAB = 20
LENGTHS = [7, 8, 3, 12, 16, 5, 13, 8, 16, 9, 4, 15]
TOKENS = {"ids": (1, 0), "mask": (1, 0), "labels": (1, -100)}


class Net(torch.nn.Module):
    """Attention over what the mask shows, so that padding that is seen changes every result."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, 16)
        self.inner = torch.nn.Linear(16, 48, bias=False)  # a key's has no gradient but rounding
        self.outer = torch.nn.Linear(16, VOCAB)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, ids, mask):
        x = self.dropout(self.embedding(ids))
        query, key, value = self.inner(x).chunk(3, -1)
        seen = mask[:, None, :].bool()
        return self.outer(x + torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen))


def batch_of(length, rows=3):
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(1, VOCAB, (rows, length), generator=generator)
    return {"ids": ids, "mask": torch.ones_like(ids), "labels": ids.roll(1, 1)}


def loss_of(net, batch):
    return cross_entropy(net(batch["ids"], batch["mask"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def mean_loss_of(net, batch):
    """Counts padding, too."""
    return net(batch["ids"], batch["mask"]).square().mean()


def make(loss_of=loss_of, dropout=0.0, optimizer=torch.optim.AdamW):
    """A training step, its net, and how often it ran."""
    torch.manual_seed(0)
    net = Net(dropout)
    chosen = optimizer(net.parameters(), lr=1e-2)

    def train_step(batch):
        loss = loss_of(net, batch)
        loss.backward()
        chosen.step()
        chosen.zero_grad()
        return loss

    train_step.net, train_step.optimizer = net, chosen
    return train_step


def accelerated(step, shapes=None, **config):
    shapes = shapes or stepc.Shapes(TOKENS, sizes=[8, 16])
    return stepc.accelerate(step, config=stepc.Config(shapes=shapes, **config))


def state_of(step):
    state = [parameter.detach().clone() for parameter in step.net.parameters()]
    for held in step.optimizer.state.values():
        state += [value.clone() for value in held.values() if isinstance(value, torch.Tensor)]
    return state


def assert_near(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


def lines_of(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("config", [{}, {"capture": "virtual"}, {"mode": "exact"}])
def test_every_length_runs_from_the_plans_of_the_first_call(config, caplog):
    plain, twin = make(), make()
    step = accelerated(twin, **config)
    for call, length in enumerate(LENGTHS):
        batch = batch_of(length)
        given = {name: value.clone() for name, value in batch.items()}
        assert_near([step(batch)], [plain(batch_of(length)).detach()])
        assert all(torch.equal(batch[name], given[name]) for name in given) and batch.keys() == given.keys()
        assert step.stats["plans"] == 2, call
    assert step.stats["late_plans"] == 0 and "2 compiled, 0 of them after the warm-up" in step.report()
    assert step.stats["replays"] >= len(LENGTHS) - 4
    assert_near(state_of(twin), state_of(plain))
    # The first length makes the optimizer's state, which then is not new to the others.
    said = ["the step is captured by running it"] if "capture" in config else []
    assert [line.partition(":")[0] for line in lines_of(caplog)] == said


@pytest.mark.parametrize("labels", ["the ids", "a window"])
def test_tensors_that_share_memory_run_from_the_same_plans(labels):
    """Padded copies have memory of their own; a batch of a whole size must not be of another signature."""
    def batch(length):
        tokens = batch_of(length + 1)["ids"]
        ids = tokens[:, :-1]
        return {"ids": ids, "mask": torch.ones_like(ids), "labels": ids if labels == "the ids" else tokens[:, 1:]}

    plain, twin = make(), make()
    step = accelerated(twin)
    for length in [7, 8, 16, 12, 8, 16, 8, 16, 8, 16, 5]:
        assert_near([step(batch(length))], [plain(batch(length)).detach()])
    assert step.stats["plans"] == 2 and step.stats["late_plans"] == 0, step.stats
    assert_near(state_of(twin), state_of(plain))


def test_the_first_call_leaves_what_eager_does():
    plain, twin = make(), make()
    average = {name: [parameter.detach().clone() for parameter in step.net.parameters()]
               for name, step in (("plain", plain), ("twin", twin))}

    def drawing(step, average):
        def run(batch):
            loss = step(batch) + 0 * torch.rand(())
            for mean, parameter in zip(average, step.net.parameters()):
                mean.lerp_(parameter.detach(), 0.1)
            return loss
        return run

    states = []
    for run in (drawing(plain, average["plain"]), step := accelerated(drawing(twin, average["twin"]))):
        torch.manual_seed(5), random.seed(5)
        run(batch_of(7))
        states.append((torch.get_rng_state(), random.getstate()))
    assert step.stats["plans"] == 2
    assert torch.equal(states[0][0], states[1][0]) and states[0][1] == states[1][1]
    ones, others = state_of(plain) + average["plain"], state_of(twin) + average["twin"]
    assert all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def test_a_step_that_padding_changes_runs_as_it_is(caplog):
    plain, twin = make(mean_loss_of), make(mean_loss_of)
    step = accelerated(twin)
    for length in (7, 8, 7, 7, 7, 7):
        assert_near([step(batch_of(length))], [plain(batch_of(length)).detach()])
    assert_near(state_of(twin), state_of(plain))
    said = lines_of(caplog)
    assert len(said) == 1 and "batches are not padded, each length is compiled as it is: padded, the step differs in" in said[0]


def test_a_result_as_long_as_the_batch_is_not_padded(caplog):
    def train_step(batch):
        logits = net(batch["ids"], batch["mask"])
        cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100).backward()
        net.zero_grad()
        return logits.detach()

    net = make().net
    step = accelerated(train_step)
    assert [step(batch_of(length)).shape[1] for length in (7, 5, 8)] == [7, 5, 8]
    assert "what it returns" in lines_of(caplog)[0]


def test_a_step_that_writes_to_its_batch_sees_its_own(caplog):
    step = make()

    def train_step(batch):
        loss = step(batch)
        batch["labels"].fill_(-100)
        return loss

    run = accelerated(train_step)
    for length in (7, 5):
        batch = batch_of(length)
        run(batch)
        assert bool((batch["labels"] == -100).all())
    assert "it writes to its batch" in lines_of(caplog)[0]


def test_a_step_with_effects_is_not_run_for_its_shapes(caplog):
    def printing(step):
        def run(batch):
            print("step")
            return step(batch)
        return run

    for compare in (True, False):
        caplog.clear()
        plain, twin = make(), make()
        step = accelerated(printing(twin), stepc.Shapes(TOKENS, sizes=[8, 16], compare=compare))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for length in [8, 16, 7, 8, 16, 7, 12] * 3:
                assert_near([step(batch_of(length))], [plain(batch_of(length)).detach()])
        assert printed.getvalue().count("step") == 21
        said = [line for line in lines_of(caplog) if "each size is compiled when it first comes" in line]
        assert len(said) == 1 and ("no batch is padded" in said[0]) == compare
        if not compare:
            assert step.stats["plans"] == 2 and step.stats["late_plans"] == 0


class Noisy(torch.nn.Module):
    """Draws of every kind, as long as the batch; only real tokens count."""

    def __init__(self, net, draw):
        super().__init__()
        self.net, self.draw = net, draw

    def forward(self, ids, mask):
        logits = self.net(ids, mask)
        return logits + 0.1 * self.draw(logits) * mask[..., None]


DRAWS = {
    "dropout": torch.nn.functional.dropout,
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "rand": lambda x: torch.rand(x.shape),
    "randn_like": lambda x: torch.randn_like(x),
    "normal": lambda x: torch.normal(x.detach(), 2.0),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 3),
    "randint": lambda x: torch.randint(2, 9, x.shape).float(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "randperm": lambda x: x[torch.randperm(x.shape[0])] * 0,
}


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_do_not_keep_a_step_from_padding(draw, caplog):
    """They are compared as if every element drew the same; the generator is left as the step itself leaves it."""
    plain, twin = make(dropout=0.5), make(dropout=0.5)
    steps = []
    for step in (plain, twin):
        noisy = Noisy(step.net, DRAWS[draw])

        def train_step(batch, noisy=noisy, optimizer=step.optimizer):
            loss = loss_of(noisy, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        steps.append(train_step)
    run = accelerated(steps[1])
    states = []
    for step in (steps[0], run):
        torch.manual_seed(3)
        step(batch_of(8))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    for length in LENGTHS:
        run(batch_of(length))
    assert lines_of(caplog) == []
    assert run.stats["plans"] == 2 and run.stats["late_plans"] == 0


def test_what_padding_changes_is_found_beside_dropout(caplog):
    step = accelerated(make(mean_loss_of, dropout=0.5))
    for length in (7, 5):
        step(batch_of(length))
    said = lines_of(caplog)
    assert len(said) == 1 and "batches are not padded, each length is compiled as it is: padded, the step differs in" in said[0]


def test_draws_of_a_rare_kind_are_compared_as_they_come(caplog):
    twin = make()

    def train_step(batch):
        weights = torch.empty(batch["ids"].shape).cauchy_().abs().clamp(max=4)
        logits = twin.net(batch["ids"], batch["mask"]) * weights[..., None]
        loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        loss.backward()
        twin.optimizer.step()
        twin.optimizer.zero_grad()
        return loss

    step = accelerated(train_step)
    for length in (7, 5):
        step(batch_of(length))
    assert "batches are not padded" in lines_of(caplog)[0]


@pytest.mark.parametrize("call, names", [("positional", ("ids", "mask", "labels")), ("positional", (0, 1, 2)),
                                         ("keywords", ("ids", "mask", "labels"))])
def test_arguments_by_name_and_by_position(call, names):
    step = make()

    def train_step(ids, mask, labels):
        return step({"ids": ids, "mask": mask, "labels": labels})

    run = accelerated(train_step, stepc.Shapes(dict(zip(names, TOKENS.values())), sizes=[8]))
    for length in (7, 8, 5):
        batch = batch_of(length)
        run(*batch.values()) if call == "positional" else run(**batch)
    assert run.stats["plans"] == 1 and run.stats["late_plans"] == 0


def test_batch_sizes():
    plain, twin = make(), make()
    rows = {"ids": (0, 1), "mask": (0, 1), "labels": (0, -100)}
    step = accelerated(twin, stepc.Shapes(rows, sizes=[2, 4]))
    for count in (3, 4, 1, 2, 3, 4, 1):
        assert_near([step(batch_of(6, count))], [plain(batch_of(6, count)).detach()])
    assert step.stats["plans"] == 2 and step.stats["late_plans"] == 0


def test_compilations_after_the_warm_up_are_counted():
    step = stepc.accelerate(make())
    for length in [8] * 6 + [9] * 6:
        step(batch_of(length))
    assert step.stats["plans"] == 2 and step.stats["late_plans"] == 1
    assert "2 compiled, 1 of them after the warm-up" in step.report()


@pytest.mark.parametrize("arguments, message", [
    (({}, [8]), "the inputs of shapes are {}; they are a dict, such as stepc.Shapes"),
    (({"ids": 1}, [8]), "'ids' of shapes is 1; it is a dimension and what fills it"),
    (({"ids": ("1", 0)}, [8]), "'ids' of shapes is ('1', 0); it is a dimension"),
    (({None: (1, 0)}, [8]), "shapes names None; what has the dimension is named by a text or a position"),
    (({-1: (1, 0)}, [8]), "shapes names -1; what has the dimension is named by a text or a position"),
    ((TOKENS, [8], "no"), "compare of shapes is 'no'; it is True or False"),
    ((TOKENS, []), "the sizes of shapes are []; they are whole numbers from 1"),
    ((TOKENS, [0, 8]), "the sizes of shapes are [0, 8]; they are whole numbers from 1"),
    ((TOKENS, 8), "the sizes of shapes are 8; they are whole numbers from 1"),
    ((TOKENS, [16, 8]), "the sizes of shapes are [16, 8]; give them in ascending order, each once"),
])
def test_mistaken_shapes(arguments, message):
    with pytest.raises(stepc.UserError) as raised:
        stepc.Shapes(*arguments)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("inputs, message", [
    ({"inputs": (1, 0)}, "shapes names 'inputs', which train_step is not given; it is given 'ids', 'mask', 'labels', 'name'"),
    ({"name": (1, 0)}, "shapes names 'name', which is no tensor but a str"),
    ({"ids": (2, 0)}, "shapes names dimension 2 of 'ids', which has 2"),
    ({"ids": (1, 0.5)}, "shapes fills 'ids' with 0.5, which torch.int64 does not hold"),
    ({"ids": (1, float("nan"))}, "shapes fills 'ids' with nan, which torch.int64 does not hold"),
    ({"ids": (1, 2**70)}, "shapes fills 'ids' with 1180591620717411303424, which torch.int64 does not hold"),
    ({"ids": (1, 0), "mask": (0, 0)}, "the sizes of what shapes names differ: 'ids' has 17, 'mask' has 3"),
    ({"ids": (1, 0)}, "'ids' has size 17 in dimension 1, and the largest of shapes is 16: add a size of at least 17"),
])
def test_mistaken_batches(inputs, message):
    twin = make()
    step = accelerated(twin, stepc.Shapes(inputs, sizes=[16]))
    before = state_of(twin)
    with pytest.raises(stepc.UserError) as raised:
        step({**batch_of(17), "name": "a"})
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(twin), strict=True))


def test_shapes_are_of_whole_steps():
    step = make()
    with pytest.raises(stepc.UserError, match="shapes are of a whole step"):
        stepc.accelerate(step.net, step.optimizer, config=stepc.Config(shapes=stepc.Shapes(TOKENS, sizes=[8])))
    with pytest.raises(stepc.UserError, match="shapes is 8; it is a stepc.Shapes"):
        stepc.Config(shapes=8)
