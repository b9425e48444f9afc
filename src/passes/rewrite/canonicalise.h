// canonicalise: one way to write each thing, so that later rules need to know one. Constants stand second and without
// dimensions, operands are not expanded where broadcasting does it, powers have their own ops.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph canonicalise(Graph graph);

}  // namespace stepc
