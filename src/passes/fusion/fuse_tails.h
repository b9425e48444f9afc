// The third step of fuse(): what finishes products where they are made, tile by tile, leaves its kernel for their call.
#pragma once

#include "ops/product_rule.h"
#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_tails(FusionGroups& groups, const ProductRule& rule);

}  // namespace stepc
