"""Programs that train on "cuda", captured where there is no GPU: each in a process of its own (virtual_cuda_cases.py)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import virtual_cuda_cases as cases

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"


def run(*command):
    paths = os.pathsep.join(path for path in sys.path if path.endswith("python"))
    env = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}  # whatever the machine has
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)
    assert process.returncode == 0, process.stderr
    return process.stdout


def said_by(*case):
    return json.loads(run(str(HERE / "virtual_cuda_cases.py"), *case).splitlines()[-1])


def test_six_models_are_planned_as_they_are_from_the_cpu():
    on_cuda, on_cpu = said_by("on_cuda"), cases.plans("cpu")
    for name, found in on_cuda.items():
        expected = on_cpu[name]
        print(name, {key: (found[key], expected[key]) for key in ("seconds", "bytes", "exact seconds", "exact bytes", "opaque")})
        assert found["obstacle"] == "" and found["first lines"] == ["stepc.schedule 1", "device cuda sm_90"]


def test_what_a_program_asks_is_answered():
    said = said_by("what_torch_says")
    print(said)


@pytest.mark.parametrize("card", ["h100", "a100"])
def test_attention_is_the_kernel_that_pytorch_takes(card):
    print(said_by("attention", card))


def test_what_cannot_be_is_refused_in_one_line():
    for name, line in said_by("refusals").items():
        print(name, "|", line)
    print(said_by("beside_another_device"))


def test_the_example_of_the_documentation_runs():
    (program,) = re.findall(r"^```python process of its own\n(.*?)^```", (DOCS / "gpu.md").read_text(), re.DOTALL | re.MULTILINE)
    print(run("-c", program))
