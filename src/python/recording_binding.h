// The part of stepc._C that a recording needs from Python: scopes of modules, marks of events, and what Python has
// seen.
#pragma once

#include <pybind11/pybind11.h>

namespace stepc {

void bind_recording(pybind11::module_& module);

}  // namespace stepc
