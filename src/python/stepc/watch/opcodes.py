"""What each opcode of the interpreter reads and writes, reported to a Watch before the opcode is executed.

Each function gets the watch, the frame, and what the code says about the opcode. Opcodes have the names of CPython 3.11
on every version (bytecode.py); opcodes that 3.11 does not have keep their own names. An opcode that neither table below
names ends watching when it is executed.
"""

import os
import sys
import types

import torch

from stepc import _C
from stepc.watch.bytecode import FUNCTION_LIES_FIRST, instructions_of, knows_depth
from stepc.watch.known import BUFFERS, CONTAINERS, ITERATES, SIMPLE, VIEWS, is_pure_native
from stepc.watch.reads import ABSENT, ITEM, same

def _load_global(watch, frame, name):
    words = f"global '{name}' of {os.path.basename(frame.f_code.co_filename)}"
    if name in frame.f_globals:
        watch.place(frame, frame.f_globals, ITEM, name, words)
        watch.register(frame.f_globals[name], name)
    else:
        watch.place(frame, frame.f_globals, ITEM, name, words)
        watch.register(frame.f_builtins.get(name, ABSENT), name)


def _load_name(watch, frame, name):
    if name in frame.f_globals or name in frame.f_builtins:
        _load_global(watch, frame, name)


def _load_deref(watch, frame, index, name, is_free):
    cell = _C.local_of(frame, index)
    if not is_free or not isinstance(cell, types.CellType) or id(cell) in watch.cells:
        return
    watch.place(frame, cell, ITEM, 0, f"'{name}' of {frame.f_code.co_name}()")
    try:
        watch.register(cell.cell_contents, name)
    except ValueError:
        return


def _load_closure(watch, frame, index, name, is_free):
    cell = _C.local_of(frame, index)
    if not is_free and isinstance(cell, types.CellType):
        watch.cells.add(id(cell))


def _store_deref(watch, frame, index, name, is_free):
    if is_free and id(_C.local_of(frame, index)) not in watch.cells:
        watch.because(frame, f"changes {name}, a variable of the function around it")


def _store_global(watch, frame, name):
    watch.because(frame, f"changes the global {name}")


def _store_name(watch, frame, name):
    if frame.f_locals is frame.f_globals:  # the code of a module, not of a class
        _store_global(watch, frame, name)


def _load_attribute(watch, frame, name, words):
    (one,) = watch.top(frame, 1)
    watch.attribute(frame, one, name, words or f"{watch.words_of(one)}.{name}")


def _store_attribute(watch, frame, name, words):
    one, value = watch.top(frame, 2)
    attributes = getattr(one, "__dict__", None)
    if isinstance(attributes, dict) and dict.get(attributes, name, _C) is value and not isinstance(one, type):
        if watch.is_outside(one):  # what stands there already changes nothing, as long as it does
            watch.place(frame, attributes, ITEM, name, words or f"{watch.words_of(one)}.{name}")
        return
    watch.store(frame, one, name, words or f"{watch.words_of(one)}.{name}")


def _delete_attribute(watch, frame, name, words):
    one = watch.top(frame, 1)[0]
    watch.store(frame, one, name, words or f"{watch.words_of(one)}.{name}")


def _load_super_attribute(watch, frame, name):
    one, kind, called = watch.top(frame, 3)
    if called is not super:
        watch.because(frame, "calls a super() of the program's own")
        return
    watch.attribute(frame, super(kind, one), name, f"super().{name}")


def _load_item(watch, frame, words):
    key, container = watch.top(frame, 2)
    _read_key(watch, frame, container, key)
    if isinstance(container, SIMPLE):
        return
    watch.item(frame, container, key, f"{words or watch.words_of(container)}[{_key_words(key)}]")


def _read_key(watch, frame, container, key):
    if isinstance(container, torch.Tensor):  # a number in it goes into an operator
        watch.deep(frame, key, decides=False)
        return
    for part in (key.start, key.stop, key.step) if isinstance(key, slice) else (key,):
        watch.deep(frame, part)


def _key_words(key):
    return repr(key) if isinstance(key, (int, str, float, bool)) else type(key).__name__


def _store_item(watch, frame, words):
    key, container, value = watch.top(frame, 3)
    _read_key(watch, frame, container, key)
    if not isinstance(container, dict) and not isinstance(key, int):  # its elements are taken one by one
        watch.deep(frame, value, decides=not isinstance(container, torch.Tensor))
    _change_item(watch, frame, container, key, words)


def _delete_item(watch, frame, words):
    key, container = watch.top(frame, 2)
    _change_item(watch, frame, container, key, words)


def _change_item(watch, frame, container, key, words):
    if not isinstance(container, torch.Tensor):
        watch.changes(frame, container, f"{words or watch.words_of(container)}[{_key_words(key)}]")


def _load_slice(watch, frame):
    stop, start, container = watch.top(frame, 3)
    _read_key(watch, frame, container, key := slice(start, stop))
    if not isinstance(container, SIMPLE):
        watch.item(frame, container, key, f"{watch.words_of(container)}[slice]")


def _store_slice(watch, frame):
    stop, start, container, value = watch.top(frame, 4)
    _read_key(watch, frame, container, key := slice(start, stop))
    watch.deep(frame, value, decides=not isinstance(container, torch.Tensor))
    _change_item(watch, frame, container, key, None)


def _binary(watch, frame, is_in_place):
    right, left = watch.top(frame, 2)
    if is_in_place and isinstance(left, (*CONTAINERS, *BUFFERS)):
        watch.changes(frame, left, watch.words_of(left))
    decides = not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor)
    for one in (left, right):
        watch.deep(frame, one, decides)


def _unary(watch, frame):
    watch.deep(frame, watch.top(frame, 1)[0])


def _contains(watch, frame):
    container, key = watch.top(frame, 2)
    if isinstance(container, dict):
        if watch.is_outside(container):
            watch.place(frame, container, ITEM, key, f"{watch.words_of(container)}[{_key_words(key)}]")
    else:
        watch.deep(frame, container)
    watch.deep(frame, key)


def _truth(watch, frame):
    (one,) = watch.top(frame, 1)
    watch.truth(frame, one)


def _iterate(watch, frame, depth=0):
    one = watch.top(frame, depth + 1)[depth]
    if isinstance(one, SIMPLE):
        return
    if hasattr(type(one), "__next__"):
        watch.changes_iterator(frame, one)
    elif isinstance(one, (*ITERATES, *BUFFERS, *VIEWS)):
        watch.shallow(frame, one)
    elif watch.is_outside(one) and not any(isinstance(vars(k).get("__iter__"), types.FunctionType)
                                            or isinstance(vars(k).get("__getitem__"), types.FunctionType)
                                            for k in type(one).__mro__):
        watch.because(frame, f"takes from {watch.words_of(one)}, which is not known")


def _call_function(watch, frame, count, above=0):
    stack = watch.top(frame, count + 2 + above)[above:]
    arguments = stack[count - 1 :: -1] if count else ()
    method, called = stack[count + 1], stack[count]
    if FUNCTION_LIES_FIRST and called is None:
        method, called = None, method
    if method is not None:
        arguments, called = (called, *arguments), method
    watch.callable(frame, called, tuple(arguments))


def _after_call(watch, frame, entry):
    if watch.outside_result == id(frame):
        watch.outside_result = None
        watch.register(watch.top(frame, 1)[0], "what a cached function returns")
    if entry is not None:
        entry[0](watch, frame, *entry[1:])


def _call_unpacked(watch, frame, has_keywords):
    stack = watch.top(frame, 2)
    keywords = stack[0] if has_keywords else {}
    positional = stack[1] if has_keywords else stack[0]
    called = watch.top(frame, 4)[has_keywords + 1 + FUNCTION_LIES_FIRST]
    watch.shallow(frame, positional)
    watch.shallow(frame, keywords)
    if not isinstance(positional, (tuple, list)):
        positional = ()
    values = tuple(keywords.values()) if isinstance(keywords, dict) else ()
    watch.callable(frame, called, (*positional, *values))


def _merge(watch, frame):
    watch.shallow(frame, watch.top(frame, 1)[0])


def _put_in_set(watch, frame, count):
    """A set and a dict merge what is equal: a number among their keys decides how many there are."""
    for key in watch.top(frame, count):
        watch.deep(frame, key)


def _put_in_dict(watch, frame, count):
    for key in watch.top(frame, 2 * count)[1::2]:
        watch.deep(frame, key)


def _merge_sets(watch, frame):
    watch.deep(frame, watch.top(frame, 1)[0])


def _match(watch, frame, depth):
    watch.whole(frame, watch.top(frame, depth + 1)[depth])


def _match_class(watch, frame):
    _, kind, subject = watch.top(frame, 3)
    watch.asks_for_type(frame, (subject, kind))
    watch.whole(frame, subject)


def _is(watch, frame):
    """Places are compared by value, which says nothing of two numbers' or texts' being one object."""
    right, left = watch.top(frame, 2)
    if type(left) in _KEPT_BY_VALUE and same(left, right):
        watch.because(frame, f"asks whether two {type(left).__name__} are one object")


def _raise(watch, frame, count):
    """Raising writes to the error: where it was raised, and which one came before."""
    for error in watch.top(frame, count):
        if isinstance(error, BaseException):
            watch.changes(frame, error, watch.words_of(error))


def _format(watch, frame, with_spec):
    value = watch.top(frame, 2)[1 if with_spec else 0]
    watch.whole(frame, value)


def _enter_context(watch, frame):
    (one,) = watch.top(frame, 1)
    enter = next((vars(kind)["__enter__"] for kind in type(one).__mro__ if "__enter__" in vars(kind)), None)
    if not isinstance(enter, types.FunctionType) and not is_pure_native(type(one).__module__):
        watch.because(frame, f"enters {watch.words_of(one)}, which is not known")


def _await(watch, frame):
    watch.because(frame, "awaits")


def _import_all(watch, frame):
    watch.because(frame, "imports all names of a module")


def _prints(watch, frame):
    watch.because(frame, "prints")


def _unknown(watch, frame, opname):
    watch.because(frame, f"runs {opname}, an opcode that is not known")


def _unknown_depth(watch, frame, opname):
    watch.because(frame, f"runs {opname} at a depth of the stack that is not known")


def _import_name(watch, frame, name):
    module = sys.modules.get(name)
    watch.place(frame, sys.modules, ITEM, name, f"module {name}")
    if module is None:
        return
    watch.register(module, name)
    watch.register(sys.modules.get(name.split(".")[0]), name.split(".")[0])


_KEPT_BY_VALUE = {int, float, complex, str, bytes, tuple, frozenset}
_CHAIN = {"LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"}


def _written(instructions, index):
    """The expression on the top of the stack before instruction `index` as it is written: `self.config.lr`, or None."""
    names = []
    index -= 1
    while index >= 0 and instructions[index].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        names.append(instructions[index].argval)
        index -= 1
    if index < 0 or instructions[index].opname not in _CHAIN:
        return None
    return ".".join([instructions[index].argval, *reversed(names)])


def _written_before_update(instructions, index):
    """The same of `self.calls += 1`, where the object is copied before the attribute is read."""
    name = instructions[index].argval
    for before in range(index - 1, 0, -1):
        one = instructions[before]
        if one.opname == "LOAD_ATTR" and one.argval == name and instructions[before - 1].opname == "COPY":
            return _written(instructions, before - 1)
    return None


_IN_PLACE = 13  # the first in-place operator of BINARY_OP


class _Scope:
    """The code that an instruction stands in."""

    def __init__(self, code):
        self.free, self.cells = set(code.co_freevars), set(code.co_cellvars)
        self.instructions = list(instructions_of(code))
        self.index = 0  # of the instruction that is looked at

    def path(self, name):
        """The attribute as it is written; None: it is not read off a name."""
        written = _written(self.instructions, self.index)
        return written and f"{written}.{name}"

    def updated_path(self, name):
        written = _written(self.instructions, self.index) or _written_before_update(self.instructions, self.index)
        return written and f"{written}.{name}"


def _always(*entry):
    return lambda one, scope: entry


def _named(function):
    return lambda one, scope: (function, one.argval)


def _counted(function):
    return lambda one, scope: (function, one.arg)


def _variable(function):
    return lambda one, scope: (function, one.arg, one.argval, one.argval in scope.free)


def _load_fast(one, scope):
    """Of a variable that an inner function uses it loads the cell, from 3.13 on; in a comprehension its value."""
    return (_load_closure, one.arg, one.argval, False) if one.argval in scope.cells else None


# Opcode -> what gives, of an instruction, the function and what the code says about it; None: there is nothing to see.
_SEES = {
    **dict.fromkeys((
        "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
        "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "UNARY_NOT",
    ), _always(_truth)),
    **dict.fromkeys(("GET_ITER", "GET_YIELD_FROM_ITER", "UNPACK_SEQUENCE", "UNPACK_EX"), _always(_iterate)),
    **dict.fromkeys(("LIST_EXTEND", "DICT_UPDATE", "DICT_MERGE"), _always(_merge)),
    **dict.fromkeys(("UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE"), _always(_unary)),
    **dict.fromkeys((
        "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR", "ASYNC_GEN_WRAP", "BEFORE_ASYNC_WITH",
    ), _always(_await)),
    "BEFORE_WITH": _always(_enter_context),
    "IS_OP": _always(_is),
    "CONTAINS_OP": _always(_contains),
    "COMPARE_OP": _always(_binary, False),
    "BINARY_OP": lambda one, scope: (_binary, one.arg >= _IN_PLACE),
    "SET_UPDATE": _always(_merge_sets),
    "BUILD_SET": _counted(_put_in_set),
    "SET_ADD": _always(_put_in_set, 1),
    "BUILD_MAP": _counted(_put_in_dict),
    "MAP_ADD": _always(_put_in_dict, 1),
    "RAISE_VARARGS": _counted(_raise),
    "PRINT_EXPR": _always(_prints),
    "IMPORT_STAR": _always(_import_all),
    "IMPORT_NAME": _named(_import_name),
    "LOAD_GLOBAL": _named(_load_global),
    "LOAD_NAME": _named(_load_name),
    **dict.fromkeys(("LOAD_DEREF", "LOAD_CLASSDEREF"), _variable(_load_deref)),
    "LOAD_CLOSURE": _variable(_load_closure),
    "LOAD_FAST": _load_fast,
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), _variable(_store_deref)),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), _named(_store_global)),
    **dict.fromkeys(("STORE_NAME", "DELETE_NAME"), _named(_store_name)),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), lambda one, scope: (_load_attribute, one.argval, scope.path(one.argval))
    ),
    "STORE_ATTR": lambda one, scope: (_store_attribute, one.argval, scope.updated_path(one.argval)),
    "DELETE_ATTR": lambda one, scope: (_delete_attribute, one.argval, scope.updated_path(one.argval)),
    "LOAD_SUPER_ATTR": _named(_load_super_attribute),
    "BINARY_SUBSCR": _always(_load_item, None),
    "STORE_SUBSCR": _always(_store_item, None),
    "DELETE_SUBSCR": _always(_delete_item, None),
    "BINARY_SLICE": _always(_load_slice),
    "STORE_SLICE": _always(_store_slice),
    "PRECALL": _counted(_call_function),
    "CALL_KW": lambda one, scope: (_call_function, one.arg, 1),
    "CALL_FUNCTION_EX": lambda one, scope: (_call_unpacked, bool(one.arg & 1)),
    "FORMAT_VALUE": lambda one, scope: (_format, bool(one.arg & 4)),
    **dict.fromkeys(("FORMAT_SIMPLE", "CONVERT_VALUE"), _always(_format, False)),
    "FORMAT_WITH_SPEC": _always(_format, True),
    "MATCH_CLASS": _always(_match_class),
    "MATCH_KEYS": _always(_match, 1),
    **dict.fromkeys(("MATCH_SEQUENCE", "MATCH_MAPPING", "GET_LEN"), _always(_match, 0)),
}
# They move values between the stack and this call's own variables, make objects of them, or jump by what another opcode
# has looked at; CALL comes after PRECALL, FOR_ITER takes from what GET_ITER has made, and the rest of them raise or catch.
_SEES_NOTHING = frozenset("""
    BUILD_CONST_KEY_MAP BUILD_LIST BUILD_SLICE BUILD_STRING BUILD_TUPLE CALL CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COPY
    COPY_FREE_VARS DELETE_FAST END_FOR END_SEND FOR_ITER JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD
    KW_NAMES LIST_APPEND LIST_TO_TUPLE LOAD_ASSERTION_ERROR LOAD_BUILD_CLASS LOAD_CONST LOAD_FAST_AND_CLEAR LOAD_LOCALS
    MAKE_CELL MAKE_FUNCTION NOP POP_EXCEPT POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_TOP PREP_RERAISE_STAR PUSH_EXC_INFO PUSH_NULL
    RERAISE RESUME RETURN_CONST RETURN_GENERATOR RETURN_VALUE SEND SETUP_ANNOTATIONS SET_FUNCTION_ATTRIBUTE STORE_FAST
    STORE_FAST_STORE_FAST SWAP WITH_EXCEPT_START YIELD_VALUE INTRINSIC_STOPITERATION_ERROR INTRINSIC_TYPEVAR
    INTRINSIC_PARAMSPEC INTRINSIC_TYPEVARTUPLE INTRINSIC_SUBSCRIPT_GENERIC INTRINSIC_TYPEALIAS INTRINSIC_TYPEVAR_WITH_BOUND
    INTRINSIC_TYPEVAR_WITH_CONSTRAINTS INTRINSIC_SET_FUNCTION_TYPE_PARAMS INTRINSIC_SET_TYPEPARAM_DEFAULT
""".split())


def is_known(opname):
    return opname in _SEES or opname in _SEES_NOTHING


def table_of(code):
    """Offset of each opcode that reads or writes -> (depth of the stack, function, what the code says about it)."""
    table, scope = {}, _Scope(code)
    is_result = False
    for scope.index, one in enumerate(scope.instructions):
        entry = None
        if one.opname in _SEES:
            entry = _SEES[one.opname](one, scope)
        elif one.opname not in _SEES_NOTHING:
            entry = (_unknown, one.opname)
        if is_result:
            entry = (_after_call, entry)
        if entry is not None:
            table[one.offset] = (one.depth, *entry) if knows_depth(one) else (0, _unknown_depth, one.opname)
        is_result = one.calls
    return table
