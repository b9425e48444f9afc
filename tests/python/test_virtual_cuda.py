"""Programs that train on "cuda", captured where there is no GPU: a process for each card (virtual_cuda_cases.py)."""

import concurrent.futures
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import virtual_cuda_cases as cases
from on_ranks import PACKAGE

pytestmark = pytest.mark.one_process  # that starts those of its own

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"


def run(*command):
    paths = os.pathsep.join(map(str, (PACKAGE, HERE)))
    env = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}  # whatever the machine has
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)
    assert process.returncode == 0, process.stderr
    return process.stdout


@functools.cache
def said_on(card):
    return json.loads(run(str(HERE / "virtual_cuda_cases.py"), card).splitlines()[-1])


def test_six_models_are_planned_as_they_are_from_the_cpu():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        elsewhere = pool.submit(said_on, "h100")
        on_cpu, on_cuda = cases.plans("cpu"), elsewhere.result()["plans"]
    for name, found in on_cuda.items():
        expected = on_cpu[name]
        assert found["obstacle"] == "" and found["first lines"] == ["stepc.schedule 1", "device cuda sm_90"]
        for key in ("bytes", "exact bytes"):
            assert found[key] == pytest.approx(expected[key], rel=0.005), f"{name}: {key}"
        if name == "t5":  # its mask has a gradient, which only the memory-efficient kernel gives; the CPU has none that does
            assert found["opaque"]["aten::_scaled_dot_product_efficient_attention"] == 6
            continue
        assert found["opaque"] == expected["opaque"]
        expected["seconds"] += 1e-6 * found["copies"]  # of a batch that is on the card when a step is captured on the CPU
        for key in ("seconds", "exact seconds"):  # autocast's lists differ a little
            assert found[key] == pytest.approx(expected[key], rel=0.06), f"{name}: {key}"


def test_what_a_program_asks_is_answered():
    said = said_on("h200")["questions"]
    assert said["questions"] == [True, 1, 0, "NVIDIA H200 141GB", [9, 0], True, 0, 132, "cuda:0", "cuda:0", "cuda"]
    assert said["known"] == [6, [1.5, 2.5], False, [3, 4, 5]] and said["generator moves"]
    for name in ("default", "fused", "sgd"):
        assert said[name]["obstacle"] == "" and said[name]["seconds"] > 0, said[name]
        assert {"aten::native_dropout", "aten::_fused_rms_norm"} <= said[name]["calls"].keys()
    assert "aten::_foreach_lerp_.Scalar" in said["default"]["calls"]  # PyTorch's default on a GPU
    assert {"aten::_fused_adamw_", "aten::_amp_update_scale_"} <= said["fused"]["calls"].keys()


KERNELS = {  # on a card that prefers cuDNN's, and on one that does not
    "plain": ("cudnn", "flash"), "causal": ("cudnn", "flash"), "masked": ("cudnn", "efficient"),
    "float32": ("efficient", "efficient"), "odd": ("efficient", "efficient"), "dropped": ("flash", "flash"),
    "dropped by 16ths": ("cudnn", "flash"), "grouped": ("cudnn", "flash"), "wide": ("flash", "flash"),
    "learns": ("efficient", "efficient"), "narrow": ("flash", "flash"),
}


@pytest.mark.parametrize("card, column", [("h200", 0), ("a100", 1)])
def test_attention_is_the_kernel_that_pytorch_takes(card, column):
    said = said_on(card)["attention"]
    for name, kernels in KERNELS.items():
        kernel = f"aten::_scaled_dot_product_{kernels[column]}_attention"
        assert said[name] == [kernel, f"{kernel}_backward"], name


SECOND = r'stepc.virtual\(device="cuda"\) has one device, cuda:0, and the program asks for cuda:1'
REFUSALS = {
    "other device": 'device: must be "cpu" or "cuda", found "xpu"',
    "no such card": "torch has no kernels for a V100",
    "no CUDA": "needs a torch that is built for CUDA",
    "second": SECOND,
    "moved to second": SECOND,
    "set second": SECOND,
    "read": r"aten::_local_scalar_dense reads a value that was never computed.*\(at virtual_cuda_cases.py:\d+\)",
    "listed": "this tensor has no values",
    "mixed": r"takes a tensor on cuda:0 and one of \[2, 64\] on the CPU, which PyTorch refuses, too",
    "nested": "a virtual region is opened inside another one",
    "accelerated": r'accelerate\(\): nothing runs on the GPU of stepc.virtual\(device="cuda"\); stepc.plan\(train_step, batch\) plans a step',
    "timed": "no time passes between two events",
    "memory": "a tensor on cuda:0 has no memory on this machine",
    "afterwards": r"aten::sum would run on cuda:0.*can be planned \(stepc.plan\), not run",
    "made afterwards": "would run on cuda:0",
    "another card": "this process shows a h100 from its first region on, and a a100 is asked for",
}


def test_what_cannot_be_is_refused_in_one_line():
    said = said_on("h100")["refusals"]
    for name, expected in REFUSALS.items():
        assert re.search(expected, said[name]) and "\n" not in said[name], f"{name}: {said[name]}"
    assert said["the CPU goes on"] == 3 and said["plan afterwards"] == ""


def test_a_process_with_another_kind_of_device_is_refused():
    assert re.search("processes of their own: this process has tensors on emulated", said_on("none")["refusal"])


def test_the_example_of_the_documentation_runs():
    (program,) = re.findall(r"^```python process of its own\n(.*?)^```", (DOCS / "gpu.md").read_text(), re.DOTALL | re.MULTILINE)
    assert re.search(r"planned for NVIDIA H100 80GB \(cuda sm_90\)\nmemory [\d.]+ GiB; .*\npredicted [\d.]+ ms in", run("-c", program))
