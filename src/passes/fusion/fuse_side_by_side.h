// fuse_side_by_side: on a GPU a launch takes a microsecond, so kernels of the update that do not wait for each other
// become one, whose parts nothing connects (ops/unconnected_parts.h):
//
//   - those that wait for the same number, such as the clip's scale, which itself follows from all that is large in
//     what they read: all of that is in memory by then anyway;
//   - those that make single numbers of what the step begins with: counts of steps, and what follows from them.
#pragma once

#include "passes/fusion/fusion_groups.h"

namespace stepc {

void fuse_side_by_side(FusionGroups& groups);

}  // namespace stepc
