// Checks what a Schedule says of a mesh: collectives that all ranks can make in one order, tensors that are the stated
// parts, the rank's position. Internal to verify(), which has checked ids and windows before.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// Checks of each collective: a row of the op table; contiguous operands of the types that it takes and makes, which
// overlap only if an all_reduce is in place; axes of the mesh, and as many ranks as these have; the scratch memory of
// collective_scratch_bytes(); one stream for all, which gives them one order. Throws InternalError that names the first
// broken promise.
void verify_collectives(const Schedule& schedule);

}  // namespace stepc
