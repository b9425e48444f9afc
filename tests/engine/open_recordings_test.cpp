#include "engine/record/open_recordings.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

// A step of one call whose argument is `number`.
Trace step_with(int64_t number) {
  Trace trace;
  Call call;
  call.op = "aten::manual_step";
  call.args = {Arg(number)};
  trace.calls.push_back(std::move(call));
  return trace;
}

TEST(OpenRecordings, AgreeWithTheLatestThatIsAlikeWhichGoes) {
  OpenRecordings open;
  open.keep(step_with(1));
  open.keep(step_with(2));
  Refusal refusal;
  ASSERT_TRUE(open.agree_with_one(step_with(1), false, refusal));
  ASSERT_EQ(open.traces().size(), 1u);
  EXPECT_FALSE(open.agree_with_one(step_with(1), false, refusal));
  EXPECT_FALSE(refusal.is_obstacle);
  EXPECT_FALSE(refusal.reason.empty());
  EXPECT_EQ(open.traces().size(), 1u);
}

TEST(OpenRecordings, KeepTheLatestThree) {
  OpenRecordings open;
  for (int64_t number = 1; number <= 4; ++number) open.keep(step_with(number));
  ASSERT_EQ(open.traces().size(), 3u);
  EXPECT_EQ(std::get<int64_t>(open.traces().front().calls[0].args[0]), 2);
}

TEST(OpenRecordings, MeetAnObstacleAgainIfItIsTheLastOnes) {
  OpenRecordings open;
  const Refusal obstacle{"a call without an owner", true};
  EXPECT_FALSE(open.meets_again(obstacle));
  EXPECT_TRUE(open.meets_again(obstacle));
  EXPECT_FALSE(open.meets_again({"another branch", false}));
  EXPECT_FALSE(open.meets_again(obstacle));
  EXPECT_EQ(open.last_obstacle(), obstacle.reason);
}

TEST(OpenRecordings, ARecordingIsRefusedForItsFirstObstacle) {
  Recording recording;
  EXPECT_FALSE(refusal_of(recording).is_obstacle);
  recording.obstacles = {"first", "second"};
  EXPECT_TRUE(refusal_of(recording).is_obstacle);
  EXPECT_EQ(refusal_of(recording).reason, "first");
}

}  // namespace
}  // namespace stepc
