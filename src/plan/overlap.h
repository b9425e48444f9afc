// overlap(): puts the exchanges of a rank's planned step beside its computation. What each unit takes, simulate() says
// of the plan as it is; memory/order/overlap_order.h finds the order.
#pragma once

#include <optional>

#include "plan/plan_graph.h"

namespace stepc {

// The step anew in an order in which exchanges go on beside other kernels, and in which it takes less time and at most
// `most_bytes`, as Schedule::peak_bytes() counts them; nothing: there is none. `planned` has waits
// (passes/split_collectives.h).
std::optional<PlannedGraph> overlapped(const PlannedGraph& planned, const PlanGraphOptions& options,
                                       uint64_t most_bytes);

}  // namespace stepc
