// Checks that buffers in the arena do not overlap while they live. Internal to verify(), which has checked ids and
// windows before.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// A buffer lives from the first instruction that writes it to the last that uses it, or to the end of the step if an
// output reads it; used on a stream beside stream 0, to the wait by which stream 0 knows that the use has ended. Throws
// InternalError that names the first instruction that uses memory of another live buffer.
void verify_arena(const Schedule& schedule);

}  // namespace stepc
