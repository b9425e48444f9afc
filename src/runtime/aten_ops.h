// The ATen call of every core op: how a node runs where no kernel of ours does, on any strided tensors. Composites run
// as what they decompose to, but for those with an ATen kernel of their own (attention).
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/graph.h"

namespace stepc {

// Operands and attributes (complete, as in a Graph) to results, in new memory or as views of the operands. `types` are
// the node's result types, which the caller casts to.
using AtenFn = std::vector<at::Tensor> (*)(const std::vector<at::Tensor>& x, const Attrs& attrs,
                                           const std::vector<TensorType>& types);
// nullptr: a composite without a kernel of its own.
AtenFn find_aten_op(std::string_view op);

// Runs one node of the op table; results have exactly the node's types.
std::vector<at::Tensor> run_aten_op(const Node& node, const std::vector<at::Tensor>& inputs,
                                    const std::vector<TensorType>& types);

namespace detail {
using AtenOps = std::map<std::string_view, AtenFn>;
const AtenOps& elementwise_aten_ops();
const AtenOps& shape_aten_ops();    // view, reduce
const AtenOps& product_aten_ops();  // matmul, attention, index, random
}  // namespace detail

}  // namespace stepc
