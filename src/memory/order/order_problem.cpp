#include "memory/order/order_problem.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ir/alignment.h"
#include "memory/order/live_bytes.h"

namespace stepc {

UnitOrder program_order(const OrderProblem& problem) {
  UnitOrder order(problem.units.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void verify(const OrderProblem& problem) {
  const auto ascending = [](const std::vector<uint32_t>& ids, size_t limit) {
    return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end() &&
           (ids.empty() || ids.back() < limit);
  };
  std::vector<uint32_t> reads(problem.values.size(), 0);
  std::vector<uint32_t> makes(problem.values.size(), 0);
  for (uint32_t u = 0; u < problem.units.size(); ++u) {
    const OrderUnit& unit = problem.units[u];
    INTERNAL_CHECK(ascending(unit.reads, problem.values.size()), "unit {} reads a value twice or none", u);
    for (uint32_t value : unit.reads) {
      const OrderValue& read = problem.values[value];
      INTERNAL_CHECK(read.producer == kNone || read.producer < u, "unit {} reads value {}", u, value);
      INTERNAL_CHECK(std::binary_search(read.users.begin(), read.users.end(), u), "unit {} reads value {}", u, value);
      ++reads[value];
    }
    for (uint32_t value : unit.makes) {
      INTERNAL_CHECK_LT(value, problem.values.size());
      INTERNAL_CHECK_EQ(problem.values[value].producer, u, "value {}", value);
      ++makes[value];
    }
    for (uint32_t before : unit.after) INTERNAL_CHECK_LT(before, u);
    INTERNAL_CHECK_EQ(aligned(unit.workspace_bytes), unit.workspace_bytes, "workspace of unit {}", u);
    for (const auto& [operand, result] : unit.reuses) {
      INTERNAL_CHECK(std::binary_search(unit.reads.begin(), unit.reads.end(), operand), "unit {}", u);
      INTERNAL_CHECK(std::find(unit.makes.begin(), unit.makes.end(), result) != unit.makes.end(), "unit {}", u);
      INTERNAL_CHECK_EQ(problem.values[operand].bytes, problem.values[result].bytes, "unit {}", u);
    }
  }
  for (uint32_t v = 0; v < problem.values.size(); ++v) {
    const OrderValue& value = problem.values[v];
    INTERNAL_CHECK(ascending(value.users, problem.units.size()), "users of value {}", v);
    INTERNAL_CHECK_EQ(reads[v], value.users.size(), "value {}", v);
    INTERNAL_CHECK_EQ(makes[v], value.producer == kNone ? 0U : 1U, "value {}", v);
    INTERNAL_CHECK_EQ(aligned(value.bytes), value.bytes, "value {}", v);
  }
}

std::vector<std::vector<uint32_t>> predecessors(const OrderProblem& problem) {
  std::vector<std::vector<uint32_t>> out(problem.units.size());
  for (uint32_t u = 0; u < problem.units.size(); ++u) {
    out[u] = problem.units[u].after;
    for (uint32_t value : problem.units[u].reads)
      if (problem.values[value].producer != kNone) out[u].push_back(problem.values[value].producer);
    std::sort(out[u].begin(), out[u].end());
    out[u].erase(std::unique(out[u].begin(), out[u].end()), out[u].end());
  }
  return out;
}

std::vector<std::vector<uint32_t>> successors(const OrderProblem& problem) {
  std::vector<std::vector<uint32_t>> out(problem.units.size());
  const auto before = predecessors(problem);
  for (uint32_t u = 0; u < before.size(); ++u)
    for (uint32_t earlier : before[u]) out[earlier].push_back(u);
  return out;
}

void verify_order(const OrderProblem& problem, const UnitOrder& order) {
  INTERNAL_CHECK_EQ(order.size(), problem.units.size());
  const auto before = predecessors(problem);
  std::vector<bool> done(order.size(), false);
  for (uint32_t unit : order) {
    INTERNAL_CHECK_LT(unit, order.size());
    INTERNAL_CHECK(!done[unit], "unit {} comes twice", unit);
    for (uint32_t earlier : before[unit]) INTERNAL_CHECK(done[earlier], "unit {} comes before unit {}", unit, earlier);
    done[unit] = true;
  }
}

OrderPeak peak_of(const OrderProblem& problem, const UnitOrder& order) {
  LiveBytes live(problem);
  OrderPeak peak;
  for (uint32_t unit : order) {
    const int64_t before = live.live();
    const auto now = static_cast<uint64_t>(before + live.run(unit).rise);
    if (peak.unit == kNone || now > peak.bytes) peak = {now, unit};
  }
  return peak;
}

OrderIntervals intervals_of(const OrderProblem& problem, const UnitOrder& order) {
  OrderIntervals out;
  out.layout.alignment = kAlignment;
  out.interval_of.assign(problem.values.size(), kNone);
  out.workspace_interval_of.assign(problem.units.size(), kNone);
  const auto end = static_cast<int64_t>(order.size());
  const auto add = [&](uint64_t bytes, int64_t first) {
    out.layout.intervals.push_back({bytes, first, first + 1});
    return static_cast<uint32_t>(out.layout.intervals.size() - 1);
  };
  for (uint32_t v = 0; v < problem.values.size(); ++v)
    if (problem.values[v].producer == kNone && problem.values[v].bytes != 0)
      out.interval_of[v] = add(problem.values[v].bytes, 0);
  LiveBytes bytes(problem);
  for (int64_t time = 0; time < end; ++time) {
    const uint32_t unit = order[static_cast<size_t>(time)];
    const OrderUnit& one = problem.units[unit];
    bytes.for_each_reuse(
        unit, [&](uint32_t operand, uint32_t result) { out.interval_of[result] = out.interval_of[operand]; });
    for (uint32_t value : one.makes)
      if (problem.values[value].bytes != 0 && out.interval_of[value] == kNone)
        out.interval_of[value] = add(problem.values[value].bytes, time);
    if (one.workspace_bytes != 0) out.workspace_interval_of[unit] = add(one.workspace_bytes, time);
    const auto touch = [&](uint32_t value) {
      if (out.interval_of[value] == kNone) return;
      Interval& interval = out.layout.intervals[out.interval_of[value]];
      interval.last = problem.values[value].kept ? end : std::max(interval.last, time + 1);
    };
    for (uint32_t value : one.reads) touch(value);
    for (uint32_t value : one.makes) touch(value);
    bytes.run(unit);
  }
  return out;
}

}  // namespace stepc
