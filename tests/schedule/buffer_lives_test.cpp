// Lives of buffers that several streams use, and the arena that follows from them.
#include "schedule/buffer_lives.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "schedule/verify_arena.h"
#include "tests/schedule/streams_schedule.h"

namespace stepc {
namespace {

// Stream 1 reads b1 while stream 0 goes on; b2 is made on stream 1.
constexpr const char* kTwoStreams = R"(stepc.schedule 1
features none
threads 1
arena 768
live bound 768
layout "best_fit"
numbers 0
buffer b0: input 256 of 0
buffer b1: arena 256 at 0
buffer b2: arena 256 at 256
buffer b3: arena 256 at 512
buffer b4: own 256
operand %0: f32[64] in b0
operand %1: f32[64] in b1
operand %2: f32[64] in b2
operand %3: f32[64] in b3
operand %4: f32[64] in b4
input 0: parameter "w" %0
i0: op exp (%0) -> (%1) | forward ""
i1: record record () -> () mark 0 | forward ""
i2: wait wait () -> () stream 1 mark 0 | forward ""
i3: op exp (%1) -> (%2) stream 1 | forward ""
i4: record record () -> () stream 1 mark 1 | forward ""
i5: op exp (%0) -> (%3) | forward ""
i6: wait wait () -> () mark 1 | forward ""
i7: op add (%2, %3) -> (%4) | forward ""
output return %4
)";

TEST(BufferLives, ReachToTheWaitThatCoversAnotherStreamsLastUse) {
  const Schedule schedule = parse_schedule(kTwoStreams);
  EXPECT_EQ(to_text(schedule), kTwoStreams);
  verify(schedule);
  const std::vector<BufferLife> lives = lives_of(schedule, true);
  EXPECT_EQ(lives[1].last_use, 3U);
  EXPECT_EQ(lives[1].held_from, 0U);
  EXPECT_EQ(lives[1].held_until, 6U);
  EXPECT_EQ(lives[2].held_from, 2U) << "stream 1 knows that what stands before the record has ended";
  EXPECT_EQ(lives[2].held_until, 7U);
  EXPECT_EQ(lives[3].held_from, 5U);
  EXPECT_EQ(lives[3].held_until, 7U);
}

TEST(BufferLives, MemoryIsGivenToOthersBehindTheWait) {
  Schedule schedule = parse_schedule(kTwoStreams);
  const auto refused = [&](void (*check)(const Schedule&) = verify) {
    try {
      check(schedule);
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  schedule.buffers[3].offset = 0;
  EXPECT_NE(refused().find("i5 (op exp) uses memory that i3 uses on stream 1, and no wait stands between them"),
            std::string::npos)
      << refused();
  EXPECT_NE(refused(verify_arena).find("i5 (op exp): b3 is written over b1, which lives from i0 to i6"),
            std::string::npos)
      << refused(verify_arena);
  std::swap(schedule.instructions[5], schedule.instructions[6]);
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(lives_of(schedule, true)[1].held_until, 5U);
  schedule.instructions.erase(schedule.instructions.begin() + 5);
  schedule.outputs.clear();
  schedule.instructions.pop_back();
  schedule.buffers[3].offset = 512;
  EXPECT_EQ(lives_of(schedule, true)[1].held_until, schedule.instructions.size()) << "to the end, without a wait";
  EXPECT_NE(refused().find("the step ends before what i3 has begun"), std::string::npos) << refused();
}

TEST(BufferLives, AnArenaLaidOutByThemHoldsInAnyOrderOfTheStreams) {
  size_t refused = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Schedule schedule = test::random_streams(seed);
    const std::vector<BufferLife> lives = lives_of(schedule, true);
    test::lay_out_arena(schedule, lives);
    ASSERT_EQ(parse_schedule(to_text(schedule)), schedule);
    ASSERT_NO_THROW(verify(schedule)) << to_text(schedule);
    for (uint64_t other = 0; other < 4; ++other) {
      const Schedule reordered = test::in_other_order(schedule, seed + other);
      ASSERT_NO_THROW(verify(reordered)) << to_text(schedule) << to_text(reordered);
    }
    test::lay_out_arena(schedule, lives, /*until_last_use=*/true);
    try {
      verify(schedule);
    } catch (const InternalError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20U) << "layouts that forget the other streams";
}

}  // namespace
}  // namespace stepc
