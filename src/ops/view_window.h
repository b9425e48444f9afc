// What a view op does to a window of memory: the window that it shows, where one can show it.
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

}  // namespace stepc
