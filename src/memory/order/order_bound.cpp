#include "memory/order/order_bound.h"

#include <algorithm>
#include <functional>

#include "memory/order/beam_order.h"
#include "memory/order/cut_bound.h"
#include "memory/order/unit_sets.h"

namespace stepc {
namespace {

using memory::UnitSets;

constexpr size_t kMostClosureUnits = 40'000;  // the sets of larger problems would take gigabytes
constexpr size_t kCutUnits = 20'000;          // units of all networks together, some hundredths of a second
constexpr size_t kBoundBeamWidth = 5'000;

// What unit `unit` may save by writing over operands that it may be the last to read.
uint64_t most_reused(const OrderProblem& problem, const UnitSets& later, uint32_t unit) {
  std::vector<uint32_t> operands, results;
  for (const auto& [operand, result] : problem.units[unit].reuses) {
    const OrderValue& value = problem.values[operand];
    const bool read_later = value.kept || std::ranges::any_of(value.users, [&](uint32_t user) {
                              return user != unit && later.has(unit, user);
                            });
    if (read_later) continue;
    operands.push_back(operand);
    results.push_back(result);
  }
  const auto bytes = [&](std::vector<uint32_t>& values) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    uint64_t sum = 0;
    for (uint32_t value : values) sum += problem.values[value].bytes;
    return sum;
  };
  return std::min(bytes(operands), bytes(results));
}

// By unit: what is live while it runs, whatever the order.
std::vector<uint64_t> closure_bounds(const OrderProblem& problem) {
  const size_t count = problem.units.size();
  const auto before = predecessors(problem);
  UnitSets earlier(count), later(count);  // with the unit itself
  for (uint32_t u = 0; u < count; ++u) {
    earlier.add(u, u);
    for (uint32_t unit : before[u]) earlier.add_row(u, unit);
  }
  for (size_t u = count; u-- > 0;) {
    later.add(u, u);
    for (uint32_t unit : before[u]) later.add_row(unit, u);
  }
  std::vector<uint64_t> live(count, 0);
  std::vector<uint64_t> needed(earlier.words());
  for (const OrderValue& value : problem.values) {
    if (value.bytes == 0 || value.producer == kNone) continue;
    std::fill(needed.begin(), needed.end(), value.kept ? UINT64_MAX : 0);
    if (!value.kept)
      for (uint32_t user : value.users)
        for (size_t w = 0; w < needed.size(); ++w) needed[w] |= earlier.row(user)[w];
    needed[value.producer / 64] |= uint64_t{1} << (value.producer % 64);
    for (size_t w = 0; w < needed.size(); ++w)
      memory::for_each_bit(needed[w] & later.row(value.producer)[w], 64 * w,
                           [&](size_t unit) { live[unit] += value.bytes; });
  }
  for (uint32_t u = 0; u < count; ++u) live[u] += problem.units[u].workspace_bytes - most_reused(problem, later, u);
  return live;
}

}  // namespace

uint64_t order_bound(const OrderProblem& problem, const Branches& branches) {
  const size_t count = problem.units.size();
  if (count == 0) return 0;
  uint64_t bound = 0;
  for (const UnitOrder& branch : branches.units) {
    if (branch.empty() || branch.size() > kMostBeamUnits) continue;
    std::vector<uint32_t> units = branch;
    std::ranges::sort(units);
    const BeamOrder best = beam_order(bound_of_units(problem, units), kBoundBeamWidth);
    if (best.exact) bound = std::max(bound, best.peak_bytes);
  }
  if (count > kMostClosureUnits) return bound;
  const std::vector<uint64_t> live = closure_bounds(problem);
  UnitOrder units = program_order(problem);
  std::ranges::stable_sort(units, std::greater<>(), [&](uint32_t unit) { return live[unit]; });
  bound = std::max(bound, live[units[0]]);
  units.resize(std::min(count, std::max<size_t>(kCutUnits / count, 1)));
  for (uint32_t unit : units) bound = std::max(bound, cut_bound(problem, unit));
  return bound;
}

}  // namespace stepc
