// GraphWindows: how every tensor of a Graph lies in memory, and so which views are windows on what they are views of
// and which are copied: a reshape across strides has to be, and what several opaque calls would each copy is so once.
// Passes and planning ask here, so that what a pass takes a view for is what the Schedule makes of it.
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
