// Orders of a few units, exhaustively where that is possible: a layer holds every set of units that can have run first,
// with the best order of each. Where a layer has more sets than `width`, only the best go on.
#pragma once

#include <cstddef>

#include "memory/order/order_problem.h"

namespace stepc {

inline constexpr size_t kMostBeamUnits = 64;

struct BeamOrder {
  UnitOrder order;
  uint64_t peak_bytes = 0;
  bool exact = false;  // no order has a lower peak
};

// At most kMostBeamUnits units. An order whose peak is not below `limit` is not looked for: then `order` is empty, and
// `exact` says that there is none.
BeamOrder beam_order(const OrderProblem& problem, size_t width, uint64_t limit = UINT64_MAX);

// Some units of a problem, ascending, as a problem of their own.
//   kRun    they run in a row, when `users_left` (by value) users of each value have not run. What they are the last to
//           read is there from the start; what they read and others need later costs nothing here
//   kBound  other units may run in between: only what they make and only they read is counted, so that the peak is one
//           that no order of the whole problem can go below
OrderProblem run_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units,
                          const std::vector<uint32_t>& users_left);
OrderProblem bound_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units);

}  // namespace stepc
