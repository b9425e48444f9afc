// The reference interpreter: a whole Graph on arrays. A Graph with opaque ATen nodes is refused by name.
#pragma once

#include <vector>

#include "interp/array.h"

namespace stepc {

// `inputs` in the order of graph.inputs; gives the tensors of graph.outputs in their order, an empty Array for those
// without a tensor.
std::vector<Array> interpret(const Graph& graph, const std::vector<Array>& inputs);

// The same graph with every floating-point type made f64: the reference that errors are measured against. Casts
// between floating-point types then do nothing.
Graph in_double(const Graph& graph);
// A floating-point array as f64.
Array in_double(const Array& array);

}  // namespace stepc
