#include "memory/order/overlap_order.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "memory/order/live_bytes.h"

namespace stepc {

namespace {

int64_t beside_at(const std::vector<uint64_t>& beside, size_t place) {
  return beside.empty() ? 0 : static_cast<int64_t>(beside[place]);
}

std::vector<int64_t> bytes_by_place(const OrderProblem& problem, const UnitOrder& order,
                                    const std::vector<uint64_t>& beside) {
  std::vector<int64_t> out;
  LiveBytes bytes(problem);
  for (size_t place = 0; place < order.size(); ++place) {
    const int64_t before = bytes.live();
    out.push_back(before + bytes.run(order[place]).rise + beside_at(beside, place));
  }
  return out;
}

// The live bytes of an order that grows, and those that the rest of the given order comes to behind it.
class EarlyBytes {
 public:
  EarlyBytes(const OrderProblem& problem, const UnitOrder& given, const OverlapLimits& limits)
      : bytes_(problem),
        given_(given),
        most_(static_cast<int64_t>(std::min<uint64_t>(limits.most_bytes, INT64_MAX))),
        beside_(limits.beside),
        to_come_(bytes_by_place(problem, given, limits.beside)),
        is_over_(given.size(), false) {}

  // The first place of the given order that is not over.
  [[nodiscard]] size_t turn() const { return turn_; }
  [[nodiscard]] int64_t to_come(size_t place) const { return is_over_[place] ? 0 : to_come_[place]; }
  // Whether the unit of a place can run now. `most_before`: the most that comes from here to there.
  [[nodiscard]] bool allows(size_t place, int64_t most_before) {
    if (place == turn_) return true;
    const LiveBytes::Step step = bytes_.look(given_[place]);
    return bytes_.live() + step.rise + beside_at(beside_, turn_) <= most_ &&
           (step.net <= 0 || most_before + step.net <= most_);
  }
  void run(size_t place) {
    const int64_t more = bytes_.run(given_[place]).net;
    is_over_[place] = true;
    for (size_t p = turn_; p < place; ++p) to_come_[p] += more;
    while (turn_ < given_.size() && is_over_[turn_]) ++turn_;
  }

 private:
  LiveBytes bytes_;
  const UnitOrder& given_;
  int64_t most_;
  const std::vector<uint64_t>& beside_;
  std::vector<int64_t> to_come_;  // by place of the given order
  std::vector<bool> is_over_;     // by place
  size_t turn_ = 0;
};

// The most that is to come before places that are asked for in ascending order.
class MostBefore {
 public:
  explicit MostBefore(const EarlyBytes& bytes) : bytes_(&bytes), next_(bytes.turn()) {}
  int64_t operator()(size_t place) {
    for (; next_ < place; ++next_) most_ = std::max(most_, bytes_->to_come(next_));
    return most_;
  }

 private:
  const EarlyBytes* bytes_;
  size_t next_;
  int64_t most_ = 0;
};

class Overlap {
 public:
  Overlap(const OrderProblem& problem, const UnitOrder& order, const std::vector<OverlapUnit>& units,
          const OverlapLimits& limits)
      : units_(units),
        limits_(limits),
        order_(order),
        place_of_(order.size()),
        due_(order.size(), 0),
        needs_(order.size()),
        needed_by_(successors(problem)),
        begun_by_(order.size(), kNone),
        bytes_(problem, order, limits) {
    double seconds = 0;  // of the computation alone, by which the given order would come to a unit
    for (size_t place = 0; place < order.size(); ++place) {
      const uint32_t unit = order[place];
      place_of_[unit] = place;
      due_[unit] = seconds;
      if (!is_exchange(unit)) seconds += units[unit].seconds;
      if (is_exchange(unit)) begun_by_[units[unit].wait] = unit;
    }
    const std::vector<std::vector<uint32_t>> before = predecessors(problem);
    for (uint32_t unit = 0; unit < order.size(); ++unit) {
      needs_[unit] = before[unit].size();
      to_come_first_ += units[unit].is_first ? 1 : 0;
      if (needs_[unit] == 0) make_ready(unit);
    }
  }

  UnitOrder run() {
    while (out_.size() < order_.size()) {
      begin_exchanges();
      if (const auto next = next_ready())
        take(*next);
      else
        wait_for_first();
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_exchange(uint32_t unit) const { return units_[unit].wait != kNone; }
  [[nodiscard]] bool is_wait(uint32_t unit) const { return begun_by_[unit] != kNone; }

  void make_ready(uint32_t unit) {
    if (is_exchange(unit))
      exchanges_.insert({place_of_[unit], unit});
    else if (!is_wait(unit))
      ready_.insert({place_of_[unit], unit});
  }
  // Decisions come first: what they do not need waits for all that they do.
  [[nodiscard]] bool may_run(uint32_t unit) const { return to_come_first_ == 0 || units_[unit].is_first; }

  // Those that are due soon, the most urgent first.
  void begin_exchanges() {
    MostBefore most_before(bytes_);
    for (auto at = exchanges_.begin(); at != exchanges_.end() && in_flight_.size() < limits_.most_in_flight;) {
      const auto [place, unit] = *at;
      const double begins = std::max(now_, link_free_);
      const double window = limits_.window * (units_[unit].seconds + begins - now_);
      if (!may_run(unit)) {
        ++at;
        continue;
      }
      if (due_[unit] - done_seconds_ > window) return;
      if (!bytes_.allows(place, most_before(place))) {
        ++at;
        continue;
      }
      at = exchanges_.erase(at);
      link_free_ = begins + units_[unit].seconds;
      in_flight_.push_back({units_[unit].wait, link_free_});
      emit(unit);
      most_before = MostBefore(bytes_);
    }
  }

  // Of what can run without waiting, the wait for what has arrived included, the first in the given order.
  std::optional<uint32_t> next_ready() {
    std::optional<uint32_t> best;
    for (const Flight& flight : in_flight_)
      if (flight.arrives <= now_ && needs_[flight.wait] == 0 && (!best || place_of_[flight.wait] < place_of_[*best]))
        best = flight.wait;
    MostBefore most_before(bytes_);
    for (const auto& [place, unit] : ready_) {
      if (best && place_of_[*best] < place) break;
      if (!may_run(unit)) continue;
      if (units_[unit].is_host && !in_flight_.empty()) continue;
      if (!bytes_.allows(place, most_before(place))) continue;
      return unit;
    }
    return best;
  }

  void take(uint32_t unit) {
    if (is_wait(unit)) {
      land(unit);
      return;
    }
    ready_.erase({place_of_[unit], unit});
    now_ += units_[unit].seconds;
    done_seconds_ += units_[unit].seconds;
    emit(unit);
  }
  void land(uint32_t wait) {
    std::erase_if(in_flight_, [&](const Flight& flight) { return flight.wait == wait; });
    emit(wait);
  }

  // Nothing runs meanwhile: an exchange that is not due for long begins, or the first that arrives ends.
  void wait_for_first() {
    if (in_flight_.empty()) {
      const auto may_begin = [&](const auto& one) { return may_run(one.second); };
      const auto next = std::ranges::find_if(exchanges_, may_begin);
      INTERNAL_CHECK(next != exchanges_.end(), "units that wait for each other");
      const uint32_t unit = next->second;
      exchanges_.erase(next);
      link_free_ = std::max(now_, link_free_) + units_[unit].seconds;
      in_flight_.push_back({units_[unit].wait, link_free_});
      emit(unit);
      return;
    }
    const auto first = std::ranges::min_element(in_flight_, {}, [](const Flight& flight) { return flight.arrives; });
    INTERNAL_CHECK_EQ(needs_[first->wait], 0U, "a wait for more than its exchange");
    now_ = std::max(now_, first->arrives);
    land(first->wait);
  }

  void emit(uint32_t unit) {
    out_.push_back(unit);
    bytes_.run(place_of_[unit]);
    if (units_[unit].is_first) --to_come_first_;
    for (uint32_t next : needed_by_[unit])
      if (--needs_[next] == 0) make_ready(next);
  }

  struct Flight {
    uint32_t wait;
    double arrives;
  };
  const std::vector<OverlapUnit>& units_;
  const OverlapLimits& limits_;
  const UnitOrder& order_;
  std::vector<size_t> place_of_;  // by unit, in the given order
  std::vector<double> due_;       // by unit: seconds of computation before it there
  std::vector<size_t> needs_;     // by unit: how many that must come before it have not
  std::vector<std::vector<uint32_t>> needed_by_;
  std::vector<uint32_t> begun_by_;                   // by unit: of a wait, its exchange
  std::set<std::pair<size_t, uint32_t>> ready_;      // what computes, by place
  std::set<std::pair<size_t, uint32_t>> exchanges_;  // that could begin, by place
  std::vector<Flight> in_flight_;
  EarlyBytes bytes_;
  double now_ = 0, link_free_ = 0, done_seconds_ = 0;  // of the computation
  size_t to_come_first_ = 0;
  UnitOrder out_;
};

}  // namespace

uint64_t peak_beside(const OrderProblem& problem, const UnitOrder& order, const std::vector<uint64_t>& beside) {
  const std::vector<int64_t> bytes = bytes_by_place(problem, order, beside);
  return bytes.empty() ? 0 : static_cast<uint64_t>(std::ranges::max(bytes));
}

UnitOrder overlap_order(const OrderProblem& problem, const UnitOrder& order, const std::vector<OverlapUnit>& units,
                        const OverlapLimits& limits) {
  INTERNAL_CHECK_EQ(units.size(), problem.units.size(), "what is known of the units");
  return Overlap(problem, order, units, limits).run();
}

}  // namespace stepc
