#include "memory/order/improve_runs.h"

#include <algorithm>

#include "memory/order/beam_order.h"
#include "memory/order/live_bytes.h"

namespace stepc {
namespace {

constexpr size_t kHalfRun = 28;   // units on each side of the peak
constexpr size_t kLeastHalf = 8;  // at least, when a run ends at a point where little is live
constexpr size_t kRunBeamWidth = 200;
constexpr uint64_t kWork = 20'000'000;  // units simulated, all rounds together
constexpr size_t kMostRounds = 400;

struct Profile {
  std::vector<int64_t> before;  // live bytes when the unit at a position starts
  size_t peak_at = 0;
  uint64_t peak_bytes = 0;
};
Profile profile_of(const OrderProblem& problem, const UnitOrder& order) {
  Profile out;
  LiveBytes bytes(problem);
  for (size_t p = 0; p < order.size(); ++p) {
    out.before.push_back(bytes.live());
    const auto peak = static_cast<uint64_t>(out.before.back() + bytes.run(order[p]).rise);
    if (peak > out.peak_bytes) {
      out.peak_bytes = peak;
      out.peak_at = p;
    }
  }
  out.before.push_back(bytes.live());
  return out;
}

// Improves the units in [begin, end) if that lowers what they rise to.
bool improve_run(const OrderProblem& problem, UnitOrder& order, size_t begin, size_t end) {
  std::vector<uint32_t> users_left;
  for (const OrderValue& value : problem.values) users_left.push_back(static_cast<uint32_t>(value.users.size()));
  for (size_t p = 0; p < begin; ++p)
    for (uint32_t value : problem.units[order[p]].reads) --users_left[value];
  const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(end);
  std::vector<uint32_t> units(first, last);
  std::ranges::sort(units);
  const OrderProblem part = run_of_units(problem, units, users_left);
  UnitOrder now;
  for (auto it = first; it != last; ++it)
    now.push_back(static_cast<uint32_t>(std::ranges::lower_bound(units, *it) - units.begin()));
  const BeamOrder better = beam_order(part, kRunBeamWidth, peak_bytes(part, now));
  if (better.order.empty()) return false;
  for (size_t i = 0; i < better.order.size(); ++i) first[static_cast<std::ptrdiff_t>(i)] = units[better.order[i]];
  return true;
}

}  // namespace

UnitOrder improve_runs(const OrderProblem& problem, UnitOrder order, uint64_t bound_bytes) {
  const size_t rounds = std::min<size_t>(kMostRounds, kWork / std::max<size_t>(order.size(), 1));
  for (size_t round = 0; round < rounds; ++round) {
    const Profile profile = profile_of(problem, order);
    if (profile.peak_bytes <= bound_bytes) break;
    const size_t peak = profile.peak_at;
    const auto least = [&](size_t from, size_t to) {  // where least is live, of [from, to]
      const auto at = profile.before.begin();
      return static_cast<size_t>(
          std::min_element(at + static_cast<std::ptrdiff_t>(from), at + static_cast<std::ptrdiff_t>(to) + 1) - at);
    };
    const size_t begin = least(peak - std::min(peak, kHalfRun), peak - std::min(peak, kLeastHalf));
    const size_t end = least(std::min(order.size(), peak + kLeastHalf), std::min(order.size(), peak + kHalfRun));
    if (!improve_run(problem, order, begin, end)) break;
  }
  return order;
}

}  // namespace stepc
