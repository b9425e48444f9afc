// What a timed run of a plan took, instruction by instruction, beside the work that each of them is.
#pragma once

#include "cost/profile.h"
#include "engine/plan.h"
#include "runtime/run_times.h"

namespace stepc {

// The mode, the times and the work; the target is left to the caller. The work of recorded calls is that of their ops;
// a call without a row in the op table counts as its traffic alone.
Profile profile_of(const Plan& plan, const RunTimes& times);

}  // namespace stepc
