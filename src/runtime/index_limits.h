// What of a program's own tensors may choose elements, and of how many. Where eager says which index is out of range, a
// fused kernel reads the nearest element: so such indices are looked at before a Graph runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/graph_plan.h"

namespace stepc {

struct IndexLimit {
  TensorId from;                   // an input, or a window on one
  std::vector<NodeId> views;       // that lead from there to the indices, the last one first
  int64_t size = 0;                // 0 <= index < size
  std::optional<int64_t> ignored;  // may stand among them: the targets of tokens without a loss
  bool operator==(const IndexLimit&) const = default;
};

// Of indices that the plan's Graph takes as they are, perhaps cast; those that it computes are not looked at.
std::vector<IndexLimit> index_limits(const GraphPlan& plan);

// The indices, among what `from` holds.
at::Tensor indices_of(const IndexLimit& limit, const Graph& graph, at::Tensor from);
bool within(const IndexLimit& limit, const at::Tensor& indices);

}  // namespace stepc
