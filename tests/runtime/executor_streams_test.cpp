// Schedules on several streams, in all orders that their marks allow: what a device may do, one instruction after the
// other.
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "runtime/executor.h"
#include "tests/schedule/streams_schedule.h"

namespace stepc {
namespace {

at::Tensor result_of(const Schedule& schedule, const at::Tensor& weight) {
  Executor executor(schedule, nullptr);
  EXPECT_EQ(executor.why_not({weight}), "");
  StepResult result = executor.run({.tensors = {weight}});
  EXPECT_EQ(result.memory.unplanned, 0U);
  return result.outputs.at(0);
}

TEST(ExecutorStreams, AnyOrderThatMarksAllowGivesTheSameResult) {
  at::manual_seed(1);
  const at::Tensor weight = at::randn({32});
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Schedule schedule = test::random_streams(seed);
    std::vector<BufferLife> apart = lives_of(schedule, true);
    for (BufferLife& life : apart) life.held_from = 0, life.held_until = schedule.instructions.size();
    test::lay_out_arena(schedule, apart);
    const at::Tensor expected = result_of(schedule, weight);
    test::lay_out_arena(schedule, lives_of(schedule, true));
    EXPECT_TRUE(result_of(schedule, weight).equal(expected)) << to_text(schedule);
    for (uint64_t other = 0; other < 4; ++other) {
      const Schedule reordered = test::in_other_order(schedule, seed + other);
      EXPECT_TRUE(result_of(reordered, weight).equal(expected)) << to_text(reordered);
    }
  }
}

}  // namespace
}  // namespace stepc
