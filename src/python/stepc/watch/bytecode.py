"""What differs between the bytecode of the CPython versions whose steps can be watched.

instructions_of() gives the instructions of any of these versions under the names of 3.11, with the offset at which the
interpreter reports each and the depth of the stack there, which frames of later versions do not tell.
"""

import collections
import dis
import sys

from stepc import _C

_VERSION = sys.version_info[:2]
_WATCHED = ((3, 11), (3, 12))  # what 3.13 calls otherwise stands here too, but the tests have not run there yet
FUNCTION_LIES_FIRST = _VERSION >= (3, 13)  # of a call's operands: below its self, or below nothing

# offset  where the interpreter reports the instruction: on 3.11 at its first EXTENDED_ARG, later at itself
# depth   of the stack before the instruction; None where the frame tells it
# calls   the instruction's result is that of a call
Instruction = collections.namedtuple("Instruction", "offset opname arg argval depth calls")

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
# Names of later versions, of the instructions that are looked at -> the name on 3.11.
_NAMES = {
    "CALL": "PRECALL", "POP_JUMP_IF_TRUE": "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE": "POP_JUMP_FORWARD_IF_FALSE",
    "TO_BOOL": "UNARY_NOT", "LOAD_FAST_CHECK": "LOAD_FAST", "LOAD_FROM_DICT_OR_GLOBALS": "LOAD_NAME",
    "LOAD_FROM_DICT_OR_DEREF": "LOAD_DEREF",
} if _VERSION > (3, 11) else {}
_UNARY_POSITIVE = 5  # of CALL_INTRINSIC_1
# The instruction that follows these in the code is not executed after them.
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
    prefix = None
    for one in found:
        if one.opname == "EXTENDED_ARG":
            prefix = one.offset if prefix is None else prefix
            continue
        name, argval = _NAMES.get(one.opname, one.opname), one.argval
        if one.opname in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"):
            # The second is the one on the top. Neither is a cell: those are loaded one by one.
            name, argval = "LOAD_FAST", one.argval[1]
        elif one.opname == "CALL_INTRINSIC_1" and one.arg == _UNARY_POSITIVE:
            name = "UNARY_POSITIVE"
        offset = one.offset if prefix is None or _VERSION > (3, 11) else prefix
        yield Instruction(offset, name, one.arg, argval, depths.get(one.offset), one.opname in _CALLS)
        prefix = None


def _depths_of(code, instructions):
    """Offset of each instruction that can be reached -> depth of the stack before it, as the interpreter itself computes
    it where a debugger sets the line. Nothing where two ways to an instruction do not agree: such code is not followed."""
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
        if one.opname == "RETURN_GENERATOR":  # the value sent to the generator lies there; dis says so from 3.13 on
            pending.append((following[offset], depth + 1))
            continue
        arg = one.arg if one.opcode >= dis.HAVE_ARGUMENT else None
        if one.opname not in _LEAVE:
            pending.append((following[offset], depth + dis.stack_effect(one.opcode, arg, jump=False)))
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            pending.append((one.argval, depth + dis.stack_effect(one.opcode, arg, jump=True)))
    return depths
