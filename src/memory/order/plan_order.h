// The order in which a step runs: the one of the lowest peak among program order, list scheduling and what a search
// finds below them. The search runs as long as a proven bound leaves something to gain, and its work is bounded by
// counts. Pure and deterministic.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

inline constexpr uint64_t kOrderFineness = 4'000;  // the search ignores gains below the peak divided by this

struct PlannedOrder {
  UnitOrder order;
  uint64_t peak_bytes = 0;   // the largest sum of live bytes
  uint64_t bound_bytes = 0;  // lower bound of every order
};

PlannedOrder plan_order(const OrderProblem& problem);
// The first order found whose peak is at most `bytes`; otherwise the lowest of the few that this function tries. Takes
// a small part of the time of plan_order(), for callers that only ask whether something fits.
UnitOrder order_within(const OrderProblem& problem, uint64_t bytes);

}  // namespace stepc
