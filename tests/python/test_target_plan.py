"""A step planned for a GPU that is not here."""

import re

import pytest
import torch

import stepc


def training(mode="fast", width=64, activations=1, **config):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, 4 * width), *[torch.nn.GELU() for _ in range(activations)]]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4 * width, 8)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x):
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, stepc.Config(mode=mode, pace="off", **config)


BATCH = torch.zeros(32, 64, dtype=torch.bfloat16)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_captured_step_is_planned_for_each_card(mode):
    function, config = training(mode)
    step = stepc.accelerate(function, config=config)
    assert step.schedule_text(target="h100") == "" and step.plan_for("h100") is None
    for _ in range(5):
        step(BATCH)
    own = step.schedule_text()
    seconds = {}
    for card, sm in (("a100", 80), ("h100", 90), ("h200", 90), ("b200", 100)):
        text = step.schedule_text(target=card)
        assert text.startswith(f"stepc.schedule 1\ndevice cuda sm_{sm}\nthreads 1\n")
        assert "# memory " in text and re.search(r"# predicted [\d.]+ ms in", text)
        plan = step.plan_for(card)
        assert plan.schedule_text() == text and plan.needed_bytes > 0
        assert bool(plan.memory()) == (mode == "fast")
        seconds[card] = plan.seconds
    assert seconds["a100"] > seconds["h100"] > seconds["h200"] > seconds["b200"] > 0
    assert step.schedule_text() == own and "\ndevice " not in own
    step(BATCH)  # and goes on as it was


def test_a_plan_on_paper_has_both_modes(tmp_path):
    function, _ = training(width=512, activations=3)
    plan = stepc.plan(function, torch.zeros(8192, 512, dtype=torch.bfloat16))
    fast, exact = plan.plan_for("h200"), plan.plan_for("h200", mode="exact")
    assert fast.seconds < exact.seconds  # fusion saves traffic
    assert "aten::" in exact.schedule_text() and "cuBLASLt" in fast.schedule_text()
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(r"^bytes_per_second = .*", "bytes_per_second = 1e12", fast.target, flags=re.M))
    assert plan.plan_for(path).seconds > fast.seconds
    path.write_text("threads = 3\nfeatures = []\n")
    assert plan.plan_for(path).schedule_text().startswith("stepc.schedule 1\nfeatures none\nthreads 3\n")
    with pytest.raises(stepc.UserError, match='mode: must be "fast" or "exact", found "slow"'):
        plan.plan_for("h200", mode="slow")


def test_matmuls_in_tf32_are_priced_where_the_program_asks_for_them():
    width, x = 2048, torch.zeros(4096, 2048)
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan = stepc.plan(step, x)
    f32 = plan.plan_for("h100")
    torch.set_float32_matmul_precision("high")  # conftest.py puts it back
    tf32 = plan.plan_for("h100")
    assert "TF32 matmuls" in tf32.target and "TF32" not in f32.target
    assert tf32.seconds < 0.5 * f32.seconds and tf32.needed_bytes == f32.needed_bytes


def test_what_is_no_target_is_refused(tmp_path):
    function, config = training()
    step = stepc.accelerate(function, config=config)
    for _ in range(4):
        step(BATCH)
    for name, why in (
        ("h110", "did you mean h100.* there are a100, h100, h100-96, h200, b200, gb200, a800, h800"),
        ("v100", "torch has no kernels for a V100"),
        (tmp_path / "none.toml", "there is no such target and no such file"),
    ):
        with pytest.raises(stepc.UserError, match=why):
            step.schedule_text(target=name)
    broken = tmp_path / "broken.toml"
    broken.write_text('device = "cuda"\nname = "mine"\n')
    with pytest.raises(stepc.UserError, match="broken.toml: target, line 1: a GPU: sm is missing"):
        step.schedule_text(target=broken)
    model = stepc.accelerate(torch.nn.Linear(4, 4))
    with pytest.raises(stepc.UserError, match="a plan for another machine is of a whole step"):
        stepc.schedule_text(model, target="h100")
