// The order in which a step runs: of program order, list scheduling and what a search finds below them, the one of the
// lowest peak. The search runs while a proven bound says that there is something left to gain, and its work is bounded
// by counts. Pure and deterministic.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

inline constexpr uint64_t kOrderFineness = 4'000;  // less than this part of the peak is not looked for

struct PlannedOrder {
  UnitOrder order;
  uint64_t peak_bytes = 0;   // the largest sum of live bytes
  uint64_t bound_bytes = 0;  // no order has a lower peak
};

PlannedOrder plan_order(const OrderProblem& problem);
// The first order found whose peak is at most `bytes`; else the lowest of the few that this looks at. A small part of
// the time of plan_order(), for those who only ask whether something fits.
UnitOrder order_within(const OrderProblem& problem, uint64_t bytes);

}  // namespace stepc
