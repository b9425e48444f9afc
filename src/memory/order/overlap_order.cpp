#include "memory/order/overlap_order.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"

namespace stepc {

namespace {

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
        begun_by_(order.size(), kNone) {
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
    for (auto at = exchanges_.begin(); at != exchanges_.end() && in_flight_.size() < limits_.most_in_flight;) {
      const uint32_t unit = at->second;
      const double begins = std::max(now_, link_free_);
      const double window = limits_.window * (units_[unit].seconds + begins - now_);
      if (!may_run(unit)) {
        ++at;
        continue;
      }
      if (due_[unit] - done_seconds_ > window) return;
      at = exchanges_.erase(at);
      link_free_ = begins + units_[unit].seconds;
      in_flight_.push_back({units_[unit].wait, link_free_});
      emit(unit);
    }
  }

  // Of what can run without waiting, the wait for what has arrived included, the first in the given order.
  std::optional<uint32_t> next_ready() {
    std::optional<uint32_t> best;
    for (const Flight& flight : in_flight_)
      if (flight.arrives <= now_ && needs_[flight.wait] == 0 && (!best || place_of_[flight.wait] < place_of_[*best]))
        best = flight.wait;
    for (const auto& [place, unit] : ready_) {
      if (best && place_of_[*best] < place) break;
      if (!may_run(unit)) continue;
      if (units_[unit].is_host && !in_flight_.empty()) continue;
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
  double now_ = 0, link_free_ = 0, done_seconds_ = 0;  // of the computation
  size_t to_come_first_ = 0;
  UnitOrder out_;
};

}  // namespace

UnitOrder overlap_order(const OrderProblem& problem, const UnitOrder& order, const std::vector<OverlapUnit>& units,
                        const OverlapLimits& limits) {
  INTERNAL_CHECK_EQ(units.size(), problem.units.size(), "what is known of the units");
  return Overlap(problem, order, units, limits).run();
}

}  // namespace stepc
