#include "memory/layout.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/check.h"
#include "tests/memory/training_trace.h"

namespace stepc {
namespace {

// Zero-byte intervals, equal ones and shared ticks come up often.
rc::Gen<LayoutProblem> problems() {
  const auto interval =
      rc::gen::map(rc::gen::tuple(rc::gen::inRange<uint64_t>(0, 300), rc::gen::inRange(0, 40), rc::gen::inRange(1, 20)),
                   [](const std::tuple<uint64_t, int, int>& values) {
                     const auto& [bytes, first, ticks] = values;
                     return Interval{bytes, first, first + ticks};
                   });
  const auto alignment = rc::gen::element<uint64_t>(1, 16, 64, 4096);
  return rc::gen::map(rc::gen::pair(rc::gen::container<std::vector<Interval>>(interval), alignment),
                      [](const std::pair<std::vector<Interval>, uint64_t>& values) {
                        return LayoutProblem{values.first, values.second};
                      });
}

// The smallest arena of all. Some order reaches it with lowest-gap placement: that of an optimal layout's offsets.
uint64_t optimum(const LayoutProblem& problem) {
  const std::vector<Interval>& intervals = problem.intervals;
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  uint64_t best = UINT64_MAX;
  do {
    std::vector<uint64_t> offsets(intervals.size());
    uint64_t bytes = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const Interval& interval = intervals[order[k]];
      const auto is_free = [&](uint64_t offset) {
        return std::all_of(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), [&](size_t other) {
          const Interval& placed = intervals[other];
          return placed.last <= interval.first || interval.last <= placed.first ||
                 offsets[other] + placed.bytes <= offset || offset + interval.bytes <= offsets[other];
        });
      };
      while (!is_free(offsets[order[k]])) ++offsets[order[k]];
      bytes = std::max(bytes, offsets[order[k]] + interval.bytes);
    }
    best = std::min(best, bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

void expect_tight(const LayoutProblem& problem, double at_most) {
  const Layout layout = plan_layout(problem);
  verify_layout(problem, layout);
  const auto bound = static_cast<double>(lower_bound(problem));
  EXPECT_LE(static_cast<double>(layout.bytes), at_most * bound) << layout.algorithm;
  EXPECT_GE(layout.bytes, lower_bound(problem));
}

TEST(Layout, WorkedExample) {
  const LayoutProblem problem{{{10, 0, 4}, {10, 2, 6}, {20, 1, 5}, {30, 5, 7}}, 1};
  EXPECT_EQ(lower_bound(problem), 40U);
  const Layout layout = plan_layout(problem);
  EXPECT_EQ(layout.offsets, (std::vector<uint64_t>{20, 30, 0, 0}));
  EXPECT_EQ(layout.bytes, 40U);
  EXPECT_EQ(layout.algorithm, "greedy by size");
}

TEST(Layout, NothingToPlace) {
  EXPECT_EQ(plan_layout({}).bytes, 0U);
  EXPECT_EQ(lower_bound({}), 0U);
  const LayoutProblem problem{{{0, 0, 5}, {0, 2, 3}}};
  const Layout layout = plan_layout(problem);
  verify_layout(problem, layout);
  EXPECT_EQ(layout.bytes, 0U);
  EXPECT_EQ(layout.offsets, (std::vector<uint64_t>{0, 0}));
}

TEST(Layout, SizesAreRoundedUpToTheAlignment) {
  const LayoutProblem problem{{{1, 0, 2}, {65, 1, 3}}};
  EXPECT_EQ(lower_bound(problem), 192U);
  EXPECT_EQ(plan_layout(problem).bytes, 192U);
}

TEST(Layout, AllLiveTogetherNeedTheirSum) {
  LayoutProblem problem;
  for (uint64_t i = 0; i < 300; ++i) problem.intervals.push_back({64 * (i + 1), 0, 10});
  EXPECT_EQ(plan_layout(problem).bytes, 64U * 300 * 301 / 2);
  expect_tight(problem, 1.0);
}

TEST(Layout, NoneLiveTogetherShareTheSamePlace) {
  LayoutProblem problem;
  for (int64_t i = 0; i < 300; ++i) problem.intervals.push_back({128, i, i + 1});
  const Layout layout = plan_layout(problem);
  EXPECT_EQ(layout.bytes, 128U);
  EXPECT_EQ(layout.offsets, std::vector<uint64_t>(300, 0));
}

TEST(Layout, TrainingStepsAreWithinThreePercentOfTheLiveBytes) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    SCOPED_TRACE(seed);
    expect_tight(TrainingTrace(4, 20, seed).problem(), 1.03);
    expect_tight(TrainingTrace(24, 12, seed).problem(), 1.03);
  }
  const std::string traces = STEPC_SOURCE_DIR "/tests/memory/traces/";
  expect_tight(read_trace(traces + "llama_f32.txt"), 1.0);
  expect_tight(read_trace(traces + "gpt2_checkpointed.txt"), 1.0);
}

TEST(Layout, ImprovementHelpsWhereNoGreedyOrderIsTight) {
  const LayoutProblem problem = random_problem(1000, 200, 2);
  uint64_t greedy = UINT64_MAX;
  for (const std::string_view name : layout_algorithms()) greedy = std::min(greedy, layout_with(name, problem).bytes);
  EXPECT_GT(static_cast<double>(greedy), 1.05 * static_cast<double>(lower_bound(problem)));
  expect_tight(problem, 1.03);
}

TEST(Layout, TenThousandIntervals) {
  for (const auto& [name, problem] : {std::pair{"training step", TrainingTrace(100, 26, 1).problem()},
                                      std::pair{"random lifetimes", random_problem(10'000, 1000, 3)}}) {
    const auto start = std::chrono::steady_clock::now();
    const Layout layout = plan_layout(problem);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    verify_layout(problem, layout);
    std::printf("%s: %zu intervals in %.3f s, %.4f of the lower bound\n", name, problem.intervals.size(),
                seconds.count(), static_cast<double>(layout.bytes) / static_cast<double>(lower_bound(problem)));
  }
}

TEST(Layout, TinyProblemsAreSolvedNearlyOptimally) {
  std::mt19937_64 random(7);
  int optimal = 0;
  const int count = 200;
  for (int i = 0; i < count; ++i) {
    LayoutProblem problem{{}, 1};
    for (int k = 0; k < 6; ++k) {
      const auto first = static_cast<int64_t>(random() % 8);
      problem.intervals.push_back({1 + random() % 9, first, first + 1 + static_cast<int64_t>(random() % 5)});
    }
    const Layout layout = plan_layout(problem);
    verify_layout(problem, layout);
    const uint64_t best = optimum(problem);
    ASSERT_GE(layout.bytes, best);
    ASSERT_GE(best, lower_bound(problem));
    optimal += layout.bytes == best;
  }
  EXPECT_GE(optimal, count * 98 / 100);
  std::printf("%d of %d tiny problems are solved optimally\n", optimal, count);
}

RC_GTEST_PROP(LayoutProperty, EveryAlgorithmGivesAValidLayout, ()) {
  const LayoutProblem problem = *problems();
  for (const std::string_view name : layout_algorithms()) {
    const Layout layout = layout_with(name, problem);
    verify_layout(problem, layout);
    RC_ASSERT(layout.bytes >= lower_bound(problem));
    RC_ASSERT(layout.algorithm == name);
  }
}

RC_GTEST_PROP(LayoutProperty, ThePlanIsValidBestOfAllAndDeterministic, ()) {
  const LayoutProblem problem = *problems();
  const Layout layout = plan_layout(problem);
  verify_layout(problem, layout);
  for (const std::string_view name : layout_algorithms()) {
    RC_ASSERT(layout.bytes <= layout_with(name, problem).bytes);
  }
  RC_ASSERT(plan_layout(problem).offsets == layout.offsets);
}

RC_GTEST_PROP(LayoutProperty, TheLowerBoundIsTheFullestTick, ()) {
  const LayoutProblem problem = *problems();
  uint64_t fullest = 0;
  for (int64_t tick = 0; tick < 60; ++tick) {
    uint64_t live = 0;
    for (const auto& [bytes, first, last] : problem.intervals) {
      if (first <= tick && tick < last) live += (bytes + problem.alignment - 1) / problem.alignment * problem.alignment;
    }
    fullest = std::max(fullest, live);
  }
  RC_ASSERT(lower_bound(problem) == fullest);
}

RC_GTEST_PROP(LayoutProperty, OnlyTheOrderOfTimesMatters, ()) {
  const LayoutProblem problem = *problems();
  LayoutProblem stretched = problem;
  for (Interval& interval : stretched.intervals) {
    interval.first = interval.first * 1'000'000'007 - INT64_MAX / 2;
    interval.last = interval.last * 1'000'000'007 - INT64_MAX / 2;
  }
  RC_ASSERT(plan_layout(stretched).bytes == plan_layout(problem).bytes);
}

TEST(LayoutErrors, SizesThatDoNotFitAnyMemory) {
  EXPECT_THROW(plan_layout({{{UINT64_MAX, 0, 1}}}), UserError);
  EXPECT_THROW(plan_layout({{{UINT64_MAX - 10, 0, 1}, {100, 2, 3}}}), UserError);
  EXPECT_THROW(lower_bound({{{uint64_t{1} << 63, 0, 1}, {1, 0, 1}}}), UserError);
  EXPECT_THROW(plan_layout({{{(uint64_t{1} << 63) - 1, 0, 1}, {1, 0, 1}}}), UserError);
  const LayoutProblem largest{{{(uint64_t{1} << 63) - 64, 0, 1}, {64, 0, 1}}};
  EXPECT_EQ(plan_layout(largest).bytes, uint64_t{1} << 63);
  verify_layout(largest, plan_layout(largest));
}

TEST(LayoutErrors, BrokenProblems) {
  EXPECT_THROW(plan_layout({{{8, 3, 3}}}), InternalError);
  EXPECT_THROW(plan_layout({{{8, 3, 2}}}), InternalError);
  EXPECT_THROW(plan_layout({{{8, 0, 1}}, 0}), InternalError);
  EXPECT_THROW(plan_layout({{{8, 0, 1}}, 48}), InternalError);
  EXPECT_THROW(layout_with("magic", {}), InternalError);
}

TEST(VerifyLayout, SeesEveryKindOfMistake) {
  const LayoutProblem problem{{{64, 0, 2}, {64, 1, 3}, {64, 2, 4}}};
  verify_layout(problem, {{0, 64, 0}, 128, "by hand"});
  EXPECT_THROW(verify_layout(problem, {{0, 0, 64}, 128, ""}), InternalError);   // same place
  EXPECT_THROW(verify_layout(problem, {{0, 64, 64}, 128, ""}), InternalError);  // second and third
  EXPECT_THROW(verify_layout(problem, {{0, 64, 32}, 128, ""}), InternalError);  // misaligned
  EXPECT_THROW(verify_layout(problem, {{0, 128, 0}, 128, ""}), InternalError);  // outside
  EXPECT_THROW(verify_layout(problem, {{0, 64, 0}, 100, ""}), InternalError);   // arena too small
  EXPECT_THROW(verify_layout(problem, {{0, 64}, 128, ""}), InternalError);      // one is missing
  const LayoutProblem nested{{{256, 0, 9}, {64, 1, 2}, {64, 3, 4}}};
  EXPECT_THROW(verify_layout(nested, {{0, 256, 128}, 320, ""}), InternalError);  // inside another
}

}  // namespace
}  // namespace stepc
