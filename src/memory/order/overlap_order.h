// overlap_order(): an order in which exchanges go on beside the computation. A list schedule (Graham, Bounds on
// multiprocessing timing anomalies, 1969) for two workers, the computation and the link, whose priorities are the
// places in an order that is given: so it stays near that order's memory where nothing is won by leaving it.
//
//   given order   gather1 wait1 a gather2 wait2 b         a and b take as long as a gather
//   overlapped    gather1 wait1 gather2 a wait2 b         the second gather goes on beside a
#pragma once

#include <cstdint>
#include <vector>

#include "memory/order/order_problem.h"

namespace stepc {

// By unit of an OrderProblem.
struct OverlapUnit {
  double seconds = 0;     // that it takes; of an exchange: on the link
  uint32_t wait = kNone;  // of an exchange: the unit that waits for it; kNone: not an exchange, or one that blocks
  bool is_first = false;  // stands before all that is not so: what decisions need
  bool is_host = false;   // of the program's host code: no exchange is on its way meanwhile
};

struct OverlapLimits {
  // An exchange begins no earlier than so many times its own duration before the given order would come to it.
  double window = 2;
  uint32_t most_in_flight = 4;
};

// `order` is one of the problem's, `units` has an entry for each unit. Every unit comes once and after what it needs.
UnitOrder overlap_order(const OrderProblem& problem, const UnitOrder& order, const std::vector<OverlapUnit>& units,
                        const OverlapLimits& limits = {});

}  // namespace stepc
