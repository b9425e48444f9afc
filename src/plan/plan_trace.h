// From a captured step to the Schedule of its recorded calls, for `exact` mode, as plan_graph.h is for `fast`.
#pragma once

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

// One instruction for each recorded call, with its work: the arithmetic of its ops and the traffic of its operands and
// results. There is no arithmetic if the step is not a Graph; a call without a row in the op table has its traffic
// only, or the work that a rule states. `threads`: the intra-op thread count of the recording. `features`: of the GPU
// on which these calls would run.
Schedule plan_trace(const Trace& trace, int threads, const Features& features = {});

}  // namespace stepc
