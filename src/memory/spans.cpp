#include "memory/spans.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"

namespace stepc::memory {
namespace {

constexpr uint64_t kLargestTotal = uint64_t{1} << 63;

// The order by descending key(span).
template <class Key>
Order descending(const std::vector<Span>& spans, const Key& key) {
  std::vector<decltype(key(spans[0]))> keys;
  keys.reserve(spans.size());
  for (const Span& span : spans) keys.push_back(key(span));
  Order order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    if (spans[a].bytes != spans[b].bytes) return spans[a].bytes > spans[b].bytes;
    if (spans[a].first != spans[b].first) return spans[a].first < spans[b].first;
    return a < b;
  });
  return order;
}

// The largest value of any range in O(1), after O(n log n): row k holds the maxima of all ranges of 2^k values.
class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<uint64_t> values) {
    rows_.push_back(std::move(values));
    for (size_t width = 1; 2 * width <= rows_[0].size(); width *= 2) {
      const std::vector<uint64_t>& half = rows_.back();
      std::vector<uint64_t> row(rows_[0].size() - 2 * width + 1);
      for (size_t i = 0; i < row.size(); ++i) row[i] = std::max(half[i], half[i + width]);
      rows_.push_back(std::move(row));
    }
  }
  [[nodiscard]] uint64_t over(size_t first, size_t last) const {
    const size_t k = std::bit_width(last - first) - 1;
    return std::max(rows_[k][first], rows_[k][last - (size_t{1} << k)]);
  }

 private:
  std::vector<std::vector<uint64_t>> rows_;
};

}  // namespace

std::vector<Span> make_spans(const LayoutProblem& problem) {
  const std::vector<Interval>& intervals = problem.intervals;
  const uint64_t mask = problem.alignment - 1;
  INTERNAL_CHECK(std::has_single_bit(problem.alignment), "alignment {} is not a power of two", problem.alignment);
  INTERNAL_CHECK_LT(intervals.size(), uint64_t{1} << 30);

  std::vector<int64_t> times;
  times.reserve(2 * intervals.size());
  uint64_t total = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const auto& [bytes, first, last] = intervals[i];
    INTERNAL_CHECK_LT(first, last, "interval {} is never live", i);
    if (bytes == 0) continue;
    USER_CHECK(bytes <= kLargestTotal - mask && ((bytes + mask) & ~mask) <= kLargestTotal - total,
               "tensor {} of {} asks for {} bytes: together more than 8 EiB, no memory holds this step", i + 1,
               intervals.size(), bytes);
    total += (bytes + mask) & ~mask;
    times.push_back(first);
    times.push_back(last);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());

  const auto renumber = [&](int64_t time) {
    return static_cast<int32_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  std::vector<Span> spans;
  spans.reserve(times.size() / 2);
  for (uint32_t i = 0; i < intervals.size(); ++i) {
    const auto& [bytes, first, last] = intervals[i];
    if (bytes > 0) spans.push_back({(bytes + mask) & ~mask, renumber(first), renumber(last), i});
  }
  return spans;
}

Order by_size(const std::vector<Span>& spans) {
  return descending(spans, [](const Span& span) { return span.bytes; });
}

Order by_area(const std::vector<Span>& spans) {
  return descending(spans, [](const Span& span) { return static_cast<double>(span.bytes) * (span.last - span.first); });
}

Order by_duration(const std::vector<Span>& spans) {
  return descending(spans, [](const Span& span) { return span.last - span.first; });
}

Order by_time(const std::vector<Span>& spans) {
  return descending(spans, [](const Span& span) { return -span.first; });
}

Order by_breadth(const std::vector<Span>& spans) {
  int32_t ticks = 0;
  for (const Span& span : spans) ticks = std::max(ticks, span.last);
  std::vector<uint64_t> live(ticks + 1);  // first as differences modulo 2^64, then as sums
  for (const Span& span : spans) {
    live[span.first] += span.bytes;
    live[span.last] -= span.bytes;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  const RangeMaximum fullest(std::move(live));
  return descending(spans, [&](const Span& span) { return fullest.over(span.first, span.last); });
}

}  // namespace stepc::memory
