// Target: the machine as data. Whoever plans asks it instead of a clock, so a plan is a function of its inputs.
#pragma once

#include "ir/graph.h"

namespace stepc {

struct Target {
  double flops_per_second = 1e12;
  double bytes_per_second = 4e10;
  bool operator==(const Target&) const = default;
};

// Roofline: a node takes as long as its arithmetic or its memory traffic, whichever takes longer. An opaque call is its
// traffic alone, a view takes no time.
double seconds_of(const Graph& graph, const Node& node, const Target& target);

}  // namespace stepc
