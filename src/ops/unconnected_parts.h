// What a kernel computes side by side: the parts of a group that no tensor of more than one element connects, such as
// the updates of several parameters.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace stepc {

// The nodes of a group, or of a graph that is one, by part and in their order. What follows from single values alone is
// in every part that reads it; of single values alone the parts have none in common. One part: all nodes.
std::vector<std::vector<NodeId>> unconnected_parts(const Graph& graph, const std::vector<NodeId>& nodes);
// Of all nodes of a graph that is a group.
std::vector<std::vector<NodeId>> unconnected_parts(const Graph& group);

}  // namespace stepc
