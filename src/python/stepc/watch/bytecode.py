"""Which versions of CPython steps can be watched on: those whose bytecode opcodes.py knows."""

import sys

from stepc import _C

_VERSION = sys.version_info[:2]
_WATCHED = ((3, 11),)


def why_unwatched():
    """Why no step can be watched on this interpreter; empty: steps can."""
    if _VERSION in _WATCHED and _C.READS_FRAMES:
        return ""
    known = ", ".join("%d.%d" % version for version in _WATCHED)
    return f"CPython {'%d.%d' % _VERSION} does not show what a step reads ({known} does)"
