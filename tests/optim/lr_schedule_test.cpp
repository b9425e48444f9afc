#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace stepc::optim {
namespace {

TEST(LrSchedule, WarmsUpLinearlyThenFollowsACosineToTheMinimum) {
  const LrSchedule schedule{.peak = 2.0, .warmup_steps = 4, .total_steps = 104, .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 54), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 104), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 100000), 0.2);
  for (int64_t step = 5; step < 104; ++step)
    EXPECT_LT(learning_rate(schedule, step), learning_rate(schedule, step - 1)) << step;
}

TEST(LrSchedule, ConstantStaysAtThePeakAfterWarmUp) {
  const LrSchedule schedule{.kind = LrSchedule::Kind::kConstant, .peak = 3.0, .warmup_steps = 2, .total_steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 3.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000), 3.0);
}

TEST(LrSchedule, LinearIsAStraightLineToTheMinimum) {
  const LrSchedule schedule{.kind = LrSchedule::Kind::kLinear, .peak = 2.0, .warmup_steps = 4, .total_steps = 104};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 54), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 79), 2.0 * (0.1 + 0.9 * 0.25));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000), 0.2);
}

TEST(LrSchedule, WarmupStableDecayStaysAtThePeakUntilTheDecay) {
  LrSchedule schedule{.kind = LrSchedule::Kind::kWarmupStableDecay,
                      .peak = 2.0,
                      .warmup_steps = 4,
                      .total_steps = 100,
                      .decay_steps = 20,
                      .min_ratio = 0.0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 80), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 90), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 100), 0.0);
  schedule.decay_steps = 1000;  // longer than the run: all of it after the warm-up
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 52), 1.0);
}

TEST(LrSchedule, WarmUpMayFillTheWholeRun) {
  const LrSchedule schedule{.peak = 1.0, .warmup_steps = 10, .total_steps = 10};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 11), 0.1);
}

}  // namespace
}  // namespace stepc::optim
