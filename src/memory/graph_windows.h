// GraphWindows: the layout of every tensor of a Graph in memory, and so which views are windows and which are copied: a
// reshape across strides must be copied, and a tensor that several opaque calls would each copy is copied once. Passes
// and planning ask here, so both treat the same views as windows.
#pragma once

#include <set>
#include <vector>

#include "ir/graph.h"
#include "ops/view_window.h"

namespace stepc {

struct GraphWindows {
  std::vector<ViewWindow> windows;   // by tensor: on its root
  std::vector<TensorId> roots;       // by tensor: itself, or the tensor on which it is a window
  std::vector<bool> copied_views;    // by node
  std::set<uint32_t> channels_last;  // groups whose kernel runs over the elements in memory order
};

GraphWindows graph_windows(const Graph& graph);

}  // namespace stepc
