"""The differences in bytecode between the CPython versions whose steps can be watched.

instructions_of() gives the instructions of each of these versions under the names of 3.11, with the offset at which the
interpreter reports each one and the stack depth there, which frames of later versions do not give.
"""

import collections
import dis
import opcode
import sys
import threading

from stepc import _C

_VERSION = sys.version_info[:2]
_WATCHED = ((3, 11), (3, 12), (3, 13))
_FRAMES_TELL_DEPTH = _VERSION == (3, 11)  # whether frames give the depth of their stack
FUNCTION_LIES_FIRST = _VERSION >= (3, 13)  # among a call's operands: below its self, or below NULL

# offset  where the interpreter reports the instruction: on 3.11 at its first EXTENDED_ARG, later at itself
# depth   of the stack before the instruction; None: the frame gives it
# calls   the instruction's result is that of a call
Instruction = collections.namedtuple("Instruction", "offset opname arg argval depth calls")

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
# Names that later versions give the inspected instructions -> the name on 3.11.
_NAMES = {
    "CALL": "PRECALL", "POP_JUMP_IF_TRUE": "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE": "POP_JUMP_FORWARD_IF_FALSE",
    "TO_BOOL": "UNARY_NOT", "LOAD_FAST_CHECK": "LOAD_FAST", "LOAD_FROM_DICT_OR_GLOBALS": "LOAD_NAME",
    "LOAD_FROM_DICT_OR_DEREF": "LOAD_DEREF", "INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE",
    "INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE", "INTRINSIC_PRINT": "PRINT_EXPR", "INTRINSIC_IMPORT_STAR": "IMPORT_STAR",
    "INTRINSIC_ASYNC_GEN_WRAP": "ASYNC_GEN_WRAP", "INTRINSIC_PREP_RERAISE_STAR": "PREP_RERAISE_STAR",
    # Of a pair, the one whose variable is on top afterwards. Neither loads a cell: cells are loaded one by one.
    "LOAD_FAST_LOAD_FAST": "LOAD_FAST", "STORE_FAST_LOAD_FAST": "LOAD_FAST",
} if _VERSION > (3, 11) else {}
_INTRINSICS = {"CALL_INTRINSIC_1": getattr(opcode, "_intrinsic_1_descs", ()),
               "CALL_INTRINSIC_2": getattr(opcode, "_intrinsic_2_descs", ())}
_PSEUDO = 256  # opcodes from here on are the compiler's; no code contains them
# In no code that dis shows: the interpreter inserts these while it specializes or traces code, or runs them itself.
_HIDDEN = {"CACHE", "RESERVED", "ENTER_EXECUTOR", "EXIT_INIT_CHECK", "INTERPRETER_EXIT", "EXTENDED_ARG", *_INTRINSICS}
# The next instruction in the code is not executed after one of these.
_LEAVE = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
          "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT"}


def why_unwatched():
    """Why no step can be watched on this interpreter; empty: steps can."""
    if _VERSION in _WATCHED and _C.READS_FRAMES:
        return ""
    known = ", ".join("%d.%d" % version for version in _WATCHED)
    return f"CPython {'%d.%d' % _VERSION} does not show what a step reads (those that do: {known})"


# CPython 3.12 ends with a segmentation fault where one thread begins or ends to trace opcodes while another is in a trace
# function: it forgets the opcode that the other is about to run (python/cpython#118415, which 3.13 has mended).
_TRACING = threading.RLock() if _VERSION == (3, 12) else None


def begin_tracing():
    """Why this thread cannot trace opcodes now; empty: it may, until end_tracing()."""
    if _TRACING is None or _TRACING.acquire(blocking=False):
        return ""
    return "CPython 3.12 watches one thread at a time, and another is being watched"


def end_tracing():
    if _TRACING is not None:
        _TRACING.release()


def opcode_names():
    """The names of all opcodes of this interpreter that instructions_of() may return."""
    names = {name for name, number in dis.opmap.items() if number < _PSEUDO and not name.startswith("INSTRUMENTED_")}
    for descriptions in _INTRINSICS.values():
        names.update(descriptions[1:])  # the first is none
    return sorted({_NAMES.get(name, name) for name in names - _HIDDEN})


def instructions_of(code):
    found = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    depths = {} if _FRAMES_TELL_DEPTH else _depths_of(code, found)
    prefix = None
    for one in found:
        if one.opname == "EXTENDED_ARG":
            prefix = one.offset if prefix is None else prefix
            continue
        name, argval = one.opname, one.argval
        if name in _INTRINSICS:
            name = dict(enumerate(_INTRINSICS[name])).get(one.arg, name)
        elif name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"):
            argval = argval[1]
        offset = one.offset if prefix is None or _VERSION > (3, 11) else prefix
        yield Instruction(offset, _NAMES.get(name, name), one.arg, argval, depths.get(one.offset), one.opname in _CALLS)
        prefix = None


def knows_depth(instruction):
    """Whether the stack depth is known; it is not if nothing leads to the instruction, or two paths with different
    depths."""
    return _FRAMES_TELL_DEPTH or instruction.depth is not None


def _depths_of(code, instructions):
    """Offset of each reachable instruction -> depth of the stack before it, computed as the interpreter does when a
    debugger sets the line. Empty if two paths to an instruction disagree: such code is not followed."""
    following = {one.offset: after.offset for one, after in zip(instructions, instructions[1:])}
    by_offset = {one.offset: one for one in instructions}
    seen, depths, pending = set(), {}, [(0, 0)]
    pending += [(one.target, one.depth + one.lasti + 1) for one in dis.Bytecode(code).exception_entries]
    while pending:
        offset, depth = pending.pop()
        if depths.setdefault(offset, depth) != depth:
            return {}
        if offset in seen:
            continue
        seen.add(offset)
        one = by_offset[offset]
        if one.opname == "RETURN_GENERATOR":  # the sent value is on the stack; dis says so from 3.13 on
            pending.append((following[offset], depth + 1))
            continue
        if one.opname not in _LEAVE:
            pending.append((following[offset], depth + dis.stack_effect(one.opcode, one.arg, jump=False)))
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            pending.append((one.argval, depth + dis.stack_effect(one.opcode, one.arg, jump=True)))
    return depths
