// Target: the machine as data. Whoever plans asks it instead of a clock, so a plan is a function of its inputs.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace stepc {

struct Target {
  double flops_per_second = 1e12;
  double bytes_per_second = 4e10;
  double narrow_flops_per_second = 1e12;  // on bf16 and f16 operands
  bool operator==(const Target&) const = default;
};

// What there is to do: arithmetic, and traffic between kernels and memory.
struct Work {
  double flops = 0;
  double narrow_flops = 0;  // on bf16 and f16 operands
  double bytes = 0;
  [[nodiscard]] double all_flops() const { return flops + narrow_flops; }
};
Work& operator+=(Work& sum, const Work& more);

// A node alone. An opaque call is its traffic alone, a view is nothing.
Work work_of(const Graph& graph, const Node& node);
// Nodes that run as one kernel: the arithmetic of all, and the traffic of what they read from outside, each tensor
// once, and leave behind. What a view repeats is read once.
Work work_of(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<TensorId>& inputs,
             const std::vector<TensorId>& outputs);

// Roofline: work takes as long as its arithmetic or its memory traffic, whichever takes longer.
double seconds_of(const Work& work, const Target& target);
double seconds_of(const Graph& graph, const Node& node, const Target& target);

}  // namespace stepc
