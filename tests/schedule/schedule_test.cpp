#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace stepc {
namespace {

// a = x * 2 (with a workspace), v = view of a, b = a + v, returned: sum of b
Trace example() {
  return parse_trace(R"(stepc.trace 1
storage s0 bytes=256 external
storage s1 bytes=256
storage s2 bytes=256
storage s3 bytes=4 escapes
%0: f32[8, 8] @s0 = batch "0"
call 0 %1: f32[8, 8] @s1 = aten::mul.Scalar(%0, 2) | forward ""
  alloc 100 [1, 3)
  alloc 256 @s1 [2, 8)
  scratch 100 [0, 4)
call 1 %2: f32[8, 8](1, 8) @s1 = aten::t(%1) | forward ""
call 2 %3: f32[8, 8] @s2 = aten::add.Tensor(%1, %2, 1) | forward ""
  alloc 256 @s2 [7, 11)
call 3 %4: f32[] @s3 = aten::sum(%3, none) | forward ""
  alloc 4 @s3 [10, 12) kept
return %4
ticks 12
)");
}

TEST(Schedule, LeavesViewsOutAndSendsEscapesToTheSystem) {
  const Trace trace = example();
  const Schedule schedule = schedule_trace(trace, 3);
  verify(trace, schedule);
  ASSERT_EQ(schedule.instructions.size(), 3U);
  EXPECT_EQ(schedule.instructions[0].call, CallId(0));
  EXPECT_EQ(schedule.instructions[1].call, CallId(2));
  ASSERT_EQ(schedule.placements.size(), 4U);
  EXPECT_TRUE(schedule.placements[3].system);
  EXPECT_FALSE(schedule.placements[2].system);
  EXPECT_EQ(schedule.placements[1].storage, StorageId(1));
}

TEST(Schedule, WorkersGetASlabEach) {
  const Schedule one = schedule_trace(example(), 1);
  EXPECT_EQ(one.instructions[0].scratch_bytes, 0U);
  EXPECT_EQ(one.arena_bytes, 512U);  // two tensors of 256 B live at tick 7; the workspace fits beside the first
  const Schedule three = schedule_trace(example(), 3);
  EXPECT_EQ(three.workers, 2);
  EXPECT_EQ(three.instructions[0].scratch_bytes, 128U);
  EXPECT_EQ(three.arena_bytes, 256U + 128U + 2 * 128U);
  EXPECT_EQ(three.planned_peak_bytes, three.arena_bytes + 64);  // and the returned value
  EXPECT_EQ(three.live_lower_bound_bytes, three.arena_bytes);
}

TEST(Schedule, VerifierFindsOverlap) {
  const Trace trace = example();
  Schedule schedule = schedule_trace(trace, 1);
  schedule.placements[2].offset = schedule.placements[1].offset;
  EXPECT_THROW(verify(trace, schedule), InternalError);
}

TEST(Schedule, IsDeterministic) { EXPECT_EQ(schedule_trace(example(), 2), schedule_trace(example(), 2)); }

}  // namespace
}  // namespace stepc
