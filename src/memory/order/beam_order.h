// Orders of a few units, exhaustive where possible: a layer holds every set of units that can have run first, with the
// best order of each. If a layer has more than `width` sets, only the best ones continue.
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

// Orders at most kMostBeamUnits units. Searches only for orders whose peak is below `limit`; if none is found, `order`
// is empty, and `exact` says whether none exists.
BeamOrder beam_order(const OrderProblem& problem, size_t width, uint64_t limit = UINT64_MAX);

// Some units of a problem, ascending, as a problem of their own.
//   run_of_units    the units run in a row, when `users_left` (by value) users of each value have not run. A value that
//                   they are the last to read exists from the start; one that others need later costs nothing here
//   bound_of_units  other units may run in between: only values that these units make and that only they read count, so
//                   that no order of the whole problem has a lower peak
OrderProblem run_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units,
                          const std::vector<uint32_t>& users_left);
OrderProblem bound_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units);

}  // namespace stepc
