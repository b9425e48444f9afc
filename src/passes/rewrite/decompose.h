// decompose: replaces every composite by its decomposition, until only core ops and opaque nodes are left.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph decompose(Graph graph);

}  // namespace stepc
