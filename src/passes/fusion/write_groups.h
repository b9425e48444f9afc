// The last step of fuse(): writes the graph with its groups, each of them contiguous, with copies of free nodes.
#pragma once

#include "passes/fusion/fusion_groups.h"

namespace stepc {

// `made_of`, if given: by node of the result, the node of groups.graph() that it is or that it copies.
Graph write_groups(const FusionGroups& groups, std::vector<NodeId>* made_of = nullptr);

}  // namespace stepc
