// The part of stepc._C behind a loop's model: its engine's Segments, and the calls that wait for their backward passes.
#pragma once

#include <pybind11/pybind11.h>

namespace stepc {

void bind_segments(pybind11::module_& module);

}  // namespace stepc
