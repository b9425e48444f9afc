// The last step of fuse(): the graph with its groups, each of them in a row, with copies of what is free.
#pragma once

#include "passes/fusion/fusion_groups.h"

namespace stepc {

Graph write_groups(const FusionGroups& groups);

}  // namespace stepc
