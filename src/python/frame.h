// What a frame of the interpreter holds while an opcode of it is traced: the value stack, cells and the function.
// stepc/watch/watch.py reads there what the opcode is about to read. CPython 3.11 to 3.13; of others READS_FRAMES is
// false.
#pragma once

#include <pybind11/pybind11.h>

namespace stepc {

// READS_FRAMES, top_of_stack, local_of, function_of and own_int, an integer as an object that no other number is.
void bind_frame(pybind11::module_& module);

}  // namespace stepc
