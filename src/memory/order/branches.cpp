#include "memory/order/branches.h"

#include <algorithm>

#include "memory/order/beam_order.h"
#include "memory/order/list_order.h"

namespace stepc {
namespace {

constexpr size_t kBranchBeamWidth = 500;

std::vector<uint32_t> all_users(const OrderProblem& problem) {
  std::vector<uint32_t> counts;
  for (const OrderValue& value : problem.values) counts.push_back(static_cast<uint32_t>(value.users.size()));
  return counts;
}

}  // namespace

Branches find_branches(const OrderProblem& problem) {
  const size_t count = problem.units.size();
  const auto after = successors(problem);
  Branches out;
  out.branch_of.assign(count, kNone);
  for (uint32_t u = static_cast<uint32_t>(count); u-- > 0;) {
    if (after[u].empty()) {
      out.branch_of[u] = static_cast<uint32_t>(out.units.size());
      out.units.emplace_back();
    } else {
      const uint32_t branch = out.branch_of[after[u][0]];
      if (std::ranges::all_of(after[u], [&](uint32_t later) { return out.branch_of[later] == branch; }))
        out.branch_of[u] = branch;
    }
    if (out.branch_of[u] != kNone) out.units[out.branch_of[u]].push_back(u);
  }

  const std::vector<uint32_t> users = all_users(problem);
  for (UnitOrder& units : out.units) {
    if (2 * units.size() > count) {  // most of the step: the trunk
      for (uint32_t unit : units) out.branch_of[unit] = kNone;
      units.clear();
    }
    std::ranges::sort(units);
    const OrderProblem part = run_of_units(problem, units, users);
    UnitOrder best = program_order(part);
    const auto offer = [&](UnitOrder order) {
      if (!order.empty() && peak_bytes(part, order) < peak_bytes(part, best)) best = std::move(order);
    };
    offer(least_increase_order(part));
    if (units.size() <= kMostBeamUnits) offer(beam_order(part, kBranchBeamWidth, peak_bytes(part, best)).order);
    for (uint32_t& unit : best) unit = units[unit];
    units = std::move(best);
  }
  return out;
}

}  // namespace stepc
