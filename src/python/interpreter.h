// The parts of CPython's internals that differ between its versions: the contents of a frame while one of its opcodes
// is traced, which stepc/watch/watch.py reads, and what shows that a dict or a class was changed.
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace stepc {

// Binds READS_FRAMES (CPython 3.11 to 3.13), top_of_stack, local_of, function_of, and own_int, which makes an integer
// that is an object of its own.
void bind_interpreter(pybind11::module_& module);

// A class's own dict, which lives as long as the class.
PyObject* dict_of_class(PyTypeObject* kind);

// Changes whenever the dict is changed. nullptr if CPython counts no changes: for an OrderedDict's order, and from 3.13
// on.
const uint64_t* version_of_dict(PyObject* dict);

// Changes whenever the class or a base of it is changed. 0 if it is unknown, until the class is asked for a name.
uint64_t version_of_class(PyTypeObject* kind);

}  // namespace stepc
