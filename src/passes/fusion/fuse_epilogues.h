// The third step of fuse(): what finishes matmuls where they are made, tile by tile, leaves its kernel for their call.
#pragma once

#include "ops/rules/matmul_rule.h"
#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_epilogues(FusionGroups& groups, const MatmulRule& rule);

}  // namespace stepc
