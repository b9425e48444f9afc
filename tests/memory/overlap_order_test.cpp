// Exchanges beside computation: worked examples, and random problems whose promises any order must keep.
#include "memory/order/overlap_order.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tests/memory/random_order_problem.h"

namespace stepc {
namespace {

// Units that each read what the units named before them make.
struct Step {
  OrderProblem problem;
  std::vector<OverlapUnit> units;

  uint32_t add(double seconds, const std::vector<uint32_t>& reads) {
    const auto unit = static_cast<uint32_t>(problem.units.size());
    problem.units.emplace_back();
    problem.units[unit].makes = {unit};
    problem.values.push_back({64, unit, false, {}});
    for (uint32_t read : reads) {
      problem.units[unit].reads.push_back(read);
      problem.values[read].users.push_back(unit);
    }
    units.push_back({seconds});
    return unit;
  }
  // An exchange of what `reads` make, and its wait, which is returned.
  uint32_t exchange(double seconds, const std::vector<uint32_t>& reads) {
    const uint32_t begun = add(seconds, reads);
    const uint32_t wait = add(0, {begun});
    units[begun].wait = wait;
    return wait;
  }
  [[nodiscard]] UnitOrder order(const OverlapLimits& limits = {}) const {
    verify(problem);
    UnitOrder found = overlap_order(problem, program_order(problem), units, limits);
    verify_order(problem, found);
    return found;
  }
};

TEST(OverlapOrder, AGatherGoesOnBesideTheUnitBefore) {
  Step step;
  const uint32_t wait1 = step.exchange(1, {});
  const uint32_t a = step.add(1, {wait1});
  const uint32_t wait2 = step.exchange(1, {});
  step.add(1, {a, wait2});
  EXPECT_EQ(step.order(), (UnitOrder{0, 3, 1, 2, 4, 5})) << "both begin at once: the second is due in a second";
  EXPECT_EQ(step.order({.window = 0, .most_in_flight = 4}), program_order(step.problem))
      << "no earlier than the given order comes to it";
}

TEST(OverlapOrder, AGatherBeginsNoEarlierThanItIsDue) {
  Step step;
  for (int i = 0; i < 10; ++i) step.add(1, i == 0 ? std::vector<uint32_t>() : std::vector<uint32_t>{uint32_t(i - 1)});
  const uint32_t wait = step.exchange(1, {});  // units 10 and 11
  step.add(1, {9, wait});
  const UnitOrder order = step.order({.window = 2, .most_in_flight = 4});
  EXPECT_EQ(std::ranges::find(order, 10U) - order.begin(), 8) << "two seconds before";
}

TEST(OverlapOrder, AGradientIsSummedOnceItHasArrived) {
  Step step;
  const uint32_t gradient = step.add(1, {});
  const uint32_t wait = step.exchange(2, {gradient});  // 1, 2
  step.add(0, {wait});                                 // 3: its sum
  const uint32_t next = step.add(1, {gradient});       // 4
  const uint32_t other = step.add(1, {next});          // 5
  step.add(1, {other});                                // 6
  EXPECT_EQ(step.order(), (UnitOrder{0, 1, 4, 5, 2, 3, 6})) << "behind two seconds of other work";
}

TEST(OverlapOrder, DecisionsComeFirst) {
  Step step;
  step.exchange(1, {});                          // 0, 1
  const uint32_t looked = step.add(1, {});       // 2
  const uint32_t guard = step.add(1, {looked});  // 3
  step.units[looked].is_first = step.units[guard].is_first = true;
  step.add(1, {1});
  const UnitOrder order = step.order();
  EXPECT_EQ(UnitOrder(order.begin(), order.begin() + 2), (UnitOrder{2, 3}));
}

TEST(OverlapOrder, HostCodeFindsNoExchangeOnItsWay) {
  Step step;
  step.exchange(5, {});  // 0, 1
  const uint32_t host = step.add(1, {});
  step.units[host].is_host = true;
  step.add(1, {1});
  const UnitOrder order = step.order();
  const auto place = [&](uint32_t unit) { return std::ranges::find(order, unit) - order.begin(); };
  EXPECT_TRUE(place(host) < place(0) || place(1) < place(host));
}

// While the second exchange is on its way, what the backward pass makes again of the first layer could run already, and
// be held for long: within the memory that there is it does not.
TEST(OverlapOrder, WhatRunsEarlyFindsRoomForWhatItMakes) {
  Step step;
  const uint32_t wait = step.exchange(3, {});  // 0, 1
  const uint32_t used = step.add(1, {wait});   // 2
  const uint32_t large = step.add(1, {used});  // 3: needs much memory for itself
  const uint32_t made = step.add(1, {});       // 4: could run at once
  step.add(1, {large, made});                  // 5
  step.problem.units[large].workspace_bytes = 10 * 64;
  step.problem.values[made].bytes = 4 * 64;
  EXPECT_EQ(step.order(), (UnitOrder{0, 4, 1, 2, 3, 5}));
  const uint64_t peak = peak_bytes(step.problem, program_order(step.problem));
  OverlapLimits limits;
  limits.most_bytes = peak;
  EXPECT_EQ(step.order(limits), program_order(step.problem));
  limits.most_bytes = peak + 4 * 64;
  EXPECT_EQ(step.order(limits), (UnitOrder{0, 4, 1, 2, 3, 5}));
}

TEST(OverlapOrder, RandomOnesAreOrders) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    Step step;
    const auto some = [&](size_t most) {
      std::vector<uint32_t> reads;
      for (size_t i = 0; i < most && !step.units.empty(); ++i) {
        auto read = static_cast<uint32_t>(random() % step.units.size());
        if (step.units[read].wait != kNone) read = step.units[read].wait;  // an exchange is read through its wait
        if (read < step.units.size()) reads.push_back(read);
      }
      std::ranges::sort(reads);
      reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
      return reads;
    };
    const size_t count = 2 + random() % 20;
    for (size_t i = 0; i < count; ++i) {
      const double seconds = static_cast<double>(random() % 5);
      if (random() % 3 == 0)
        step.exchange(seconds, some(2));
      else
        step.units[step.add(seconds, some(3))].is_host = random() % 8 == 0;
    }
    for (OrderValue& value : step.problem.values) value.bytes = 64 * (random() % 8);
    const uint64_t peak = peak_bytes(step.problem, program_order(step.problem));
    const OverlapLimits limits{static_cast<double>(random() % 3), 1 + static_cast<uint32_t>(random() % 3),
                               random() % 4 == 0 ? UINT64_MAX : peak + random() % (peak + 1)};
    const UnitOrder order = step.order(limits);
    EXPECT_LE(peak_bytes(step.problem, order), limits.most_bytes) << "trial " << trial;
    uint32_t in_flight = 0;
    for (uint32_t unit : order) {
      const bool ends = std::ranges::any_of(step.units, [&](const OverlapUnit& one) { return one.wait == unit; });
      in_flight = in_flight + (step.units[unit].wait != kNone ? 1 : 0) - (ends ? 1 : 0);
      EXPECT_LE(in_flight, limits.most_in_flight);
      if (step.units[unit].is_host) {
        EXPECT_EQ(in_flight, 0U);
      }
    }
    EXPECT_EQ(order, step.order(limits)) << "the same every time";
  }
}

}  // namespace
}  // namespace stepc
