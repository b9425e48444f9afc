// The part of stepc._C behind stepc.accelerate of a step: its engine's Step, and the ranks that it may run on.
#pragma once

#include <pybind11/pybind11.h>

namespace stepc {

void bind_step(pybind11::module_& module);

}  // namespace stepc
