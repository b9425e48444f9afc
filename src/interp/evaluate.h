// One op on arrays: what every generated kernel is held to. Written to be read, not to be fast. A composite is what its
// decomposition says.
#pragma once

#include <string_view>
#include <vector>

#include "interp/array.h"
#include "ops/op_def.h"

namespace stepc {

std::vector<Array> evaluate(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs);

}  // namespace stepc
