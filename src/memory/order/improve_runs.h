// Local ordering: puts the units around a peak, between two points with few live bytes, in a better order as long as
// there is one.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

// An order whose peak is at most that of `order`. Stops at `bound_bytes`, a lower bound of every order, and after a
// number of runs that depends only on the problem's size.
UnitOrder improve_runs(const OrderProblem& problem, UnitOrder order, uint64_t bound_bytes);

}  // namespace stepc
