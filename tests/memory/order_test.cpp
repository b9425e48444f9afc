// Orders of work: live bytes on an example, every algorithm on random problems, and bounds against all orders of small
// problems.
#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include "base/check.h"
#include "memory/layout.h"
#include "memory/order/beam_order.h"
#include "memory/order/branches.h"
#include "memory/order/cut_bound.h"
#include "memory/order/improve_runs.h"
#include "memory/order/list_order.h"
#include "memory/order/live_bytes.h"
#include "memory/order/order_bound.h"
#include "memory/order/plan_order.h"
#include "memory/order/target_order.h"
#include "tests/memory/random_order_problem.h"

namespace stepc {
namespace {

using test::random_order_problem;

// The example of order_problem.h, in units of 64 bytes.
OrderProblem example(bool reuse) {
  OrderProblem problem;
  problem.values = {
      {64, 0, false, {1}}, {64, 0, false, {2}}, {64, 1, false, {3}}, {64, 2, false, {3}}, {128, 3, false, {}}};
  problem.units.resize(4);
  problem.units[0].makes = {0, 1};
  problem.units[1] = {{0}, {2}, {}, {}, 0};
  problem.units[2] = {{1}, {3}, {}, {}, 0};
  problem.units[3] = {{2, 3}, {4}, {}, {}, 0};
  if (reuse) {
    problem.units[1].reuses = {{0, 2}};
    problem.units[2].reuses = {{1, 3}};
  }
  return problem;
}

std::vector<int64_t> live_while_running(const OrderProblem& problem, const UnitOrder& order) {
  std::vector<int64_t> out;
  LiveBytes bytes(problem);
  for (uint32_t unit : order) {
    const int64_t live = bytes.live();
    out.push_back((live + bytes.run(unit).rise) / 64);
  }
  return out;
}

TEST(Order, LiveBytesOfAnExample) {
  verify(example(true));
  EXPECT_EQ(live_while_running(example(false), {0, 1, 2, 3}), (std::vector<int64_t>{2, 3, 3, 4}));
  EXPECT_EQ(live_while_running(example(true), {0, 2, 1, 3}), (std::vector<int64_t>{2, 2, 2, 4}));
  EXPECT_EQ(peak_bytes(example(true), {0, 1, 2, 3}), 256U);
}

TEST(Order, VerifyNamesTheBrokenPromise) {
  OrderProblem problem = example(false);
  EXPECT_THROW(verify_order(problem, {1, 0, 2, 3}), InternalError);
  EXPECT_THROW(verify_order(problem, {0, 1, 1, 3}), InternalError);
  EXPECT_THROW(verify_order(problem, {0, 1, 2}), InternalError);
  problem.units[1].reuses = {{0, 4}};
  EXPECT_THROW(verify(problem), InternalError);
  problem.units[1].reuses = {};
  problem.values[0].users = {1, 2};
  EXPECT_THROW(verify(problem), InternalError);
}

TEST(Order, TakingBackRestoresEverything) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const OrderProblem problem = random_order_problem(30, seed);
    LiveBytes bytes(problem);
    std::vector<int64_t> live;
    for (uint32_t unit : program_order(problem)) {
      live.push_back(bytes.live());
      bytes.run(unit);
    }
    for (uint32_t u = 30; u-- > 0;) {
      bytes.take_back(u);
      EXPECT_EQ(bytes.live(), live[u]);
    }
  }
}

// The live bytes of the order are those of its intervals.
void expect_sound(const OrderProblem& problem, const UnitOrder& order, const char* who, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << who << " seed " << seed);
  verify_order(problem, order);
  EXPECT_EQ(lower_bound(intervals_of(problem, order).layout), peak_bytes(problem, order));
}

TEST(Order, EveryAlgorithmGivesAnOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const OrderProblem problem = random_order_problem(5 + seed % 120, seed);
    verify(problem);
    expect_sound(problem, program_order(problem), "program order", seed);
    const UnitOrder least = least_increase_order(problem);
    expect_sound(problem, least, "least increase", seed);
    const Branches branches = find_branches(problem);
    for (uint64_t part = 6; part <= 10; ++part) {
      const uint64_t target = peak_bytes(problem, least) * part / 10;
      const auto order = target_order(problem, branches, program_order(problem), target);
      if (!order) continue;
      expect_sound(problem, *order, "target", seed);
      EXPECT_LE(peak_bytes(problem, *order), target);
    }
    const UnitOrder improved = improve_runs(problem, least, 0);
    expect_sound(problem, improved, "improved", seed);
    EXPECT_LE(peak_bytes(problem, improved), peak_bytes(problem, least));
  }
}

TEST(Order, PlansAreSoundAndNeverAboveTheBaselines) {
  for (uint64_t seed = 0; seed < 150; seed += 3) {
    const OrderProblem problem = random_order_problem(3 + seed, 1000 + seed);
    const PlannedOrder planned = plan_order(problem);
    expect_sound(problem, planned.order, "planned", seed);
    EXPECT_EQ(planned.peak_bytes, peak_bytes(problem, planned.order));
    EXPECT_LE(planned.bound_bytes, planned.peak_bytes);
    for (const UnitOrder& order : {program_order(problem), least_increase_order(problem)})
      EXPECT_LE(planned.peak_bytes, peak_bytes(problem, order)) << seed;
    EXPECT_EQ(plan_order(problem).order, planned.order) << "not deterministic: seed " << seed;
  }
}

TEST(Order, WhatFitsIsFoundWithoutLookingForTheLowest) {
  size_t found = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const OrderProblem problem = random_order_problem(10 + seed, 3000 + seed);
    const uint64_t lowest = plan_order(problem).peak_bytes;
    const uint64_t plain =
        std::min(peak_bytes(problem, program_order(problem)), peak_bytes(problem, least_increase_order(problem)));
    for (const uint64_t bytes : {uint64_t{0}, lowest, (lowest + plain) / 2, plain}) {
      const UnitOrder order = order_within(problem, bytes);
      expect_sound(problem, order, "within", seed);
      EXPECT_LE(peak_bytes(problem, order), std::max(bytes, plain));
      found += bytes == lowest && peak_bytes(problem, order) <= lowest ? 1 : 0;
    }
  }
  EXPECT_GT(found, 20U);
}

// The lowest peak of all orders, by trying all of them.
uint64_t lowest_peak(const OrderProblem& problem) {
  const auto before = predecessors(problem);
  LiveBytes bytes(problem);
  std::vector<bool> done(problem.units.size(), false);
  int64_t lowest = INT64_MAX;
  const std::function<void(size_t, int64_t)> go_on = [&](size_t ran, int64_t peak) {
    if (peak >= lowest) return;
    if (ran == problem.units.size()) {
      lowest = peak;
      return;
    }
    for (uint32_t u = 0; u < problem.units.size(); ++u) {
      if (done[u] || !std::ranges::all_of(before[u], [&](uint32_t earlier) { return done[earlier]; })) continue;
      const int64_t live = bytes.live();
      const int64_t rise = bytes.run(u).rise;
      done[u] = true;
      go_on(ran + 1, std::max(peak, live + rise));
      done[u] = false;
      bytes.take_back(u);
    }
  };
  go_on(0, 0);
  return static_cast<uint64_t>(lowest);
}

TEST(Order, BoundsHoldAndTheBeamIsExactOnSmallProblems) {
  size_t tight = 0;
  size_t optimal = 0;
  constexpr uint64_t kProblems = 300;
  for (uint64_t seed = 0; seed < kProblems; ++seed) {
    SCOPED_TRACE(seed);
    const OrderProblem problem = random_order_problem(2 + seed % 8, 5000 + seed);
    const uint64_t lowest = lowest_peak(problem);
    const uint64_t bound = order_bound(problem, find_branches(problem));
    EXPECT_LE(bound, lowest);
    for (uint32_t u = 0; u < problem.units.size(); ++u) EXPECT_LE(cut_bound(problem, u), lowest);
    const BeamOrder beam = beam_order(problem, 1 << 16);
    ASSERT_TRUE(beam.exact);
    EXPECT_EQ(beam.peak_bytes, lowest);
    expect_sound(problem, beam.order, "beam", seed);
    EXPECT_EQ(peak_bytes(problem, beam.order), lowest);
    const BeamOrder none = beam_order(problem, 1 << 16, lowest);
    EXPECT_TRUE(none.order.empty() && none.exact);
    const PlannedOrder planned = plan_order(problem);
    EXPECT_GE(planned.peak_bytes, lowest);
    EXPECT_LE(planned.bound_bytes, lowest);
    tight += bound == lowest ? 1 : 0;
    optimal += planned.peak_bytes == lowest ? 1 : 0;
  }
  EXPECT_GT(tight, kProblems * 8 / 10);
  EXPECT_GT(optimal, kProblems * 98 / 100);
}

TEST(Order, ASetOfUnitsBoundsTheWhole) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const OrderProblem problem = random_order_problem(8, 9000 + seed);
    const uint64_t lowest = lowest_peak(problem);
    for (uint32_t set = 1; set < 256; set += 7) {
      std::vector<uint32_t> units;
      for (uint32_t u = 0; u < 8; ++u)
        if ((set >> u & 1) != 0) units.push_back(u);
      const OrderProblem part = bound_of_units(problem, units);
      verify(part);
      EXPECT_LE(beam_order(part, 1 << 16).peak_bytes, lowest) << seed << " " << set;
    }
  }
}

// A weight's gradient and update after a long chain: the update of the first weight may run before the second gradient
// is made, and then one gradient lives at a time.
TEST(Order, UpdatesRunWhereTheyFreeGradients) {
  constexpr uint64_t kSmall = 64;
  constexpr uint64_t kGradient = 64 * 100;
  OrderProblem problem;
  const auto add_unit = [&](std::vector<uint32_t> reads, uint64_t bytes) {
    const auto unit = static_cast<uint32_t>(problem.units.size());
    for (uint32_t value : reads) problem.values[value].users.push_back(unit);
    problem.units.push_back({std::move(reads), {static_cast<uint32_t>(problem.values.size())}, {}, {}, 0});
    problem.values.push_back({bytes, unit, false, {}});
    return unit;
  };
  uint32_t trunk = add_unit({}, kSmall);
  std::vector<uint32_t> gradients;
  for (int layer = 0; layer < 6; ++layer) {
    gradients.push_back(add_unit({trunk}, kGradient));
    trunk = add_unit({trunk}, kSmall);
  }
  for (uint32_t gradient : gradients) add_unit({gradient}, 0);  // the update, in the weight's own memory
  EXPECT_GT(peak_bytes(problem, program_order(problem)), 6 * kGradient);
  const PlannedOrder planned = plan_order(problem);
  EXPECT_LE(planned.peak_bytes, kGradient + 2 * kSmall);
  EXPECT_EQ(planned.peak_bytes, planned.bound_bytes);
}

}  // namespace
}  // namespace stepc
