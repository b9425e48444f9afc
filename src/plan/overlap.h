// overlap(): moves the exchanges of a rank's planned step beside its computation. simulate() gives the time of each
// unit in the present plan; memory/order/overlap_order.h finds the order.
#pragma once

#include <optional>

#include "plan/plan_graph.h"

namespace stepc {

struct Overlapped {
  std::optional<PlannedGraph> planned;  // none: no order takes less time within the memory
  uint64_t missing_bytes = 0;           // that a faster order would need in addition; 0: there is no faster order
};

// Plans the step again, in an order in which exchanges run beside other kernels, and which takes less time and at most
// `most_bytes`, as held_bytes() counts them (plan/memory_budget.h). `planned` has waits (passes/split_collectives.h).
Overlapped overlapped(const PlannedGraph& planned, const PlanGraphOptions& options, uint64_t most_bytes);

}  // namespace stepc
