// The order in which a step runs and where its memory lies, together: several orders, the best layout of each that can
// still win, the best of all. Never above program order or list scheduling, whatever layout those get. Pure and
// deterministic; work is bounded by counts.
#pragma once

#include <string_view>

#include "memory/layout.h"
#include "memory/order/order_problem.h"

namespace stepc {

struct PlannedOrder {
  UnitOrder order;
  std::string_view algorithm;  // who found it, for reports
  uint64_t peak_bytes = 0;     // the largest sum of live bytes
  uint64_t bound_bytes = 0;    // no order has a lower peak
  OrderIntervals intervals;
  Layout layout;  // of intervals.layout
};

PlannedOrder plan_order(const OrderProblem& problem);
// The order alone, by its peak.
UnitOrder lowest_peak_order(const OrderProblem& problem);
// The first order found whose peak is at most `bytes`; else the lowest of the few that this looks at. A small part of
// the time of lowest_peak_order(), for those who only ask whether something fits.
UnitOrder order_within(const OrderProblem& problem, uint64_t bytes);

}  // namespace stepc
