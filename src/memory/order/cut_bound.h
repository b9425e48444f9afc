// The fewest bytes that can be live while one unit runs, over all orders: a minimum cut.
//
// When the unit starts, some set of units has run that holds all it needs and nothing that needs it. A value is live
// when its producer is in the set and a reader is not. The set with the fewest live bytes is the source side of a
// minimum cut in a network with an edge of a value's bytes from its producer to it and unbreakable edges from it to its
// readers, and from each unit to those that it needs.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

// A lower bound on the peak of every order: the bytes that are live when `unit` starts, and those that it makes without
// taking over memory.
uint64_t cut_bound(const OrderProblem& problem, uint32_t unit);

}  // namespace stepc
