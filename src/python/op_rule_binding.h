// The part of stepc._C behind stepc.op_rule.
#pragma once

#include <pybind11/pybind11.h>

#include "capture/op_rule.h"

namespace stepc {

// The rules that the program has given so far.
OpRules given_op_rules();

void bind_op_rules(pybind11::module_& module);

}  // namespace stepc
