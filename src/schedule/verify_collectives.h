// Whether what a Schedule says of a mesh holds: collectives that all its ranks can do in one order, tensors that are
// the parts that they say, the rank's place. Internal to verify(), which has looked at ids and windows before.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// Checks of each collective: a row of the op table; contiguous operands of the types that it takes and makes, which
// overlap only if an all_reduce is in place; axes of the mesh, and as many ranks as these have; the scratch memory of
// collective_scratch_bytes(); one stream for all, which gives them one order. Throws InternalError that names the first
// broken promise.
void verify_collectives(const Schedule& schedule);

}  // namespace stepc
