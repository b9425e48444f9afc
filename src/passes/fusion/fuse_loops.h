// The first step of fuse(): kernels. Takes nodes in program order; each joins the groups that make its operands, or
// that read the same memory, if loops and order allow that.
#pragma once

#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_loops(FusionGroups& groups);

}  // namespace stepc
