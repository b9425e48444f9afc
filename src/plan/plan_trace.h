// From a captured step to the Schedule of its recorded calls, for `exact` mode, as plan_graph.h is for `fast`.
#pragma once

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

// One instruction a recorded call, each with its work: the arithmetic of the ops that it is (none where the step is no
// Graph: a call without a row in the op table is its traffic alone, or what a rule says of it), and the traffic of what
// it is given and leaves. `threads`: the intra-op thread count that the step was recorded with. `features`: of a GPU
// that these calls would run on.
Schedule plan_trace(const Trace& trace, int threads, const Features& features = {});

}  // namespace stepc
