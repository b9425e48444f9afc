// simplify: removes casts, views and arithmetic that change nothing, joins neighbouring views, and lets matmul read a
// transposed operand.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph simplify(Graph graph);

}  // namespace stepc
