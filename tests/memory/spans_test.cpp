#include "memory/spans.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "memory/placement.h"
#include "tests/memory/training_trace.h"

namespace stepc::memory {
namespace {

TEST(Spans, SizesAreAlignedTimesRenumberedAndNothingLeftOut) {
  const std::vector<Span> spans = make_spans({{{1, -5, 1000}, {0, -5, 7}, {64, 7, 1000}}});
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].bytes, 64U);
  EXPECT_EQ(spans[0].first, 0);
  EXPECT_EQ(spans[0].last, 2);
  EXPECT_EQ(spans[1].first, 1);
  EXPECT_EQ(spans[1].last, 2);
  EXPECT_EQ(spans[1].source, 2U);
}

TEST(Orders, OfTheWorkedExampleOfLayout) {
  const std::vector<Span> spans = make_spans({{{10, 0, 4}, {10, 2, 6}, {20, 1, 5}, {30, 5, 7}}, 1});
  EXPECT_EQ(by_size(spans), (Order{3, 2, 0, 1}));
  EXPECT_EQ(by_area(spans), (Order{3, 2, 0, 1}));  // no interval begins or ends at tick 3: it does not count
  EXPECT_EQ(by_duration(spans), (Order{2, 0, 1, 3}));
  EXPECT_EQ(by_time(spans), (Order{0, 2, 1, 3}));
}

TEST(Orders, BreadthIsTheFullestTickOfAnIntervalsLife) {
  const std::vector<Span> spans = make_spans(random_problem(300, 40, 1));
  int32_t ticks = 0;
  for (const Span& span : spans) ticks = std::max(ticks, span.last);
  std::vector<uint64_t> live(static_cast<size_t>(ticks));
  for (const Span& span : spans) {
    for (int32_t tick = span.first; tick < span.last; ++tick) live[static_cast<size_t>(tick)] += span.bytes;
  }
  const auto breadth = [&](uint32_t i) {
    return *std::max_element(live.begin() + spans[i].first, live.begin() + spans[i].last);
  };
  const Order order = by_breadth(spans);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(breadth(a), spans[a].bytes) > std::pair(breadth(b), spans[b].bytes);
  }));
  Order sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
}

// Two gaps, of 40 bytes at 10 and of 20 bytes at 60, below 100.
Placement with_two_gaps() {
  Placement placement;
  placement.place({10, 0, 9}, Fit::kLowest);
  placement.place({40, 0, 2}, Fit::kLowest);
  placement.place({10, 0, 9}, Fit::kLowest);
  placement.place({20, 0, 2}, Fit::kLowest);
  placement.place({20, 0, 9}, Fit::kLowest);
  return placement;
}

TEST(Placement, LowestTakesTheFirstGapAndTightestTheSmallest) {
  EXPECT_EQ(with_two_gaps().place({15, 2, 3}, Fit::kLowest), 10U);
  EXPECT_EQ(with_two_gaps().place({15, 2, 3}, Fit::kTightest), 60U);
  EXPECT_EQ(with_two_gaps().place({30, 2, 3}, Fit::kTightest), 10U);
  EXPECT_EQ(with_two_gaps().place({50, 2, 3}, Fit::kTightest), 100U);
  EXPECT_EQ(with_two_gaps().place({50, 9, 10}, Fit::kTightest), 0U);
}

}  // namespace
}  // namespace stepc::memory
