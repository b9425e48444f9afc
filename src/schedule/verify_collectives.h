// Whether what a Schedule says of a mesh holds: collectives that all its ranks can do in one order, tensors that are
// the parts that they say, the rank's place. Internal to verify(), which has looked at ids and windows before.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// Of collectives: a row of the op table; contiguous operands of the types that it takes and makes, the one on the other
// only where an all_reduce is in place; axes of the mesh, and as many ranks as these have; the scratch memory of
// collective_scratch_bytes(); all on one stream, which gives them one order. Throws InternalError naming the first
// broken promise.
void verify_collectives(const Schedule& schedule);

}  // namespace stepc
