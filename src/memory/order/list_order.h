// List scheduling: one unit after the other, by a rule that considers only ready units.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

// Always runs the ready unit that leaves the fewest bytes live; among equal ones the first in program order. The
// literature calls this heuristic LESCEA.
UnitOrder least_increase_order(const OrderProblem& problem);

}  // namespace stepc
