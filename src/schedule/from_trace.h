// From a Trace to its Schedule, for `exact` mode: one instruction for each recorded call, in order, without views.
// Every allocation of every kernel has a place, planned from the recorded lifetimes.
#pragma once

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

// `threads`: the intra-op thread count that the step was recorded with.
Schedule schedule_trace(const Trace& trace, const Features& features, int threads);

}  // namespace stepc
