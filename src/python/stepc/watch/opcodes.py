"""What each opcode of the interpreter reads and writes, told to a Watch before the opcode is executed.

Each function is given the watch, the frame, and what the code says about the opcode. Opcodes have their names of CPython
3.11 on every version (bytecode.py); those that 3.11 does not have keep their own.
"""

import os
import sys
import types

import torch

from stepc import _C
from stepc.watch.bytecode import FUNCTION_LIES_FIRST, instructions_of
from stepc.watch.known import BUFFERS, CONTAINERS, ITERATES, SIMPLE, VIEWS, is_pure_native
from stepc.watch.reads import ABSENT, ITEM

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
    if not is_free:
        watch.cells.add(id(_C.local_of(frame, index)))


def _store_deref(watch, frame, index, name, is_free):
    if is_free and id(_C.local_of(frame, index)) not in watch.cells:
        watch.because(frame, f"changes {name}, a variable of the function around it")


def _store_global(watch, frame, name):
    watch.because(frame, f"changes the global {name}")


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


def _match(watch, frame, depth):
    watch.whole(frame, watch.top(frame, depth + 1)[depth])


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


def _import_name(watch, frame, name):
    module = sys.modules.get(name)
    watch.place(frame, sys.modules, ITEM, name, f"module {name}")
    if module is None:
        return
    watch.register(module, name)
    watch.register(sys.modules.get(name.split(".")[0]), name.split(".")[0])


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

# How deep in the stack the subject lies.
_MATCHES = {"MATCH_CLASS": 2, "MATCH_KEYS": 1, "MATCH_SEQUENCE": 0, "MATCH_MAPPING": 0, "GET_LEN": 0}
_SIMPLE_OPCODES = {
    "POP_JUMP_FORWARD_IF_TRUE": _truth, "POP_JUMP_FORWARD_IF_FALSE": _truth, "POP_JUMP_BACKWARD_IF_TRUE": _truth,
    "POP_JUMP_BACKWARD_IF_FALSE": _truth, "JUMP_IF_TRUE_OR_POP": _truth, "JUMP_IF_FALSE_OR_POP": _truth,
    "UNARY_NOT": _truth, "CONTAINS_OP": _contains, "GET_ITER": _iterate, "GET_YIELD_FROM_ITER": _iterate,
    "UNPACK_SEQUENCE": _iterate, "UNPACK_EX": _iterate, "LIST_EXTEND": _merge, "SET_UPDATE": _merge,
    "DICT_UPDATE": _merge, "DICT_MERGE": _merge, "BEFORE_WITH": _enter_context, "GET_AWAITABLE": _await,
    "UNARY_NEGATIVE": _unary, "UNARY_INVERT": _unary, "UNARY_POSITIVE": _unary,
    "GET_AITER": _await, "BEFORE_ASYNC_WITH": _await, "BINARY_SLICE": _load_slice, "STORE_SLICE": _store_slice,
}


def table_of(code):
    """Offset of each opcode that reads or writes -> (depth of the stack, function, what the code says about it)."""
    table = {}
    instructions = list(instructions_of(code))
    free, cells = set(code.co_freevars), set(code.co_cellvars)
    is_result = False
    for index, one in enumerate(instructions):
        op, entry = one.opname, None
        written = _written(instructions, index)
        if op in _SIMPLE_OPCODES:
            entry = (_SIMPLE_OPCODES[op],)
        elif op == "LOAD_GLOBAL":
            entry = (_load_global, one.argval)
        elif op == "LOAD_NAME":
            entry = (_load_name, one.argval)
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            entry = (_load_deref, one.arg, one.argval, one.argval in free)
        elif op == "LOAD_CLOSURE" or op == "LOAD_FAST" and one.argval in cells:
            entry = (_load_closure, one.arg, one.argval, one.argval in free)
        elif op in ("STORE_DEREF", "DELETE_DEREF"):
            entry = (_store_deref, one.arg, one.argval, one.argval in free)
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            entry = (_store_global, one.argval)
        elif op in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            entry = (_load_attribute, one.argval, written and f"{written}.{one.argval}")
        elif op in ("STORE_ATTR", "DELETE_ATTR"):
            written = written or _written_before_update(instructions, index)
            what = _store_attribute if op == "STORE_ATTR" else _delete_attribute
            entry = (what, one.argval, written and f"{written}.{one.argval}")
        elif op == "LOAD_SUPER_ATTR":
            entry = (_load_super_attribute, one.argval)
        elif op == "BINARY_SUBSCR":
            entry = (_load_item, None)
        elif op in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            entry = (_store_item if op == "STORE_SUBSCR" else _delete_item, None)
        elif op == "BINARY_OP":
            entry = (_binary, one.arg >= _IN_PLACE)
        elif op == "COMPARE_OP":
            entry = (_binary, False)
        elif op == "PRECALL":
            entry = (_call_function, one.arg)
        elif op == "CALL_KW":
            entry = (_call_function, one.arg, 1)
        elif op == "CALL_FUNCTION_EX":
            entry = (_call_unpacked, bool(one.arg & 1))
        elif op == "FORMAT_VALUE":
            entry = (_format, bool(one.arg & 4))
        elif op in ("FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"):
            entry = (_format, op == "FORMAT_WITH_SPEC")
        elif op in _MATCHES:
            entry = (_match, _MATCHES[op])
        elif op == "IMPORT_NAME":
            entry = (_import_name, one.argval)
        if is_result:
            entry = (_after_call, entry)
        if entry is not None:
            table[one.offset] = (one.depth, *entry)
        is_result = one.calls
    return table
