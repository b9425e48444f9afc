// common_subexpressions: nodes with the same op, operands and attributes become the first of them. Across the phases of
// a step only if that keeps nothing longer than before: what the program recomputes in its backward pass to save memory
// (gradient checkpointing) stays recomputed. Opaque nodes are unchanged.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph common_subexpressions(Graph graph);

}  // namespace stepc
