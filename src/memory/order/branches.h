// Branches: parts of a problem that lead to one end only, such as a parameter's gradient and its update. A branch may
// run early or late without effect on anything else; the rest is the trunk.
#pragma once

#include "memory/order/order_problem.h"

namespace stepc {

struct Branches {
  std::vector<uint32_t> branch_of;  // by unit; kNone: the trunk
  std::vector<UnitOrder> units;     // by branch: the order of lowest peak that was found for it alone
};

// Every end (a unit that nothing needs) has a branch; the branch is empty if most of the units lead to that end.
Branches find_branches(const OrderProblem& problem);

}  // namespace stepc
