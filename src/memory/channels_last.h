// Elementwise groups on channels-last tensors: their kernel runs over the elements in memory order and writes its
// results in the same layout, as ATen does. In the order of the dimensions, each operand would be read across its
// strides, and every later convolution would copy its operands to another layout.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace stepc {

// The strides of the results of `nodes`, a group of `graph`, if the group is elementwise and all its operands of the
// same shape are channels-last by `strides_of`; single numbers may stand beside them. Empty: otherwise, and if that
// order is the contiguous one as well.
Shape channels_last_group(const Graph& graph, std::span<const Node> nodes,
                          const std::function<const Shape&(TensorId)>& strides_of);

// The group on tensors of one dimension, in the order of their elements in memory.
Graph flattened(Graph group);

// The tensors that only opaque calls read, all in channels-last layout as recorded. The kernel that makes such a tensor
// writes it channels-last, which costs no more than one of the copies that the calls would make, and takes no memory.
std::vector<bool> wanted_channels_last(const Graph& graph);

// The tensors that two or more opaque calls read, and nothing else, all contiguous as recorded. One copy serves all
// calls; otherwise each call would make a contiguous copy of its own.
std::vector<bool> wanted_contiguous(const Graph& graph);

}  // namespace stepc
