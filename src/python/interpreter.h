// The parts of CPython's internals that differ between its versions: what a frame holds while one of its opcodes is
// traced, which stepc/watch/watch.py reads, and what shows that a dict or a class was changed.
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace stepc {

// READS_FRAMES (CPython 3.11 to 3.13), top_of_stack, local_of, function_of, and own_int, an integer as an object that
// no other number is.
void bind_interpreter(pybind11::module_& module);

// A class's own dict, which lives as long as the class.
PyObject* dict_of_class(PyTypeObject* kind);

// Another number whenever the dict is changed; null where CPython counts no changes: of an OrderedDict's order, and
// from 3.13 on.
const uint64_t* version_of_dict(PyObject* dict);

// Another number whenever the class or a base of it is changed; 0 where it is not known, until the class is asked for
// a name.
uint64_t version_of_class(PyTypeObject* kind);

}  // namespace stepc
