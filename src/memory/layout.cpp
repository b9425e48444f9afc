#include "memory/layout.h"

#include <algorithm>
#include <array>
#include <compare>
#include <iterator>
#include <map>
#include <tuple>

#include "base/check.h"
#include "memory/placement.h"
#include "memory/spans.h"

namespace stepc {
namespace {

using memory::Fit;
using memory::Order;
using memory::Placement;
using memory::Span;

struct Algorithm {
  std::string_view name;
  Order (*order)(const std::vector<Span>&);
  Fit fit;
};

// Training steps allocate like a stack, with workspaces on top: by_size and by_breadth nearly always reach the lower
// bound there. The others are for what does not look like that.
constexpr std::array kAlgorithms = {
    Algorithm{"greedy by size", &memory::by_size, Fit::kTightest},
    Algorithm{"greedy by breadth", &memory::by_breadth, Fit::kLowest},
    Algorithm{"greedy by area", &memory::by_area, Fit::kLowest},
    Algorithm{"greedy by duration", &memory::by_duration, Fit::kTightest},
    Algorithm{"best fit in time order", &memory::by_time, Fit::kTightest},
};
constexpr std::string_view kImproved = "improved order";

// The work of one improvement, in spans looked at: about 0.15 s at most, less for small problems.
constexpr uint64_t kLargestWork = 150'000'000;
constexpr uint64_t kWorkPerSpan = 100'000;

struct Attempt {
  std::vector<uint64_t> offsets;  // one a span
  uint64_t bytes = 0;
  uint64_t work = 0;
  size_t stopped_at = 0;  // position in the order of the first span that did not end below the limit; size if none
};

// Places the spans in the given order until one does not end below `limit`.
Attempt place_below(uint64_t limit, const std::vector<Span>& spans, const Order& order, Fit fit) {
  Placement placement;
  Attempt attempt{std::vector<uint64_t>(spans.size()), 0, 0, spans.size()};
  for (size_t position = 0; position < order.size(); ++position) {
    const Span& span = spans[order[position]];
    attempt.offsets[order[position]] = placement.place(span, fit);
    if (placement.bytes() >= limit) {
      attempt.stopped_at = position;
      break;
    }
  }
  attempt.bytes = placement.bytes();
  attempt.work = placement.work() + spans.size();
  return attempt;
}

Attempt place_all(const std::vector<Span>& spans, const Algorithm& algorithm, uint64_t limit = UINT64_MAX) {
  return place_below(limit, spans, algorithm.order(spans), algorithm.fit);
}

Layout to_layout(const LayoutProblem& problem, const std::vector<Span>& spans, const Attempt& attempt,
                 std::string_view algorithm) {
  Layout layout{std::vector<uint64_t>(problem.intervals.size()), attempt.bytes, algorithm};
  for (size_t i = 0; i < spans.size(); ++i) layout.offsets[spans[i].source] = attempt.offsets[i];
  return layout;
}

// Looks for a layout below best.bytes: the first span that does not fit below it is placed first in the next attempt,
// so the spans that are hard to place gather at the front. True when it found one, which is then in `best`.
bool improve(const std::vector<Span>& spans, Order order, uint64_t bound, uint64_t work, Attempt& best) {
  bool improved = false;
  for (uint64_t done = 0; done < work && best.bytes > bound;) {
    Attempt attempt = place_below(best.bytes, spans, order, Fit::kLowest);
    done += attempt.work;
    if (attempt.stopped_at == spans.size()) {
      best = std::move(attempt);
      improved = true;
    } else {
      const auto culprit = order.begin() + static_cast<std::ptrdiff_t>(attempt.stopped_at);
      std::rotate(order.begin(), culprit, culprit + 1);
    }
  }
  return improved;
}

}  // namespace

uint64_t lower_bound(const LayoutProblem& problem) {
  struct Change {
    int64_t time;
    bool begins;  // what ends at a tick goes before what begins there
    uint64_t bytes;
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Change> changes;
  for (const Span& span : memory::make_spans(problem)) {
    changes.push_back({span.first, true, span.bytes});
    changes.push_back({span.last, false, span.bytes});
  }
  std::ranges::sort(changes);
  uint64_t live = 0;
  uint64_t peak = 0;
  for (const Change& change : changes) {
    live = change.begins ? live + change.bytes : live - change.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

Layout plan_layout(const LayoutProblem& problem) {
  const std::vector<Span> spans = memory::make_spans(problem);
  const uint64_t bound = lower_bound(problem);

  Attempt best{{}, UINT64_MAX, 0, 0};
  std::string_view algorithm;
  for (const Algorithm& candidate : kAlgorithms) {
    if (best.bytes == bound) break;
    Attempt attempt = place_all(spans, candidate, best.bytes);
    if (attempt.bytes < best.bytes) {
      best = std::move(attempt);
      algorithm = candidate.name;
    }
  }
  const uint64_t work = std::min(kLargestWork, kWorkPerSpan * spans.size()) / kAlgorithms.size();
  for (const Algorithm& start : kAlgorithms) {
    if (best.bytes == bound) break;
    if (improve(spans, start.order(spans), bound, work, best)) algorithm = kImproved;
  }
  return to_layout(problem, spans, best, algorithm);
}

std::vector<std::string_view> layout_algorithms() {
  std::vector<std::string_view> names;
  names.reserve(kAlgorithms.size());
  for (const Algorithm& algorithm : kAlgorithms) names.push_back(algorithm.name);
  return names;
}

Layout layout_with(std::string_view name, const LayoutProblem& problem) {
  const auto* const algorithm = std::find_if(kAlgorithms.begin(), kAlgorithms.end(),
                                             [&](const Algorithm& candidate) { return candidate.name == name; });
  INTERNAL_CHECK(algorithm != kAlgorithms.end(), "no layout algorithm is called '{}'", name);
  const std::vector<Span> spans = memory::make_spans(problem);
  return to_layout(problem, spans, place_all(spans, *algorithm), algorithm->name);
}

void verify_layout(const LayoutProblem& problem, const Layout& layout) {
  INTERNAL_CHECK_EQ(layout.offsets.size(), problem.intervals.size());
  struct Change {
    int64_t time;
    bool begins;  // false sorts first: what ends at a tick makes room for what begins there
    uint32_t interval;
  };
  std::vector<Change> changes;
  for (uint32_t i = 0; i < problem.intervals.size(); ++i) {
    const auto& [bytes, first, last] = problem.intervals[i];
    INTERNAL_CHECK_LT(first, last, "interval {} is never live", i);
    INTERNAL_CHECK_EQ(layout.offsets[i] % problem.alignment, 0U, "interval {} at {}", i, layout.offsets[i]);
    INTERNAL_CHECK(layout.offsets[i] <= layout.bytes && bytes <= layout.bytes - layout.offsets[i],
                   "interval {} of {} bytes at {} leaves the arena of {} bytes", i, bytes, layout.offsets[i],
                   layout.bytes);
    if (bytes == 0) continue;
    changes.push_back({first, true, i});
    changes.push_back({last, false, i});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return std::tie(a.time, a.begins) < std::tie(b.time, b.begins); });

  std::map<uint64_t, uint32_t> live;  // offset -> interval; disjoint, so only the neighbours can overlap a new one
  const auto check_disjoint = [&](uint32_t lower, uint32_t upper) {
    INTERNAL_CHECK(problem.intervals[lower].bytes <= layout.offsets[upper] - layout.offsets[lower],
                   "intervals {} ({} bytes at {}) and {} ({} bytes at {}) are live together and overlap", lower,
                   problem.intervals[lower].bytes, layout.offsets[lower], upper, problem.intervals[upper].bytes,
                   layout.offsets[upper]);
  };
  for (const Change& change : changes) {
    const uint64_t offset = layout.offsets[change.interval];
    if (!change.begins) {
      live.erase(offset);
      continue;
    }
    const auto above = live.lower_bound(offset);
    if (above != live.end()) check_disjoint(change.interval, above->second);
    if (above != live.begin()) check_disjoint(std::prev(above)->second, change.interval);
    live.emplace(offset, change.interval);
  }
}

}  // namespace stepc
