// The part of stepc._C behind stepc.plan, stepc.virtual and stepc.materialise.
#pragma once

#include <pybind11/pybind11.h>

namespace stepc {

void bind_virtual(pybind11::module_& module);

}  // namespace stepc
