// An order that stays below a target, or none: what frees memory and fits below the target runs at once, because that
// can only help everything after it; so do whole branches (weight updates) that free memory in the end. In between the
// trunk advances in a given order.
#pragma once

#include <optional>

#include "memory/order/branches.h"
#include "memory/order/order_problem.h"

namespace stepc {

std::optional<UnitOrder> target_order(const OrderProblem& problem, const Branches& branches, const UnitOrder& base,
                                      uint64_t target_bytes);

}  // namespace stepc
