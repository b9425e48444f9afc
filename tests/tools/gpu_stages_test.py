"""tools/gpu_stages and gpu_kernels where there is no GPU: what they say then, what becomes of a stage that fails, and
the whole way to the driver and back with tests/gpu/pretend/cuda.cpp in its place."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import time
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/gpu_stages"


@pytest.fixture
def stages():
    loader = importlib.machinery.SourceFileLoader("gpu_stages", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_stages", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def program(request):
    return ROOT / request.config.getoption("--build-dir") / "tests/gpu_kernels"


def run(*words):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=60)


def test_the_list_has_a_line_a_stage(stages):
    lines = run("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(stages.STAGES)
    assert all(line.split()[2] == "s" and len(line.split()) > 5 for line in lines)


def test_an_unknown_stage_is_one_line():
    ran = run("--only", "kernel")
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr == "gpu_stages: no stage 'kernel'; one of: machine, kernels, kernel_rates, sanitizer, steps, exact, calibrate, step_times, nccl\n"


def test_what_a_stage_keeps_is_written_while_it_runs(stages, tmp_path):
    out = tmp_path / "gpu.json"

    def looks(stage):
        stage.keep(seen=1)
        while not out.exists():
            time.sleep(0.01)
        stage.keep(then=json.loads(out.read_text())["looks"])

    stages.STAGES = {"looks": (20, looks)}
    assert stages.main(["--out", str(out)]) == 0
    found = json.loads(out.read_text())["looks"]
    assert found["state"] == "ok" and found["result"]["then"] == {"state": "running", "why": "", "result": {"seen": 1}}


@pytest.mark.parametrize("name", ["steps", "exact", "calibrate", "step_times", "nccl"])
def test_stages_for_steps_want_a_wheel(name, tmp_path):
    ran = run("--only", name, "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    assert ran.returncode == 1
    assert f"{tmp_path}/wheels has no wheel of stepc: make gpu-bundle where python3.12 is" in ran.stdout


@pytest.mark.parametrize("name", ["steps", "exact", "calibrate", "step_times", "nccl"])
def test_stages_for_steps_say_that_there_is_no_device(stages, name, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("[SKIP] there is a device")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/stepc-0.whl").touch()
    (tmp_path / "site").mkdir()
    assert stages.main(["--only", name, "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json")]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())[name]
    assert (found["state"], found["why"]) == ("failed", "no device: torch.cuda.is_available() is false")


# As compute-sanitizer prints between what the program does.
SANITIZER = """#!/usr/bin/env python3
import json, sys, time
print("========= COMPUTE-SANITIZER")
for case in range(3):
    print(json.dumps({"case": case, "outcome": "same"}), flush=True)
if sys.argv[2] in FAULTS:
    print("========= Invalid __global__ write of size 4 bytes")
    print("=========     at group_1+0x40")
if sys.argv[2] in HANGS:
    time.sleep(60)
print("========= ERROR SUMMARY: 0 errors" if sys.argv[2] == "memcheck" else "========= RACECHECK SUMMARY: 0 hazards displayed")
"""


@pytest.mark.parametrize("faults, hangs, state, why", [
    ([], [], "ok", ""), (["memcheck"], [], "failed", "memcheck: Invalid __global__ write of size 4 bytes"),
    ([], ["racecheck"], "ok", "")], ids=["clean", "fault", "slow"])
def test_the_sanitizers_findings(stages, tmp_path, faults, hangs, state, why):
    (tmp_path / "gpu_kernels").touch()
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER.replace("FAULTS", str(faults)).replace("HANGS", str(hangs)))
    tool.chmod(0o755)
    stages.STAGES["sanitizer"] = (40 if hangs else 120, stages.sanitizer)  # a tool has half of it, less 10 s
    stages.main(["--only", "sanitizer", "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json")])
    found = json.loads((tmp_path / "gpu.json").read_text())["sanitizer"]
    assert (found["state"], found["why"]) == (state, why), found
    for check in ("memcheck", "racecheck"):
        assert found["result"][check]["cases"] == 3 and found["result"][check]["ended"] == (check not in hangs)


def test_the_sanitizer_is_asked_for(stages, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    stages.STAGES["sanitizer"] = (20, stages.sanitizer)
    if Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("[SKIP] it is here")
    assert stages.main(["--only", "sanitizer", "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json")]) == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["sanitizer"]
    assert found["why"].startswith("compute-sanitizer is neither on PATH nor in ")


def test_a_target_file_of_measured_rates(tmp_path):
    loader = importlib.machinery.SourceFileLoader("gpu_target_benchmark", str(ROOT / "benchmarks/gpu_target_benchmark.py"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_target_benchmark", loader))
    loader.exec_module(module)
    card = types.SimpleNamespace(name="NVIDIA L4", major=8, minor=9, multi_processor_count=58, L2_cache_size=50331648,
                                 total_memory=23034527744)
    known = module.known("h100")
    said = []
    measure = {"copy": lambda: 2.7e11, "matmuls": lambda row: 1e13 + int(row["rows"]), "attentions": lambda row: 3e13}
    made = module.measured(known, 60, measure, card, said.append)
    assert 'name = "NVIDIA L4"\nsm = 89\nmultiprocessors = 58\n' in made and "bytes_per_second = 2.7e+11\n" in made
    assert len(said) == 1 + known.count("[[") and made.count("flops_per_second = 3e+13") == known.count("[[attentions]]")
    assert module.measured(known, -1, measure, card).count("flops_per_second = 3e+13") == 0
    import stepc
    import torch
    file = tmp_path / "l4.toml"
    file.write_text(made)
    plan = stepc.plan(lambda x: x * 2, torch.zeros(4)).plan_for(str(file))
    assert "NVIDIA L4" in plan.report()


def test_a_stage_that_fails_or_hangs_leaves_the_others_alone(stages, tmp_path, capfd):
    def fails(stage):
        stage.keep(seen=3)
        raise stages.Failed("2 kernels are wrong")

    def hangs(stage):
        stage.keep(seen=4)
        subprocess.run(["sleep", "60"])

    stages.STAGES = {"breaks": (20, lambda stage: {}["no"]), "fails": (20, fails), "dies": (20, lambda stage: os._exit(7)),
                     "hangs": (1, hangs), "works": (20, lambda stage: stage.keep(seen=5))}
    begin = time.monotonic()
    assert stages.main(["--out", str(tmp_path / "new/gpu.json")]) == 1
    assert time.monotonic() - begin < 30
    found = json.loads((tmp_path / "new/gpu.json").read_text())
    assert {name: (one["state"], one["why"], one["result"]) for name, one in found.items()} == {
        "breaks": ("failed", "KeyError: 'no'", {}),
        "fails": ("failed", "2 kernels are wrong", {"seen": 3}),
        "dies": ("failed", "its process ended with 7", {}),
        "hangs": ("timed out", "more than 1 s", {"seen": 4}),
        "works": ("ok", "", {"seen": 5}),
    }
    assert "hangs: timed out in 1." in capfd.readouterr().out


def test_results_are_written_after_every_stage(stages, tmp_path):
    out = tmp_path / "gpu.json"
    before = []
    stages.STAGES = {"one": (20, lambda stage: None), "two": (20, lambda stage: stage.keep(before=out.read_text()))}
    assert stages.main(["--out", str(out)]) == 0
    assert list(json.loads(json.loads(out.read_text())["two"]["result"]["before"])) == ["one"]


def test_without_a_bundle_a_stage_says_so(tmp_path):
    ran = run("--only", "kernels", "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    assert ran.returncode == 1
    assert "gpu_kernels is not there: make gpu-bundle" in ran.stdout


# A program that prints case after case; the device fails in case 2, a process dies in case 4.
FAILING = """#!/usr/bin/env python3
import json, os, sys
first = int(sys.argv[4])
print(json.dumps({"cases": 6}))
for case in range(first, 6):
    print(json.dumps({"begin": case, "name": f"group {case}"}), flush=True)
    if case == 4:
        os.abort()
    outcome = {1: "differs", 2: "failed"}.get(case, "same")
    print(json.dumps({"case": case, "name": f"group {case}", "outcome": outcome, "cuda": "the text", "why": "why"}))
    if case == 2:
        sys.exit(4)
sys.exit(1 if first <= 1 else 0)
"""


def test_after_a_failure_of_the_device_the_next_case_goes_on(tmp_path):
    (tmp_path / "gpu_kernels").write_text(FAILING)
    ran = run("--only", "kernels", "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    found = json.loads((tmp_path / "gpu.json").read_text())["kernels"]
    assert ran.returncode == 1 and found["state"] == "failed", ran.stdout
    assert found["why"] == "3 programs are wrong, 0 were not run"
    result = found["result"]
    assert (result["same"], result["differs"], result["failed"], result["starts"]) == (3, 1, 2, 3)
    assert [one["name"] for one in result["bad"]] == ["group 1", "group 2", "group 4"]
    assert "DIFFERS case 1, group 1" in ran.stdout and "the text" in ran.stdout and "exit code -6" in ran.stdout


# Times kernel after kernel; the device fails in the second one, and goes on failing in this process.
FAILING_TIMES = """#!/usr/bin/env python3
import json, os, sys
names = ["copy", "norm", "softmax"]
print(json.dumps({"names": names, "copy_rate": 3e12}))
for name in names:
    if not name.startswith(sys.argv[4] if len(sys.argv) > 4 else ""):
        continue
    print(json.dumps({"begin": name}), flush=True)
    if name == "norm":
        os.abort()
    print(json.dumps({"kernel": name, "result": "same", "microseconds": 1, "rate": 2e12, "of_copy": 0.7, "phases": []}))
"""


def test_after_a_failure_of_the_device_the_next_kernel_is_timed(tmp_path):
    (tmp_path / "gpu_kernels").write_text(FAILING_TIMES)
    ran = run("--only", "kernel_rates", "--bundle", str(tmp_path), "--out", str(tmp_path / "gpu.json"))
    found = json.loads((tmp_path / "gpu.json").read_text())["kernel_rates"]
    assert ran.returncode == 1 and found["why"] == "1 kernels are wrong: norm", ran.stdout
    assert [one["kernel"] for one in found["result"]["kernels"]] == ["copy", "norm", "softmax"]
    assert found["result"]["copy_rate"] == 3e12 and "70.0 %  same" in ran.stdout


def test_the_program_brings_no_compiler(program):
    """LLVM would be 200 MB of the bundle's 35."""
    libraries = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    assert "libfmt" in libraries and "LLVM" not in libraries


def test_the_program_says_in_one_line_that_there_is_no_driver(program, tmp_path):
    if Path("/dev/nvidia0").exists():
        pytest.skip("[SKIP] there is a device")
    for words in (["machine"], ["check", tmp_path], ["time", tmp_path]):
        ran = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 77
        assert ran.stdout.startswith("[SKIP] no CUDA device: ") and len(ran.stdout.splitlines()) == 1, ran.stdout


@pytest.fixture(scope="module")
def pretend(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("pretend")
    source = ROOT / "tests/gpu/pretend/cuda.cpp"
    subprocess.run(["c++", "-std=c++20", "-shared", "-fPIC", f'-DSOURCES="{ROOT}"', source, "-o",
                    tmp_path / "libcuda.so.1"], check=True, timeout=120)
    (tmp_path / "libnvrtc.so.13").symlink_to("libcuda.so.1")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "TMPDIR": str(tmp_path)}


def lines_of(*words, env):
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    return [json.loads(line) for line in ran.stdout.splitlines()], ran


def test_kernels_on_a_pretended_device(program, pretend):
    check = [program, "check", pretend["TMPDIR"] + "/code", ROOT]
    count = lines_of(*check, "1000000", env=pretend)[0][0]["cases"]
    lines, ran = lines_of(*check, str(count - 2), env=pretend)
    assert ran.returncode == 0, ran
    assert [line["outcome"] for line in lines if "case" in line] == ["same"] * 2
    for fault, outcome, code in (("fails", "failed", 4), ("skips", "differs", 1), ("strays", "differs", 1)):
        lines, ran = lines_of(*check, str(count - 2), env={**pretend, "PRETEND_FAULT": fault})
        assert ran.returncode == code and lines[-1]["outcome"] == outcome and "__global__" in lines[-1]["cuda"], ran
        if fault == "fails":
            assert "launch of group" in lines[-1]["why"] and "a pretended error" in lines[-1]["why"]
        if fault == "skips":
            assert lines[-1]["differences"][0]["different"] > 0 and lines[-1]["differences"][0]["first"]
        if fault == "strays":
            assert "is written: 0x0 for 0xa5" in lines[-1]["why"]


def test_times_on_a_pretended_device(program, pretend):
    """Of few rows: every row of the results is compared, and sums over the rows."""
    lines, ran = lines_of(program, "time", pretend["TMPDIR"] + "/code", "16", "rms norm", env=pretend)
    assert ran.returncode == 0, ran
    kernels = {line["kernel"]: line for line in lines if "kernel" in line}
    forward, backward = kernels["rms norm 16 x 2048"], kernels["rms norm backward 16 x 2048"]
    assert forward["result"] == "same" and forward["bytes"] == 2 * 16 * 2048 * 2 + 2048 * 2 + 16 * 4
    assert backward["result"] == "within" and len(backward["phases"]) == 2
