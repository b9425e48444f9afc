// A lower bound on the peak of every order, from three proofs:
//
//   closure   while unit n runs, a value is live in every order if n or what must run before it makes it, and n or what
//             must run after it reads it. Cheap, for every unit
//   cut       the fewest bytes that can be live when n starts (memory/order/cut_bound.h), for the units where the first
//             bound is largest
//   branches  the lowest peak of a few units alone, found exhaustively: what a weight update cannot avoid, whenever it
//             runs
#pragma once

#include "memory/order/branches.h"
#include "memory/order/order_problem.h"

namespace stepc {

uint64_t order_bound(const OrderProblem& problem, const Branches& branches);

}  // namespace stepc
