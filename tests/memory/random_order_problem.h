// Random order problems: units that read a few earlier values, with reuse, workspaces and kept values.
#pragma once

#include <algorithm>
#include <random>

#include "memory/order/order_problem.h"

namespace stepc::test {

inline OrderProblem random_order_problem(size_t units, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<uint32_t>(random() % n); };
  OrderProblem problem;
  problem.units.resize(units);
  for (uint32_t u = 0; u < units; ++u) {
    OrderUnit& unit = problem.units[u];
    const auto made = static_cast<uint32_t>(problem.values.size());
    for (uint32_t i = 0, n = made == 0 ? 0 : below(4); i < n; ++i) {
      const uint32_t window = below(3) == 0 ? made : std::min(made, 4U);
      unit.reads.push_back(made - 1 - below(window));
    }
    std::ranges::sort(unit.reads);
    unit.reads.erase(std::unique(unit.reads.begin(), unit.reads.end()), unit.reads.end());
    for (uint32_t value : unit.reads) problem.values[value].users.push_back(u);
    for (uint32_t i = 0, n = below(6) == 0 ? 2 : 1; i < n; ++i) {
      unit.makes.push_back(static_cast<uint32_t>(problem.values.size()));
      problem.values.push_back({64 * static_cast<uint64_t>(below(5)), u, below(12) == 0, {}});
    }
    if (u > 0 && below(8) == 0) unit.after.push_back(below(u));
    if (below(8) == 0) unit.workspace_bytes = 64 * static_cast<uint64_t>(below(4));
    for (uint32_t operand : unit.reads)
      for (uint32_t result : unit.makes)
        if (problem.values[operand].bytes == problem.values[result].bytes && below(2) == 0)
          unit.reuses.push_back({operand, result});
  }
  return problem;
}

}  // namespace stepc::test
