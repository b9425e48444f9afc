// What a timed run of a plan took, instruction by instruction, beside the work that each of them is.
#pragma once

#include "cost/profile.h"
#include "engine/plan.h"
#include "runtime/run_times.h"

namespace stepc {

// The mode, the times and the work that the Schedule states; the target is left to the caller.
Profile profile_of(const Plan& plan, const RunTimes& times);

}  // namespace stepc
