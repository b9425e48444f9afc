// overlap_order(): an order in which exchanges run beside the computation. A list schedule (Graham, Bounds on
// multiprocessing timing anomalies, 1969) for two workers, the computation and the link. The priorities are the
// positions in a given order, so the result leaves that order, and its memory, only where it gains time.
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
  double seconds = 0;     // its duration; of an exchange: on the link
  uint32_t wait = kNone;  // of an exchange: the unit that waits for it; kNone: no exchange, or a blocking one
  bool is_first = false;  // comes before all other units: decisions need it
  bool is_host = false;   // of the program's host code: no exchange is in progress meanwhile
};

struct OverlapLimits {
  // The earliest beginning of an exchange: this many times its own duration before its turn in the given order.
  double window = 2;
  uint32_t most_in_flight = 4;
  // No unit leaves its place in the given order where live bytes would then go above this, now or before its turn comes
  // there. An order that is above it already is not mended.
  uint64_t most_bytes = UINT64_MAX;
  // By place of the given order: bytes that are live there too, of what the problem does not have; none: nothing.
  std::vector<uint64_t> beside = {};
};

// The most live bytes of an order with those beside it, as in OverlapLimits.
uint64_t peak_beside(const OrderProblem& problem, const UnitOrder& order, const std::vector<uint64_t>& beside);

// `order` is an order of the problem; `units` has an entry for each unit. In the result every unit occurs once and
// after everything that it needs.
UnitOrder overlap_order(const OrderProblem& problem, const UnitOrder& order, const std::vector<OverlapUnit>& units,
                        const OverlapLimits& limits = {});

}  // namespace stepc
