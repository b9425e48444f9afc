"""Which code a watched step may run without inspection, and what the interpreter's own functions do."""

import collections
import enum
import os
import sysconfig
import types

import numpy
import torch

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package
_STANDARD = sysconfig.get_paths()["stdlib"]
_FOLDERS = tuple(
    folder + os.sep for folder in (_HERE, os.path.dirname(torch.__file__), os.path.dirname(numpy.__file__), _STANDARD)
)
_INSTALLED = tuple({sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep})
_LIBRARIES = ("torch", "numpy", "stepc")

# Compared by value; of everything else it must be the same object.
PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, numpy.dtype, numpy.number, numpy.bool_,
    numpy.datetime64,
)
TENSORS = (torch.Tensor, torch.UntypedStorage, torch.Generator)
SIMPLE = (*PLAIN, torch.Tensor)
CONTAINERS = (dict, list, set, collections.deque, types.MappingProxyType)
# Memory that can be written to: compared by its bytes. A record of NumPy's is a view of its array.
BUFFERS = (numpy.ndarray, numpy.void, bytearray, memoryview)
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
VIEWS += tuple(type(view) for view in (lambda one: (one.keys(), one.values(), one.items()))(collections.OrderedDict()))
ITERATES = (list, tuple, dict, set, frozenset, collections.deque, types.MappingProxyType, str, bytes, range)

# Of a tensor: what the signature does not tell, which takes a window on a batch of data for a batch of its own.
TELLS_ORIGIN = {"_base", "_is_view", "is_pinned", "is_shared", "storage", "storage_offset", "untyped_storage"}

# Of torch's functions without arguments: what does not change while a program runs.
ASKS_MACHINE = {"is_available", "is_built", "is_initialized", "is_compiling", "is_dynamo_compiling", "is_scripting",
                "is_tracing", "get_rank", "get_world_size", "is_exporting"}

# Of a module: what runs when it is called.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Code of these runs on what the step gives it and changes nothing else, or only what its name says; calls of others in
# torch and the standard library have effects, or read from outside.
_EFFECTS = {
    "logging": "logs",
    "warnings": "warns",
    "random": "draws from Python's random generator",
    "secrets": "draws from the system's random generator",
    "uuid": "draws from the system's random generator",
    "time": "reads the clock",
    "_time": "reads the clock",
    "datetime": "reads the clock",
    "_datetime": "reads the clock",
    "timeit": "reads the clock",
    "os": "reads from the operating system",
    "posix": "reads from the operating system",
    "io": "reads or writes a file",
    "_io": "reads or writes a file",
    "pathlib": "reads from the file system",
    "numpy.random": "draws from NumPy's random generator",
    "torch.utils.data": "takes from a DataLoader",
    "torch.utils.tensorboard": "logs",
    "torch.profiler": "calls the profiler",
    "torch.serialization": "reads or writes a file",
    "torch.optim.lr_scheduler": "calls a scheduler that the step was not given",
    "torch.optim.swa_utils": "counts in torch.optim.swa_utils",
    "torch.distributed": "talks to other processes",
}
_STANDARD_PURE = {
    "abc", "_abc", "_py_abc", "argparse", "ast", "base64", "binascii", "bisect", "_bisect", "builtins", "cmath",
    "collections", "_collections", "_collections_abc", "collections.abc", "contextlib", "copy", "copyreg",
    "dataclasses",
    "decimal", "_decimal", "difflib", "enum", "fractions", "functools", "_functools", "hashlib", "_hashlib", "heapq",
    "_heapq", "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "inspect", "itertools", "json",
    "json.encoder", "json.decoder", "_json", "keyword", "math", "numbers", "operator", "_operator", "packaging",
    "pprint", "re", "re._compiler", "re._parser", "_sre", "reprlib", "statistics", "_statistics", "string", "_string",
    "struct", "_struct", "textwrap", "types", "typing", "_typing", "weakref", "_weakref", "_weakrefset", "zlib",
    "unicodedata", "typing_extensions",
}
# They hand their arguments to the step's own code and read nothing of them.
_READS_WHOLE = ("torch._functorch.functional_call", "torch.nn.utils.stateless")  # the parameters that it is given
_PASSING_ON = (
    "torch.utils._contextlib", "torch.utils.checkpoint", "torch.amp.autocast_mode", "torch._compile", "torch._dynamo",
    "torch.autograd.function", "torch._functorch", "torch.func", "contextlib", "functools", "stepc",
)

PURE_BUILTINS = {
    "abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "hash", "hex", "isinstance", "iter",
    "issubclass", "len", "max", "min", "oct", "ord", "pow", "repr", "round", "sorted", "sum", "__build_class__",
    "aiter", "locals",
}
BUILTIN_EFFECTS = {
    "print": "prints",
    "open": "opens a file",
    "input": "reads from the terminal",
    "exec": "runs code from a text",
    "eval": "runs code from a text",
    "compile": "runs code from a text",
    "breakpoint": "stops in the debugger",
    "globals": "reads all globals",
    "dir": "reads all names of an object",
    "id": "reads an address",
}
# Methods of the interpreter's own objects that change them, or what they read from.
MUTATORS = {
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "update",
    "setdefault", "add", "discard", "sort", "reverse", "rotate", "move_to_end", "difference_update",
    "intersection_update", "symmetric_difference_update", "subtract", "__setitem__", "__delitem__", "__setattr__",
    "__delattr__", "__iadd__", "__ior__", "__iand__", "__ixor__", "__isub__", "__imul__", "__setstate__", "__init__",
    "__next__", "send", "throw", "close", "write", "writelines", "flush", "seek", "read", "readline", "readlines",
    "fill", "put", "itemset", "resize", "partition", "setflags", "byteswap", "setfield", "seed", "shuffle",
    "frombytes", "fromlist", "acquire", "release", "manual_seed", "set_state",
}


# Native functions that change their first argument.
CHANGES_FIRST = {
    "setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
    "irshift", "isub", "itruediv", "ixor", "heappush", "heappop", "heapify", "heapreplace", "heappushpop", "insort",
    "insort_left", "insort_right", "copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "at",
}


class Trust(enum.Enum):
    """What is done about a code object that runs."""

    ANALYSED = 0  # opcode by opcode
    TRUSTED = 1  # what goes in is watched
    PASSES_ON = 2  # hands its arguments to the step's own code
    EFFECT = 3


def _is_below(module, names):
    return any(module == name or module.startswith(name + ".") for name in names)


def effect_of(module):
    """What calling a module's code does outside of tensors, in words; None: nothing."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if words := _EFFECTS.get(".".join(parts[:end])):
            return words
    return None


# Of torch.distributed: they ask whether there are other processes, and talk to none.
_QUERIES = {
    "is_available", "is_initialized", "get_rank", "get_world_size", "is_nccl_available", "is_gloo_available",
    "is_mpi_available", "is_torchelastic_launched",
}


def is_library_code(code):
    """torch's, NumPy's or the standard library's."""
    path = code.co_filename
    return path.startswith(_FOLDERS[1:3]) or path.startswith(_FOLDERS[3]) and not path.startswith(_INSTALLED)


def trust_in(code, module):
    """How far code of `module` is trusted."""
    if module.startswith("torch.distributed") and code.co_name in _QUERIES:
        return Trust.TRUSTED
    path = code.co_filename
    ours = path.startswith(_FOLDERS) and not (path.startswith(_INSTALLED) and not path.startswith(_FOLDERS[:3]))
    if path.startswith("<") and not path.startswith("<frozen"):  # made by a dataclass, a named tuple, a notebook
        ours = _is_below(module, _LIBRARIES) or module in _STANDARD_PURE
    elif path.startswith("<frozen"):
        ours = True
    if not ours and module not in _STANDARD_PURE:
        return Trust.ANALYSED
    if _is_below(module, _PASSING_ON) and module not in _READS_WHOLE:
        return Trust.PASSES_ON
    if effect_of(module) is not None:
        return Trust.EFFECT
    if _is_below(module, _LIBRARIES) or module in _STANDARD_PURE or module.split(".")[0] in _STANDARD_PURE:
        return Trust.TRUSTED
    return Trust.EFFECT


def is_library(module):
    """A module whose classes and functions are not replaced while a program runs."""
    return _is_below(module, _LIBRARIES) or module in _STANDARD_PURE


def is_operator(native):
    """Whether a native function is an operator of torch.ops, or what passes a call on below autograd: that has no name."""
    if type(native.__self__).__module__ != "pybind11_builtins":
        return False
    module = native.__module__ or ""
    return module.startswith("torch._ops") or not (module or native.__name__)


def is_pure_native(module):
    """Native functions of this module change nothing but what their names say."""
    return effect_of(module) is None and (_is_below(module, _LIBRARIES) or module in _STANDARD_PURE)
