// How tensors lie in memory: what a view op does to a window of it, where one can show that, and what kernels leave.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace stepc {

// Offset and strides in elements of the tensor's own type.
struct ViewWindow {
  Shape sizes, strides;
  int64_t offset = 0;
  bool operator==(const ViewWindow&) const = default;
};

// `node` is one of the op table's views, `operand` how its operand lies, of dtype `from`. nullopt: its elements have to
// be copied (a reshape across strides, a reversal). A reshape finds a window wherever PyTorch's view() does.
std::optional<ViewWindow> window_of(const Node& node, DType from, const ViewWindow& operand);

// How the results of a node's kernel lie: contiguous, but where readers want another layout (attention's heads).
Shape result_strides(const Node& node, const TensorType& type);

}  // namespace stepc
