// dead_code: drops nodes that no output needs, and scalar and rng inputs that nothing reads. A node that draws random
// numbers from ATen's generator stays, because later draws depend on it.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace stepc {

Graph dead_code(Graph graph);
// By node: whether it stays.
std::vector<bool> needed_nodes(const Graph& graph);

}  // namespace stepc
