"""What differs between the bytecode of the CPython versions whose steps can be watched: instructions_of() gives that of any
of them under the names of 3.11, and how deep the stack is at each instruction, which later versions do not tell."""

import collections
import dis
import sys

from stepc import _C

_VERSION = sys.version_info[:2]
_WATCHED = ((3, 11), (3, 12), (3, 13))
FUNCTION_LIES_FIRST = _VERSION >= (3, 13)  # below what is its self, or nothing: of a call's operands

# `depth`: of the stack before it; None where the frame tells that. `calls`: its result is that of a call.
Instruction = collections.namedtuple("Instruction", "offset opname arg argval depth calls")

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
# What later versions call what 3.11 does, as far as it is looked at.
_NAMES = {
    "CALL": "PRECALL", "POP_JUMP_IF_TRUE": "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE": "POP_JUMP_FORWARD_IF_FALSE",
    "TO_BOOL": "UNARY_NOT", "LOAD_FAST_CHECK": "LOAD_FAST", "LOAD_FROM_DICT_OR_GLOBALS": "LOAD_NAME",
    "LOAD_FROM_DICT_OR_DEREF": "LOAD_DEREF",
} if _VERSION > (3, 11) else {}
_UNARY_POSITIVE = 5  # of CALL_INTRINSIC_1
# After these comes what is jumped to, or nothing.
_LEAVE = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
          "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT"}


def why_unwatched():
    """Why no step can be watched on this interpreter; empty: steps can."""
    if _VERSION in _WATCHED and _C.READS_FRAMES:
        return ""
    known = ", ".join("%d.%d" % version for version in _WATCHED)
    return f"CPython {'%d.%d' % _VERSION} does not show what a step reads (those that do: {known})"


def instructions_of(code):
    found = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    depths = {} if _VERSION == (3, 11) else _depths_of(code, found)
    for one in found:
        depth = depths.get(one.offset)
        calls = one.opname in _CALLS
        if one.opname in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"):
            # The second is the one on the top. Neither is a cell: those are loaded one by one.
            yield Instruction(one.offset, "LOAD_FAST", one.arg, one.argval[1], depth, calls)
        elif one.opname == "CALL_INTRINSIC_1":
            name = "UNARY_POSITIVE" if one.arg == _UNARY_POSITIVE else one.opname
            yield Instruction(one.offset, name, one.arg, one.argval, depth, calls)
        else:
            yield Instruction(one.offset, _NAMES.get(one.opname, one.opname), one.arg, one.argval, depth, calls)


def _depths_of(code, instructions):
    """By offset, of all that can be reached: as the interpreter finds them where a debugger jumps. Nothing where two ways
    do not agree: such code is not followed."""
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
        if one.opname == "RETURN_GENERATOR":  # what starts it is given to it, which dis says from 3.13 on
            pending.append((following[offset], depth + 1))
            continue
        arg = one.arg if one.opcode >= dis.HAVE_ARGUMENT else None
        if one.opname not in _LEAVE:
            pending.append((following[offset], depth + dis.stack_effect(one.opcode, arg, jump=False)))
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            pending.append((one.argval, depth + dis.stack_effect(one.opcode, arg, jump=True)))
    return depths
