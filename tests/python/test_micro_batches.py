"""A step on one device whose batch is cut into micro-batches: `Config(micro_batches=n)` and nothing else."""

import pytest
import torch

import stepc
from ranks_cases import Training, batches, gpt2

ROWS = 8


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run(training, steps=3, **config):
    step = stepc.accelerate(training.step, config=stepc.Config(**config)) if config else training.step
    return training.run(step, batches(steps, ROWS)), step


def test_is_the_step_of_the_whole_batch():
    alone, training = Training(), Training()
    wanted, _ = run(alone)
    got, step = run(training, micro_batches=4)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-10)
    for name, one in alone.state().items():
        torch.testing.assert_close(training.state()[name], one, rtol=0, atol=1e-10, msg=name)
    stats = step.stats
    assert (stats["plans"], stats["replays"], stats["eager_calls"]) == (1, 3, 0) and stats["warnings"] == []
    assert "cut into    4 micro-batches, whose gradients are added up" in step.report()


def test_holds_less_and_draws_the_same():
    """The masks of dropout are those of the rows of the whole batch."""
    deep = lambda: gpt2(0.3, layers=2)
    steps, losses = [], []
    for config in ({"capture": "virtual"}, {"micro_batches": 2}, {"micro_batches": 8}):
        training = Training(deep, lambda parameters: torch.optim.SGD(parameters, lr=1e-2))  # has no first step of its own
        torch.manual_seed(7)
        got, step = run(training, **config)
        steps.append(step), losses.append(torch.tensor(got))
    for cut in losses[1:]:
        torch.testing.assert_close(cut, losses[0], rtol=0, atol=1e-10)
    whole, halves, rows = (step.stats["planned_peak_bytes"] for step in steps)
    assert rows < halves < whole
    for step in steps[1:]:
        assert step.stats["measured_peak_bytes"] <= 1.02 * step.stats["planned_peak_bytes"]


def noisy(training):
    def step(ids):
        made = training.step(ids)
        with torch.no_grad():
            for one in training.model.parameters():
                one.add_(torch.randn_like(one), alpha=1e-2)
        return made
    return step


def test_what_follows_the_micro_batches_draws_as_the_step_does():
    """Behind masks of dropout, and the generator goes on as it does."""
    losses, states, generators = [], [], []
    for config in ({"capture": "virtual"}, {"micro_batches": 4}):
        training = Training(lambda: gpt2(0.3), lambda parameters: torch.optim.SGD(parameters, lr=1e-2))
        torch.manual_seed(7)
        step = stepc.accelerate(noisy(training), config=stepc.Config(**config))
        losses.append(torch.tensor(training.run(step, batches(3, ROWS))))
        states.append(training.state()), generators.append(torch.get_rng_state())
        assert step.stats["replays"] == 3
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-10)
    for name, one in states[0].items():
        torch.testing.assert_close(states[1][name], one, rtol=0, atol=1e-10, msg=name)
    assert torch.equal(*generators)


def test_stays_within_a_budget():
    deep = lambda: gpt2(layers=2)
    wanted, _ = run(Training(deep))
    _, free = run(Training(deep), micro_batches=2)
    needed = free.stats["state_bytes"] + free.stats["planned_peak_bytes"]
    budget = needed - free.stats["planned_peak_bytes"] // 8
    got, step = run(Training(deep), micro_batches=2, memory_budget=f"{budget // 1024}KiB")
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-10)
    assert step.stats["state_bytes"] + step.stats["measured_peak_bytes"] <= budget
    got, step = run(Training(deep), micro_batches=2, memory_budget="auto")
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-10)
    assert step.stats["planned_peak_bytes"] <= free.stats["planned_peak_bytes"]
    with pytest.raises(stepc.UserError, match=r"^the memory budget is 8\.0 KiB, and the step takes \d+KiB at the least: "
                                              "give that much, or take more micro-batches$"):
        run(Training(deep), micro_batches=2, memory_budget="8KiB")


def test_goes_on_after_a_save(tmp_path):
    alone, first, second = Training(), Training(), Training(seed=5)
    wanted = alone.run(alone.step, batches(4, ROWS))
    step = stepc.accelerate(first.step, config=stepc.Config(micro_batches=2))
    got = first.run(step, batches(4, ROWS)[:2])
    step.save(tmp_path, scheduler=first.scheduler)
    step = stepc.accelerate(second.step, config=stepc.Config(micro_batches=4))
    step.load(tmp_path, scheduler=second.scheduler)
    got += second.run(step, batches(4, ROWS)[2:])
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-10)


def number_of(step, ids):
    loss = step(ids)["loss"]
    return loss * 2 if loss.item() > 0 else loss


@pytest.mark.parametrize(("config", "why"), [
    ({"micro_batches": 0}, "^micro_batches is 0; the least is 1$"),
    ({"micro_batches": 3}, "^micro_batches = 3: batch '0' has 8 rows, which do not divide$"),
    ({"micro_batches": 2, "mode": "exact"},
     '^mode is "exact", which runs the step\'s calls as they are, and micro_batches = 2 cuts them: choose one$'),
    ({"micro_batches": 2, "shard": {"*": {0: "tp"}}}, "^shard is given, and parallel is not"),
    ({"micro_batches": 2, "batch_dims": {"ids": 1}}, "^batch_dims is given, and parallel is not"),
    ({"micro_batches": 2, "loss_mean": "ranks"}, "^loss_mean is given, and parallel is not"),
], ids=["none", "rows", "exact", "shard", "dims", "mean"])
def test_is_refused(config, why):
    with pytest.raises(stepc.UserError, match=why):
        run(Training(), **config)


def test_loop_is_refused():
    training = Training()
    with pytest.raises(stepc.UserError, match="^micro_batches = 2 is of a whole step, and this is a loop that stays as it is"):
        stepc.accelerate(training.model, config=stepc.Config(micro_batches=2))


def test_decides_by_what_it_reads():
    alone, training = Training(), Training()
    wanted = [float(number_of(alone.step, ids)) for ids in batches(3, ROWS)]
    step = stepc.accelerate(lambda ids: number_of(training.step, ids), config=stepc.Config(micro_batches=2))
    assert [float(step(ids)) for ids in batches(3, ROWS)] == pytest.approx(wanted, abs=1e-10)
    assert step.stats["eager_calls"] == 0
