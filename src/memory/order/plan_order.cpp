#include "memory/order/plan_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "memory/order/branches.h"
#include "memory/order/cut_bound.h"
#include "memory/order/improve_runs.h"
#include "memory/order/list_order.h"
#include "memory/order/live_bytes.h"
#include "memory/order/order_bound.h"
#include "memory/order/target_order.h"

namespace stepc {
namespace {

constexpr uint64_t kFineness = 4'000;  // targets are tried until they differ by less than this part
constexpr size_t kMostLayouts = 6;

struct Candidate {
  UnitOrder order;
  std::string_view algorithm;
  uint64_t peak_bytes = 0;
};

uint32_t peak_unit(const OrderProblem& problem, const UnitOrder& order) {
  LiveBytes bytes(problem);
  int64_t peak = -1;
  uint32_t at = kNone;
  for (uint32_t unit : order) {
    const int64_t live = bytes.live();
    const int64_t now = live + bytes.run(unit).rise;
    if (now > peak) at = unit;
    peak = std::max(peak, now);
  }
  return at;
}

class Search {
 public:
  explicit Search(const OrderProblem& problem) : problem_(problem), branches_(find_branches(problem)) {
    const UnitOrder program = program_order(problem);
    const UnitOrder least = least_increase_order(problem);
    offer(program, "program order");
    offer(least, "least increase");
    // Each proof says whether the search after it can find anything; the cheap one first.
    raise_bound();
    if (best().peak_bytes > bound_) bound_ = std::max(bound_, order_bound(problem, branches_));
    for (const UnitOrder* base : {&program, &least})
      if (best().peak_bytes > bound_) lower_targets(*base);
    raise_bound();
    if (best().peak_bytes > bound_) {
      UnitOrder improved = improve_runs(problem, best().order, bound_);
      if (improved != best().order) offer(std::move(improved), "improved runs");
    }
    raise_bound();
  }

  [[nodiscard]] const Candidate& best() const {
    return *std::ranges::min_element(candidates_, {}, &Candidate::peak_bytes);
  }
  [[nodiscard]] uint64_t bound() const { return bound_; }
  // By peak; of equal ones those found last, which the others led to.
  std::vector<Candidate> take() {
    std::ranges::reverse(candidates_);
    std::ranges::stable_sort(candidates_, {}, &Candidate::peak_bytes);
    return std::move(candidates_);
  }

 private:
  void offer(UnitOrder order, std::string_view algorithm) {
    const uint64_t peak = peak_bytes(problem_, order);
    candidates_.push_back({std::move(order), algorithm, peak});
  }
  // By what must be live at the best order's peak.
  void raise_bound() {
    const uint32_t unit = peak_unit(problem_, best().order);
    if (best().peak_bytes > bound_ && unit != kNone) bound_ = std::max(bound_, cut_bound(problem_, unit));
  }
  // The lowest target that `base` can be bent to, by halving.
  void lower_targets(const UnitOrder& base) {
    uint64_t low = bound_;
    uint64_t high = best().peak_bytes;
    for (uint64_t target = low; low + high / kFineness < high; target = low + (high - low) / 2) {
      std::optional<UnitOrder> order = target_order(problem_, branches_, base, target);
      if (order) {
        offer(std::move(*order), "lowest target");
        high = candidates_.back().peak_bytes;
      } else {
        low = target + 1;
      }
    }
  }

  const OrderProblem& problem_;
  const Branches branches_;
  uint64_t bound_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace

UnitOrder lowest_peak_order(const OrderProblem& problem) { return Search(problem).best().order; }

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

PlannedOrder plan_order(const OrderProblem& problem) {
  Search search(problem);
  PlannedOrder best;
  best.bound_bytes = search.bound();
  size_t layouts = 0;
  const std::vector<Candidate> candidates = search.take();
  for (const Candidate& candidate : candidates) {
    const bool baseline = candidate.algorithm == "program order" || candidate.algorithm == "least increase";
    if (layouts > 0 && (candidate.peak_bytes >= best.layout.bytes || (layouts >= kMostLayouts && !baseline))) continue;
    ++layouts;
    OrderIntervals intervals = intervals_of(problem, candidate.order);
    Layout layout = plan_layout(intervals.layout);
    if (layouts > 1 && layout.bytes >= best.layout.bytes) continue;
    best.order = candidate.order;
    best.algorithm = candidate.algorithm;
    best.peak_bytes = candidate.peak_bytes;
    best.intervals = std::move(intervals);
    best.layout = std::move(layout);
  }
  return best;
}

}  // namespace stepc
