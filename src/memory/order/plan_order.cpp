#include "memory/order/plan_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "memory/order/branches.h"
#include "memory/order/cut_bound.h"
#include "memory/order/improve_runs.h"
#include "memory/order/list_order.h"
#include "memory/order/order_bound.h"
#include "memory/order/target_order.h"

namespace stepc {
namespace {

class Search {
 public:
  explicit Search(const OrderProblem& problem) : problem_(problem), branches_(find_branches(problem)) {
    const UnitOrder program = program_order(problem);
    const UnitOrder least = least_increase_order(problem);
    best_ = {program, peak_bytes(problem, program), 0};
    offer(least);
    // Each proof says whether the search after it can find anything; the cheap one first.
    raise_bound();
    if (may_gain()) best_.bound_bytes = std::max(best_.bound_bytes, order_bound(problem, branches_));
    for (const UnitOrder* base : {&program, &least})
      if (may_gain()) lower_targets(*base);
    raise_bound();
    if (may_gain()) offer(improve_runs(problem, best_.order, good_enough()));
    raise_bound();
  }

  PlannedOrder take() { return std::move(best_); }

 private:
  // The lowest peak worth a search.
  [[nodiscard]] uint64_t good_enough() const { return best_.bound_bytes + best_.bound_bytes / kOrderFineness; }
  [[nodiscard]] bool may_gain() const { return best_.peak_bytes > good_enough(); }
  // Returns its peak.
  uint64_t offer(UnitOrder order) {
    const uint64_t peak = peak_bytes(problem_, order);
    if (peak < best_.peak_bytes) {
      best_.order = std::move(order);
      best_.peak_bytes = peak;
    }
    return peak;
  }
  // By what must be live at the best order's peak.
  void raise_bound() {
    const uint32_t unit = peak_of(problem_, best_.order).unit;
    if (!may_gain() || unit == kNone || unit == bounded_by_) return;
    best_.bound_bytes = std::max(best_.bound_bytes, cut_bound(problem_, unit));
    bounded_by_ = unit;
  }
  // The lowest target that `base` can be bent to, by halving.
  void lower_targets(const UnitOrder& base) {
    uint64_t low = good_enough();
    uint64_t high = best_.peak_bytes;
    for (uint64_t target = low; low + high / kOrderFineness < high; target = low + (high - low) / 2) {
      std::optional<UnitOrder> order = target_order(problem_, branches_, base, target);
      if (order)
        high = offer(std::move(*order));
      else
        low = target + 1;
    }
  }

  const OrderProblem& problem_;
  const Branches branches_;
  PlannedOrder best_;
  uint32_t bounded_by_ = kNone;  // the unit whose cut was last
};

}  // namespace

PlannedOrder plan_order(const OrderProblem& problem) { return Search(problem).take(); }

UnitOrder order_within(const OrderProblem& problem, uint64_t bytes) {
  UnitOrder program = program_order(problem);
  if (peak_bytes(problem, program) <= bytes) return program;
  UnitOrder least = least_increase_order(problem);
  if (peak_bytes(problem, least) <= bytes) return least;
  const Branches branches = find_branches(problem);
  for (const UnitOrder* base : {&program, &least})
    if (std::optional<UnitOrder> order = target_order(problem, branches, *base, bytes)) return std::move(*order);
  return peak_bytes(problem, program) <= peak_bytes(problem, least) ? program : least;
}

}  // namespace stepc
