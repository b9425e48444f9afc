#include "memory/order/beam_order.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace stepc {
namespace {

// A set of units that have run, and the best way to have run them.
struct State {
  uint64_t done = 0;
  int64_t peak = 0;
  int64_t live = 0;
  uint32_t parent = 0;  // in the layer before
  uint32_t unit = 0;    // which ran last
};

constexpr uint64_t bit(uint32_t unit) { return uint64_t{1} << unit; }

class Beam {
 public:
  Beam(const OrderProblem& problem, size_t width, int64_t limit) : problem_(problem), width_(width), limit_(limit) {
    for (const OrderValue& value : problem.values) {
      uint64_t users = 0;
      for (uint32_t user : value.users) users |= bit(user);
      users_.push_back(users);
      if (value.producer == kNone) first_live_ += static_cast<int64_t>(value.bytes);
    }
    for (const std::vector<uint32_t>& before : predecessors(problem)) {
      uint64_t needed = 0;
      for (uint32_t unit : before) needed |= bit(unit);
      needs_.push_back(needed);
    }
  }

  BeamOrder run() {
    std::vector<std::vector<State>> layers = {{State{0, first_live_, first_live_, 0, 0}}};
    bool exact = true;
    for (size_t step = 0; step < problem_.units.size(); ++step) {
      std::vector<State> next;
      for (uint32_t s = 0; s < layers.back().size(); ++s) expand(layers.back()[s], s, next);
      std::ranges::sort(next, {}, [](const State& state) { return std::tuple(state.done, state.peak, state.parent); });
      next.erase(std::unique(next.begin(), next.end(),
                             [](const State& one, const State& other) { return one.done == other.done; }),
                 next.end());
      if (next.size() > width_) {
        exact = false;
        std::ranges::sort(next, {}, [](const State& state) { return std::tuple(state.peak, state.live, state.done); });
        next.resize(width_);
      }
      if (next.empty()) return {{}, 0, exact};
      layers.push_back(std::move(next));
    }
    const State& last = layers.back()[0];
    BeamOrder out{UnitOrder(problem_.units.size()), static_cast<uint64_t>(last.peak), exact};
    for (size_t layer = layers.size() - 1, s = 0; layer > 0; --layer) {
      out.order[layer - 1] = layers[layer][s].unit;
      s = layers[layer][s].parent;
    }
    return out;
  }

 private:
  [[nodiscard]] bool dies(uint32_t value, uint32_t unit, uint64_t done) const {
    return !problem_.values[value].kept && (users_[value] & ~done) == bit(unit);
  }

  State after(const State& state, uint32_t unit) {
    const OrderUnit& one = problem_.units[unit];
    auto rise = static_cast<int64_t>(one.workspace_bytes);
    int64_t net = 0;
    for (uint32_t value : one.makes) {
      const OrderValue& made = problem_.values[value];
      rise += static_cast<int64_t>(made.bytes);
      if (made.kept || users_[value] != 0) net += static_cast<int64_t>(made.bytes);
    }
    for (uint32_t value : one.reads)
      if (dies(value, unit, state.done)) net -= static_cast<int64_t>(problem_.values[value].bytes);
    taken_.clear();
    for (const Reuse& reuse : one.reuses) {
      if (!dies(reuse.operand, unit, state.done)) continue;
      const bool used = std::ranges::any_of(
          taken_, [&](const Reuse& other) { return other.operand == reuse.operand || other.result == reuse.result; });
      if (used) continue;
      taken_.push_back(reuse);
      rise -= static_cast<int64_t>(problem_.values[reuse.result].bytes);
    }
    return {state.done | bit(unit), std::max(state.peak, state.live + rise), state.live + net, 0, unit};
  }

  void expand(const State& state, uint32_t index, std::vector<State>& next) {
    const size_t first = next.size();
    for (uint32_t unit = 0; unit < problem_.units.size(); ++unit) {
      if ((state.done & bit(unit)) != 0 || (needs_[unit] & ~state.done) != 0) continue;
      State now = after(state, unit);
      now.parent = index;
      if (now.peak >= limit_) continue;
      // What frees memory and raises no peak can only help everything after it.
      if (now.live <= state.live && now.peak == state.peak) {
        next.resize(first);
        next.push_back(now);
        return;
      }
      next.push_back(now);
    }
  }

  const OrderProblem& problem_;
  size_t width_;
  int64_t limit_;
  int64_t first_live_ = 0;
  std::vector<uint64_t> users_;  // by value
  std::vector<uint64_t> needs_;  // by unit
  std::vector<Reuse> taken_;
};

constexpr uint64_t kLargestLimit = uint64_t{1} << 62;

// Numbers the units of a part, and the values that they make.
class Part {
 public:
  // `others_wait`: the units outside that read what these make all come later.
  Part(const OrderProblem& whole, const std::vector<uint32_t>& units, bool others_wait)
      : whole_(whole), units_(units), others_wait_(others_wait) {
    part_.units.resize(units.size());
    for (uint32_t u = 0; u < units.size(); ++u) {
      for (uint32_t value : whole.units[units[u]].makes) add_value(value, u);
      part_.units[u].workspace_bytes = whole.units[units[u]].workspace_bytes;
      for (uint32_t before : whole.units[units[u]].after)
        if (const uint32_t inner = local(before); inner != kNone) part_.units[u].after.push_back(inner);
    }
  }

  [[nodiscard]] uint32_t local(uint32_t unit) const {
    const auto found = std::ranges::lower_bound(units_, unit);
    return found != units_.end() && *found == unit ? static_cast<uint32_t>(found - units_.begin()) : kNone;
  }
  [[nodiscard]] uint32_t local_value(uint32_t value) const {
    const auto found = std::ranges::find(values_, value);
    return found != values_.end() ? static_cast<uint32_t>(found - values_.begin()) : kNone;
  }
  std::vector<uint32_t> local_users(uint32_t value) const {
    std::vector<uint32_t> users;
    for (uint32_t user : whole_.values[value].users)
      if (const uint32_t inner = local(user); inner != kNone) users.push_back(inner);
    return users;
  }
  uint32_t add_value(uint32_t value, uint32_t producer) {
    const OrderValue& old = whole_.values[value];
    const auto id = static_cast<uint32_t>(values_.size());
    values_.push_back(value);
    std::vector<uint32_t> users = local_users(value);
    const bool kept = old.kept || (others_wait_ && users.size() != old.users.size());
    for (uint32_t user : users) part_.units[user].reads.push_back(id);
    if (producer != kNone) part_.units[producer].makes.push_back(id);
    part_.values.push_back({old.bytes, producer, kept, std::move(users)});
    return id;
  }
  // Values that the units read and others make.
  std::vector<uint32_t> values_from_outside() const {
    std::vector<uint32_t> out;
    for (uint32_t unit : units_)
      for (uint32_t value : whole_.units[unit].reads)
        if (local_value(value) == kNone) out.push_back(value);
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  void add_reuses() {
    for (uint32_t u = 0; u < units_.size(); ++u) {
      for (const auto& [operand, result] : whole_.units[units_[u]].reuses) {
        const Reuse reuse{local_value(operand), local_value(result)};
        if (reuse.operand != kNone && part_.values[reuse.operand].bytes == part_.values[reuse.result].bytes)
          part_.units[u].reuses.push_back(reuse);
      }
    }
  }
  OrderProblem& problem() { return part_; }

 private:
  const OrderProblem& whole_;
  const std::vector<uint32_t>& units_;
  bool others_wait_;
  OrderProblem part_;
  std::vector<uint32_t> values_;  // by value of the part: the whole's
};

}  // namespace

BeamOrder beam_order(const OrderProblem& problem, size_t width, uint64_t limit) {
  INTERNAL_CHECK_LE(problem.units.size(), kMostBeamUnits);
  return Beam(problem, width, static_cast<int64_t>(std::min(limit, kLargestLimit))).run();
}

OrderProblem run_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units,
                          const std::vector<uint32_t>& users_left) {
  Part part(problem, units, true);
  for (uint32_t value : part.values_from_outside()) {
    if (problem.values[value].kept || part.local_users(value).size() != users_left[value]) continue;
    part.problem().values[part.add_value(value, kNone)].kept = false;
  }
  part.add_reuses();
  return std::move(part.problem());
}

OrderProblem bound_of_units(const OrderProblem& problem, const std::vector<uint32_t>& units) {
  Part part(problem, units, false);
  for (uint32_t unit : units)  // what may lie in memory that is not counted is not counted either
    for (const auto& [operand, result] : problem.units[unit].reuses)
      if (part.local_value(operand) == kNone) part.problem().values[part.local_value(result)].bytes = 0;
  part.add_reuses();
  return std::move(part.problem());
}

}  // namespace stepc
