// Puts nodes that can share a kernel into groups that stand in a row: elementwise ops, reductions, reads by index and
// random draws, with the constants and views that they use, which each group gets for itself. What cannot be one kernel
// (why_no_loops()) never is; products, attention and opaque calls stay outside. A graph that has groups is left alone.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph fuse(Graph graph);

}  // namespace stepc
