// The reference interpreter: a whole Graph on arrays. Opaque ATen nodes are refused by name, unless the caller runs
// them.
#pragma once

#include <functional>
#include <vector>

#include "interp/array.h"
#include "ir/graph.h"

namespace stepc {

// What host code does: it gets the tensors that it is given, in their order (empty: none), and changes what the slots
// hold. None: it changes nothing.
using HostCodeFn =
    std::function<void(const HostCode& code, const std::vector<Array>& given, std::vector<Array>& slots)>;

// Runs an opaque ATen node: gives the arrays of its outputs, fresh results and then the new contents of what it writes.
using AtenCallFn = std::function<std::vector<Array>(const Node& node, const std::vector<Array>& operands)>;

// `inputs` in the order of graph.inputs; gives the tensors of graph.outputs in their order, an empty Array for those
// without a tensor.
std::vector<Array> interpret(const Graph& graph, const std::vector<Array>& inputs, const HostCodeFn& host = {},
                             const AtenCallFn& aten = {});

// The same graph with every floating-point type made f64: the reference that errors are measured against. Casts
// between floating-point types then do nothing.
Graph in_double(const Graph& graph);
// Whether it reads the bits of numbers, which would be others in f64.
bool reads_bits(const Graph& graph);
// A floating-point array as f64.
Array in_double(const Array& array);

}  // namespace stepc
