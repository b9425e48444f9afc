// decompose: replaces every composite by its decomposition, until only core ops and opaque nodes are left. `has_fp8`:
// the machine multiplies float8, so scaled matmuls stay.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph decompose(Graph graph, bool has_fp8 = false);

}  // namespace stepc
