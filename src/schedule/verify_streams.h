// What the streams of a Schedule share is used by one after the other: no instruction touches memory that one on
// another stream writes, or writes what one there reads, unless a wait stands between them. Private to schedule/.
#pragma once

#include "schedule/schedule.h"

namespace stepc {

// Every mark is reached once and waited for behind that; the wait for a collective reads its results and its operands,
// so that both live until then; a guard, host code and the step's end find no exchange on its way. Throws InternalError
// naming the first broken promise.
void verify_streams(const Schedule& schedule);

}  // namespace stepc
