"""The differences in bytecode between the CPython versions whose steps can be watched.

instructions_of() gives the instructions of each of these versions under the names of 3.11, with the offset at which the
interpreter reports each one and the stack depth there, which frames of later versions do not give.
"""

import collections
import dis
import opcode
import sys

from stepc import _C

_VERSION = sys.version_info[:2]
_WATCHED = ((3, 11), (3, 12), (3, 13))
_FRAMES_TELL_DEPTH = _VERSION == (3, 11)  # of their stack, where an opcode is reported
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
    "LOAD_FROM_DICT_OR_DEREF": "LOAD_DEREF", "INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE",
    "INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE", "INTRINSIC_PRINT": "PRINT_EXPR", "INTRINSIC_IMPORT_STAR": "IMPORT_STAR",
    "INTRINSIC_ASYNC_GEN_WRAP": "ASYNC_GEN_WRAP", "INTRINSIC_PREP_RERAISE_STAR": "PREP_RERAISE_STAR",
    # Of two at once, the one whose variable is on the top then. Neither loads a cell: those are loaded one by one.
    "LOAD_FAST_LOAD_FAST": "LOAD_FAST", "STORE_FAST_LOAD_FAST": "LOAD_FAST",
} if _VERSION > (3, 11) else {}
_INTRINSICS = {"CALL_INTRINSIC_1": getattr(opcode, "_intrinsic_1_descs", ()),
               "CALL_INTRINSIC_2": getattr(opcode, "_intrinsic_2_descs", ())}
_PSEUDO = 256  # opcodes from here on are the compiler's, and in no code
# In no code of a function that dis shows: what the interpreter puts there while code is specialized or traced, or runs itself.
_HIDDEN = {"CACHE", "RESERVED", "ENTER_EXECUTOR", "EXIT_INIT_CHECK", "INTERPRETER_EXIT", "EXTENDED_ARG", *_INTRINSICS}
# The instruction that follows these in the code is not executed after them.
_LEAVE = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
          "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT"}


def why_unwatched():
    """Why no step can be watched on this interpreter; empty: steps can."""
    if _VERSION in _WATCHED and _C.READS_FRAMES:
        return ""
    known = ", ".join("%d.%d" % version for version in _WATCHED)
    return f"CPython {'%d.%d' % _VERSION} does not show what a step reads (those that do: {known})"


def opcode_names():
    """Of every opcode of this interpreter that instructions_of() may name."""
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
    """Where it does not, nothing leads to the instruction, or two ways with stacks of other depths."""
    return _FRAMES_TELL_DEPTH or instruction.depth is not None


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
        if one.opname not in _LEAVE:
            pending.append((following[offset], depth + dis.stack_effect(one.opcode, one.arg, jump=False)))
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            pending.append((one.argval, depth + dis.stack_effect(one.opcode, one.arg, jump=True)))
    return depths
