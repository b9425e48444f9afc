"""The `stepc` command of an installed package: runs the program that lies in the package, with the installed torch.

Not part of the package itself, whose import brings PyTorch with it: the program needs LibTorch's libraries only.
"""

import importlib.util
import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "stepc" / "bin" / "stepc"


def library_folders():
    """Where the shared libraries of torch lie, and of pyarrow where it is installed; nothing is imported."""
    folders = []
    for name, inside in (("torch", "lib"), ("pyarrow", "")):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            folders += [str(Path(place) / inside) for place in spec.submodule_search_locations or ()]
        elif name == "torch":
            sys.exit("stepc: torch is not installed beside this package: pip install torch==2.11.0")
    return folders


def main():
    before = os.environ.get("LD_LIBRARY_PATH")
    path = os.pathsep.join(library_folders() + ([before] if before else []))
    try:
        os.execve(PROGRAM, ["stepc", *sys.argv[1:]], os.environ | {"LD_LIBRARY_PATH": path})
    except OSError as error:
        sys.exit(f"stepc: cannot run {PROGRAM}: {error.strerror}; install the package again")
