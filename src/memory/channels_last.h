// Elementwise groups on channels-last tensors: their kernel runs over the elements in the order in which they lie, and
// leaves its results so, as ATen does. Written in the order of the dimensions, each would be read across its strides,
// and every convolution behind it would lay its operands out anew.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace stepc {

// The strides of the results of `nodes`, a group of `graph`, where it is elementwise and all it reads of its shape lies
// channels-last as `strides_of` says; beside single numbers, and not where that order is the contiguous one too. Empty:
// otherwise.
Shape channels_last_group(const Graph& graph, std::span<const Node> nodes,
                          const std::function<const Shape&(TensorId)>& strides_of);

// Such a group on tensors of one dimension, element by element as they lie.
Graph flattened(Graph group);

// The tensors that opaque calls alone read, all of them channels-last, as they were recorded: whatever kernel makes one
// writes it so, which is no more than each of these calls would do to lay it out anew, and takes no memory.
std::vector<bool> wanted_channels_last(const Graph& graph);

// The tensors that opaque calls alone read, two or more, all of them contiguous, as they were recorded: copied once,
// each is so for all, where every call would lay out a copy of its own beside it.
std::vector<bool> wanted_contiguous(const Graph& graph);

}  // namespace stepc
