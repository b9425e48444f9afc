// Checks that streams use shared memory one after the other: no instruction touches memory that an instruction on
// another stream writes, or writes what one there reads, unless a wait stands between them. Private to schedule/.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// Every mark is reached once, and the wait for it comes later. The wait for a collective reads its results and its
// operands; other waits, and records, have none. At a guard, at host code and at the step's end stream 0 has waited for
// all that other streams do.
// Throws InternalError that names the first broken promise.
void verify_streams(const Schedule& schedule);

}  // namespace stepc
