// canonicalise: one form for each expression, so that later rules need to know only one. Constants come second and have
// no dimensions, operands are not expanded if broadcasting does that, powers have their own ops.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph canonicalise(Graph graph);

}  // namespace stepc
