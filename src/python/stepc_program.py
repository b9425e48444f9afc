"""The `stepc` command of an installed package: runs the program that lies in the package, with the installed torch.

Not part of the package itself, whose import brings PyTorch with it: the program needs LibTorch's libraries only.
"""

import importlib.util
import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "stepc" / "bin" / "stepc"


def library_folders():
    """Where the shared libraries of torch lie; nothing is imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        sys.exit("stepc: torch is not installed beside this package: pip install torch==2.11.0")
    return [str(Path(place) / "lib") for place in spec.submodule_search_locations or ()]


def main():
    before = os.environ.get("LD_LIBRARY_PATH")
    path = os.pathsep.join(library_folders() + ([before] if before else []))
    ours = {"LD_LIBRARY_PATH": path, "STEPC_PYTHON": os.environ.get("STEPC_PYTHON") or sys.executable}
    try:
        os.execve(PROGRAM, ["stepc", *sys.argv[1:]], os.environ | ours)
    except OSError as error:
        sys.exit(f"stepc: cannot run {PROGRAM}: {error.strerror}; install the package again")
