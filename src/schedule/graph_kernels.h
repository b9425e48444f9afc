// The first stage of schedule_graph(): the kernel of each node and group of a fused Graph, and the windows of views.
// Decides nothing about memory. Private to schedule/.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel_choice.h"
#include "memory/graph_windows.h"
#include "schedule/from_graph.h"
#include "schedule/workspaces.h"

namespace stepc {

inline constexpr uint32_t kNoGroup = UINT32_MAX;

struct GraphKernels {
  Graph graph;
  GraphWindows lie;
  struct Unit {
    std::vector<TensorId> inputs, outputs;
    KernelChoice choice;
    uint32_t group = kNoGroup;
    Workspace workspace;  // of ATen calls
  };
  std::map<NodeId, Unit> units;  // by first node
  std::vector<bool> on_host;     // by input, of a step on a device: whether it lies in the host's memory

  [[nodiscard]] bool is_window(TensorId tensor) const { return lie.roots[tensor.index()] != tensor; }
  [[nodiscard]] TensorLayout layout(TensorId tensor) const {
    return {graph.type(tensor), lie.windows[tensor.index()].strides};
  }
  [[nodiscard]] std::vector<TensorLayout> layouts(const std::vector<TensorId>& tensors) const {
    std::vector<TensorLayout> out;
    for (TensorId tensor : tensors) out.push_back(layout(tensor));
    return out;
  }
};

// Takes groups apart that no kernel runs as a whole. `out` receives their names and the calls with unknown workspaces.
GraphKernels choose_kernels(Graph graph, const GraphScheduleOptions& options, GraphSchedule& out);

}  // namespace stepc
