// What a timed run of a plan took, instruction by instruction, beside the work that each of them is.
#pragma once

#include "cost/profile.h"
#include "engine/plan/plan.h"
#include "runtime/run_times.h"

namespace stepc {

// The times, the work that the Schedule states, and what each instruction should take on `target`.
Profile profile_of(const Plan& plan, const RunTimes& times, const Target& target);

}  // namespace stepc
