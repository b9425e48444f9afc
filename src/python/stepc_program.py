"""The `stepc` command of an installed package: runs the program inside the package, with the installed torch.

Not part of the package itself, because importing that also imports PyTorch: the program needs only LibTorch's
libraries.
"""

import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "stepc"
PROGRAM = PACKAGE / "bin" / "stepc"


def torch_folder():
    """Where torch is installed, if it is the one that the program needs; neither package is imported."""
    built_for = runpy.run_path(PACKAGE / "built_for.py")
    spec = importlib.util.find_spec("torch")
    if spec is None:
        sys.exit(f"stepc: torch is not installed beside this package: pip install 'torch=={built_for['TORCH']}.*'")
    folder = Path(spec.submodule_search_locations[0])
    version = re.search("__version__ = '(.+)'", (folder / "version.py").read_text())[1]
    refusal = built_for["refusal"](version)
    if refusal:
        sys.exit(f"stepc: {refusal}")
    return folder


def main():
    before = os.environ.get("LD_LIBRARY_PATH")
    path = os.pathsep.join([str(torch_folder() / "lib"), *([before] if before else [])])
    ours = {"LD_LIBRARY_PATH": path, "STEPC_PYTHON": os.environ.get("STEPC_PYTHON") or sys.executable}
    try:
        os.execve(PROGRAM, ["stepc", *sys.argv[1:]], os.environ | ours)
    except OSError as error:
        sys.exit(f"stepc: cannot run {PROGRAM}: {error.strerror}; install the package again")
