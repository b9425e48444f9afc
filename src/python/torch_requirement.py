"""The version of torch that the package requires: the minor version that it is built against. pip's build asks
(pyproject.toml)."""

import os
import re
import sysconfig
from pathlib import Path

FIRST, LAST = (2, 11), (2, 15)  # cmake/FindTorchWheel.cmake has them too


def dynamic_metadata(field, settings):
    folder = Path(os.environ.get("STEPC_TORCH_DIR") or Path(sysconfig.get_path("platlib"), "torch"))
    wanted = f"pip install 'torch>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}' first"
    try:
        version = re.search("__version__ = '(.+)'", (folder / "version.py").read_text())[1]
    except OSError:
        raise SystemExit(f"stepc is built against the torch that is installed, and {folder} is none: {wanted}") from None
    major, minor = version.split(".")[:2]  # of 2.11.0+cpu, 2.12.0a0+nv26.03
    if not FIRST <= (int(major), int(minor)) <= LAST:
        raise SystemExit(f"stepc is built against torch {FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}, and {folder} is "
                         f"{version}: {wanted}")
    return [f"torch=={major}.{minor}.*", "numpy"]
