// The first step of fuse(): kernels. Nodes are taken in program order; each joins the groups that make what it reads,
// or that read the same memory, where loops and order allow.
#pragma once

#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_loops(FusionGroups& groups);

}  // namespace stepc
