// The second step of fuse(): one call for matmuls that share their left operand, are near each other and run on the
// blocked kernel, if order allows that.
#pragma once

#include "ops/rules/matmul_rule.h"
#include "passes/fusion/fusion_groups.h"

namespace stepc {

void share_operand(FusionGroups& groups, const MatmulRule& rule);

}  // namespace stepc
