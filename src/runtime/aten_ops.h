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
// Of an op that replaces some elements of its first operand: `target` holds that operand's elements.
using OverwritingFn = void (*)(const at::Tensor& target, const std::vector<at::Tensor>& x, const Attrs& attrs);

// False: a composite without a kernel of its own.
bool has_aten_op(std::string_view op);
bool overwrites(const Node& node);
bool may_be_window(const Node& node);  // on its operand's memory

// Runs one node of the op table; results have exactly the node's types. `target`: where an op that overwrites its first
// operand leaves the result, perhaps that operand's own memory; undefined: in new memory.
std::vector<at::Tensor> run_aten_op(const Node& node, const std::vector<at::Tensor>& inputs,
                                    const std::vector<TensorType>& types, const at::Tensor& target = {});

namespace detail {
using AtenOps = std::map<std::string_view, AtenFn>;
const AtenOps& elementwise_aten_ops();
const AtenOps& view_aten_ops();     // windows, where the operand's strides allow it
const AtenOps& shape_aten_ops();    // other views, reduce
const AtenOps& product_aten_ops();  // matmul, attention, index, random
const AtenOps& loss_aten_ops();
using OverwritingOps = std::map<std::string_view, OverwritingFn>;
const OverwritingOps& shape_overwriting_ops();
const OverwritingOps& index_overwriting_ops();
}  // namespace detail

}  // namespace stepc
