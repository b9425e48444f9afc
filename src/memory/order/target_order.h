// An order that stays below a target, or none. A unit that frees memory and fits below the target runs immediately,
// because this can only help later units; so do whole branches (weight updates) that free memory in the end. Between
// them the trunk advances in a given order.
#pragma once

#include <optional>

#include "memory/order/branches.h"
#include "memory/order/order_problem.h"

namespace stepc {

std::optional<UnitOrder> target_order(const OrderProblem& problem, const Branches& branches, const UnitOrder& base,
                                      uint64_t target_bytes);

}  // namespace stepc
