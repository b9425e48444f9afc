// The third step of fuse(): epilogues, which finish a matmul's result tile by tile, move from their kernel into the
// matmul's call.
#pragma once

#include "ops/rules/matmul_rule.h"
#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_epilogues(FusionGroups& groups, const MatmulRule& rule);

}  // namespace stepc
