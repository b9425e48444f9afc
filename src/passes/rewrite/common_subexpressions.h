// common_subexpressions: two nodes with the same op, operands and attributes become the first of them. Across the
// phases of a step only where that keeps nothing longer than it is kept anyway: what the program recomputes in its
// backward pass to save memory (gradient checkpointing) is recomputed. Opaque nodes stay as they are.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph common_subexpressions(Graph graph);

}  // namespace stepc
