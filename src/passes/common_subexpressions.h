// common_subexpressions: two nodes with the same op, operands and attributes become the first of them. Opaque nodes
// stay as they are.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph common_subexpressions(Graph graph);

}  // namespace stepc
