"""A step's Schedule as text: the same wherever and whenever it is made, and all that another process needs to run it."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import stepc
from harness import accelerate_found, difference, source_of

MODES = ("fast", "exact")
REPLAYS = 10
WARM_UP = 5  # calls until a plan runs and has been compared with eager


class Program:
    """A small training program, whose scalars are numbers of its optimizer that stay as they are."""

    def __init__(self, kind, mode, **config):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.25 if kind == "dropout" else 0.0),
                              nn.Linear(16, 4))
        if kind == "adamw":
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
            # Arguments of aten::_foreach_add_ and aten::_fused_adamw_, and of aten::add_.
            self.numbers = {1: 1.0, 6: 1e-2, 7: 0.9, 8: 0.999, 9: 1e-2, 10: 1e-8}
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.numbers = {2: -0.1}

        def step(x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss, loss.item()

        self.model, self.optimizer = model, optimizer
        self.step = stepc.accelerate(step, config=stepc.Config(mode=mode, **{"kernel_directory": "", **config}))

    def batch(self, i):
        source = source_of(i)
        return torch.randn(8, 6, generator=source), torch.randn(8, 4, generator=source)

    def train(self, steps, first=0):
        for i in range(first, first + steps):
            self.step(*self.batch(i))
        return self

    def state(self):
        """Everything that the step writes, under the names that run-schedule has for it."""
        out = {}
        for name, parameter in self.model.named_parameters():
            out[f"parameter {name}"] = parameter
            out[f"gradient {name}"] = parameter.grad
            for key, value in self.optimizer.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    out[f"optimizer_state optimizer.{name}.{key}"] = value
        return {name: tensor.detach().clone() for name, tensor in out.items()}

    def inputs(self, batch):
        """What the Schedule reads, as run-schedule takes it."""
        there = self.state() | {f"batch {k}": tensor for k, tensor in enumerate(batch)}
        out = {}
        for kind, key in re.findall(r'^input \d+: (\w+) "(.*)" %', self.step.schedule_text(), re.MULTILINE):
            if kind == "scalar":
                out[f"scalar {key}"] = torch.tensor(self.numbers[int(key.split(":")[-1])], dtype=torch.float64)
            elif kind != "rng":
                out[f"{kind} {key}"] = there[f"{kind} {key}"]
        return out


def test_text_is_empty_before_the_first_plan(tmp_path):
    program = Program("sgd", "fast")
    assert program.step.schedule_text() == ""
    program.step.save_schedule(tmp_path / "step.schedule")
    assert (tmp_path / "step.schedule").read_text() == ""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sgd", "adamw", "dropout"])
def test_replays_leave_the_text_as_it_is(kind, mode, tmp_path):
    program = Program(kind, mode)
    for i in range(WARM_UP):
        if program.step.schedule_text() == "":
            assert program.step.stats["replays"] == 0
            program.train(1, i)
    text = program.step.schedule_text()
    assert text.startswith("stepc.schedule 1\n")
    program.train(REPLAYS + 1)
    assert program.step.stats["replays"] + program.step.stats["checks"] >= REPLAYS
    assert program.step.schedule_text() == text
    program.step.save_schedule(tmp_path / "step.schedule")
    assert (tmp_path / "step.schedule").read_text() == text


# ---- one text everywhere


def texts(directory):
    """Of programs in both modes; with kernel directories that are empty, warm, and cannot be made."""
    (directory / "file").write_text("")
    out = {"exact": Program("adamw", "exact").train(WARM_UP).step.schedule_text()}
    for kind in ("adamw", "dropout"):
        for place, kernels in (("cold", "kernels"), ("warm", "kernels"), ("unwritable", "file/kernels")):
            program = Program(kind, "fast", kernel_directory=str(directory / kernels)).train(WARM_UP)
            out[f"{kind} {place}"] = program.step.schedule_text()
    return out


def burn(stop):
    x = torch.randn(64, 64)
    while not stop.is_set():
        x = (x @ x).tanh()


def main(directory):
    torch.set_num_threads(2)
    stop = threading.Event()
    burners = [threading.Thread(target=burn, args=(stop,)) for _ in range(3)]
    for burner in burners:
        burner.start()
    try:
        for name, text in texts(directory).items():
            (directory / name).write_text(text)
    finally:
        stop.set()
        for burner in burners:
            burner.join()


def test_processes_and_kernel_directories_do_not_change_the_text(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = texts(tmp_path / "here")
    assert any((tmp_path / "here" / "kernels").iterdir()), "no kernels were kept"
    for kind in ("adamw", "dropout"):
        assert here[f"{kind} cold"] == here[f"{kind} warm"] == here[f"{kind} unwritable"]
    subprocess.run([sys.executable, __file__, tmp_path / "there"], check=True, timeout=300,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    for name, text in here.items():
        assert text and (tmp_path / "there" / name).read_text() == text, name


@pytest.mark.parametrize("mode", MODES)
def test_irtool_plans_the_same_schedule(mode, build_dir, tmp_path):
    program = Program("adamw", mode).train(WARM_UP)
    program.step.save_graph(tmp_path / "step.trace")
    text = program.step.schedule_text()
    features = re.search(r"^features (.*)$", text, re.MULTILINE)[1].replace("none", "").split(", ")
    threads = re.search(r"^threads (\d+)$", text, re.MULTILINE)[1]
    if mode == "exact":
        features = ["avx512"]  # recorded calls ask for none
    (tmp_path / "target.toml").write_text(f"threads = {threads}\nfeatures = {[name for name in features if name]}\n")
    command = [build_dir / "tools/irtool", "--schedule", "--verify", "--target", tmp_path / "target.toml",
               *(["--exact"] if mode == "exact" else []), tmp_path / "step.trace"]
    planned = subprocess.run(command, capture_output=True, text=True)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout == text
    hashes = {subprocess.run([*command, "--hash"], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(hashes) == 1 and re.fullmatch(r"[0-9a-f]{16}\n", hashes.pop())


# ---- memory


@pytest.mark.parametrize("name, mode", [("gpt2", "fast"), ("gpt2", "exact"), ("llama", "fast"), ("vit", "fast"),
                                        ("timm_resnet", "exact")])
def test_replays_allocate_nothing_that_is_not_planned(name, mode):
    from models import MODELS  # what the other process has no need of
    from test_models import build_training, make_batches

    model = MODELS[name]
    torch.manual_seed(0)
    make_batch = make_batches(model, "float32", False)
    step = accelerate_found(build_training(model, "float32", False), stepc.Config(mode=mode, kernel_directory=""))
    for i in range(WARM_UP + REPLAYS):
        step(make_batch(i))
    stats = step.stats
    assert stats["replays"] + stats["checks"] >= REPLAYS and stats["warnings"] == []
    assert stats["unplanned_allocations"] == 0


# ---- another process runs it


class Runner:
    def __init__(self, binary, path):
        self.binary, self.path = binary, path

    def __call__(self, text, inputs, *options):
        (self.path / "step.schedule").write_text(text)
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in inputs.items()},
                                    self.path / "in.safetensors")
        return self.run("step.schedule", "in.safetensors", *options)

    def run(self, schedule, inputs, *options):
        command = [self.binary, "run-schedule", schedule, inputs, "--out", "out.safetensors", "--kernels", "kernels"]
        return subprocess.run([*command, *options], cwd=self.path, capture_output=True, text=True, timeout=120)

    def results(self):
        return safetensors.torch.load_file(self.path / "out.safetensors")


@pytest.fixture
def run_schedule(build_dir, tmp_path):
    return Runner(build_dir / "src/stepc", tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sgd", "adamw", "dropout"])
def test_another_process_runs_it_bit_by_bit(kind, mode, run_schedule):
    program = Program(kind, mode, verify="off").train(WARM_UP)  # the next step is a replay, and none that is checked
    batch = program.batch(99)
    text, inputs = program.step.schedule_text(), program.inputs(batch)
    assert any(name.startswith("scalar ") for name in inputs) == (mode == "fast")
    torch.manual_seed(7)
    replays = program.step.stats["replays"]
    loss, number = program.step(*batch)
    assert program.step.stats["replays"] == replays + 1 and program.step.schedule_text() == text

    done = run_schedule(text, inputs, "--seed", "7")
    assert (done.returncode, done.stderr) == (0, "")
    results = run_schedule.results()
    del results["number 1"]  # the door's own: into what it makes the others
    expected = program.state() | {"return 0": loss, "number 0": torch.tensor(number, dtype=torch.float64)}
    assert set(results) == set(expected)
    for name, tensor in expected.items():
        assert not difference(tensor, results[name]), name
    if kind == "dropout":
        assert run_schedule(text, inputs, "--seed", "8").returncode == 0
        assert difference(loss, run_schedule.results()["return 0"]), "the seed is not used"


# A weight, a window on its last two elements, and a row that is repeated.
BY_HAND = """\
stepc.schedule 1
features none
threads 1
arena 64
live bound 4
layout "best_fit"
numbers 1
buffer b0: input 32 of 0
buffer b1: input 12 of 2
buffer b2: arena 4 at 0
buffer b3: own 32
buffer b4: constant 4 = 0000c842
buffer b5: own 1
operand %0: f32[2, 4](1, 2) in b0
operand %1: f32[2]+6 in b0
operand %2: f32[2, 3](0, 1) in b1
operand %3: f32[] in b2
operand %4: f32[2, 4] in b3
operand %5: f32[] in b4
operand %6: bool[] in b5
input 0: parameter "w" %0 written
input 1: parameter "tail" %1 written
input 2: batch "0" %2
i0: aten aten::sum (%2) -> (%3) args(#0, none) results(#0) allocations [4 at 0] call 0 | forward ""
i1: aten aten::_local_scalar_dense (%3) -> () args(#0) call 1 number 0 | forward ""
i2: aten aten::lt.Tensor (%3, %5) -> (%6) args(#0, #1) results(#0) allocations [1 own] call 2 | forward ""
i3: guard "" (%6) -> () | forward ""
i4: event "update" () -> () event 0 | update ""
i5: aten aten::mul_.Tensor (%0, %3) -> (%0) args(#0, #1) writes 0 call 3 | update ""
i6: copy copy (%0) -> (%4) | update ""
output return %4
output return none
output rebind %4 gradient "w"
output number none = read(0, double)
output number none = 3
"""
WEIGHT = torch.arange(8.0).reshape(2, 4)
INPUTS = {"parameter w": WEIGHT, "parameter tail": WEIGHT[:, 3], "batch 0": torch.tensor([[1.0, 2, 3], [1, 2, 3]])}


def test_inputs_lie_as_the_schedule_says(run_schedule):
    done = run_schedule(BY_HAND, INPUTS)
    assert (done.returncode, done.stderr) == (0, "")
    results = run_schedule.results()
    assert set(results) == {"parameter w", "parameter tail", "gradient w", "return 0", "number 0", "number 1"}
    for name in ("parameter w", "gradient w", "return 0"):
        assert torch.equal(results[name], WEIGHT * 12)
    assert torch.equal(results["parameter tail"], WEIGHT[:, 3] * 12)
    assert results["number 0"].item() == 12 and results["number 0"].dtype == torch.float64
    assert results["number 1"].item() == 3 and results["number 1"].dtype == torch.int64


def without(name):
    return {other: tensor for other, tensor in INPUTS.items() if other != name}


def line(old, new):
    assert BY_HAND.count(old) == 1
    return BY_HAND.replace(old, new)


BAD = {
    "unknown name": (BY_HAND, INPUTS | {"parameter tial": WEIGHT.clone()},
                     'in.safetensors: the step reads no tensor "parameter tial", did you mean "parameter tail"?'),
    "missing": (BY_HAND, without("batch 0"), 'in.safetensors: no tensor "batch 0", which the step reads'),
    "shape": (BY_HAND, INPUTS | {"parameter w": WEIGHT.T}, 'in.safetensors: "parameter w" is f32[4, 2], the step reads '
              'f32[2, 4]'),
    "dtype": (BY_HAND, INPUTS | {"parameter w": WEIGHT.double()}, '"parameter w" is f64[2, 4]'),
    "shared memory": (BY_HAND, INPUTS | {"parameter tail": torch.zeros(2)}, '"parameter w" shares memory'),
    "repeated": (BY_HAND, INPUTS | {"batch 0": torch.arange(6.0).reshape(2, 3)}, '"batch 0" shares memory'),
    "no text": ("", INPUTS, "step.schedule: schedule text, line"),
    "cut": (BY_HAND[: BY_HAND.index("i5: aten") + 9], INPUTS, "step.schedule: schedule text, line"),
    "word": (line("i5: aten ", "i5: atem "), INPUTS, "step.schedule: schedule text, line"),
    "leaves its buffer": (line("f32[2]+6", "f32[2]+7"), INPUTS, "step.schedule: no Schedule that can run: "),
    "arena": (line("arena 64", "arena 0"), INPUTS, "step.schedule: no Schedule that can run: "),
    "operator": (line("aten::mul_.Tensor", "aten::nul_.Tensor"), INPUTS, "aten::nul_.Tensor"),
    "arguments": (line("args(#0, #1) writes 0", "args(#0) writes 0"), INPUTS, "with 1 arguments"),
    "unknown feature": (line("features none", "features bf16, f32, avx512, sse9"), INPUTS, "step.schedule: "),
    "threads": (line("threads 1", "threads 1000000"), INPUTS, "step.schedule: threads 1000000: at most 4096"),
    "pause": (line('i4: event "update" () -> ()', 'i4: pause "update" (%0) -> ()'), INPUTS,
              "step.schedule: pauses for the loop around it"),
    "host code": (line('i4: event "update" ()', 'i4: event "update" (%0)'), INPUTS,
                  "step.schedule: 'update' computes on the host"),
    "what an event writes": (line('i4: event "update" () -> ()', 'i4: event "update" () -> (%4)'), INPUTS,
                             "step.schedule: no Schedule that can run: "),
    "generators": (line("buffer b0:", 'generator "default"\ngenerator "mine"\nbuffer b0:'), INPUTS,
                   "step.schedule: draws from generators of its program's own, such as 'mine'"),
    "two of a name": (line('"tail"', '"w"'), without("parameter tail"), 'two inputs are named "parameter w"'),
}


@pytest.mark.parametrize("text, inputs, complaint", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line(run_schedule, text, inputs, complaint):
    (run_schedule.path / "out.safetensors").write_text("what was there")
    done = run_schedule(text, inputs)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"stepc: .*\n", done.stderr) and complaint in done.stderr
    assert (run_schedule.path / "out.safetensors").read_text() == "what was there"
    assert {file.name for file in run_schedule.path.iterdir()} <= {"step.schedule", "in.safetensors",
                                                                  "out.safetensors", "kernels"}


def test_the_seed_is_a_number(run_schedule):
    done = run_schedule(BY_HAND, INPUTS, "--seed", "-1")
    assert done.returncode == 2 and re.fullmatch(r"stepc: --seed: .* found -1; .*\n", done.stderr)


def test_files_that_are_not_there_are_named(run_schedule):
    run_schedule(BY_HAND, INPUTS)
    for files in (("nowhere", "in.safetensors"), ("step.schedule", "nowhere"), ("step.schedule", "step.schedule")):
        done = run_schedule.run(*files)
        assert done.returncode == 2 and re.fullmatch(r"stepc: .*(nowhere|step\.schedule).*\n", done.stderr)


def test_a_guard_that_does_not_hold_fails_the_run(run_schedule):
    (run_schedule.path / "out.safetensors").write_text("what was there")
    done = run_schedule(BY_HAND, INPUTS | {"batch 0": torch.full((2, 3), 100.0)})
    assert done.returncode == 1
    assert done.stderr == "stepc: step.schedule: a guard of the step does not hold on these inputs\n"
    assert (run_schedule.path / "out.safetensors").read_text() == "what was there"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
