// The time that each instruction of a timed run of a Schedule took, beside the work of the instruction.
#pragma once

#include "cost/profile.h"
#include "engine/config.h"
#include "engine/prediction.h"
#include "runtime/run_times.h"
#include "schedule/schedule.h"

namespace stepc {

// The times, the work that the Schedule states, and what each instruction should take on that machine.
Profile profile_of(const Schedule& schedule, Mode mode, const RunTimes& times, const KnownTarget& known);

}  // namespace stepc
