"""What the package requires of torch: the minor version that it is built against. pip's build asks (pyproject.toml)."""

import os
import re
import sysconfig
from pathlib import Path


def dynamic_metadata(field, settings):
    folder = Path(os.environ.get("STEPC_TORCH_DIR") or Path(sysconfig.get_path("platlib"), "torch"))
    try:
        found = re.search(r"__version__ = '(\d+\.\d+)\.", (folder / "version.py").read_text())
    except OSError:
        raise SystemExit(f"stepc is built against the torch that is installed, and {folder} is none: "
                         "pip install 'torch==2.11.*' first") from None
    return [f"torch=={found[1]}.*", "numpy"]
