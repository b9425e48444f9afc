#include "memory/liveness.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(LiveProfile, FollowsTheWorkedExampleOfLayout) {
  const LayoutProblem problem{{{10, 0, 4}, {10, 2, 6}, {20, 1, 5}, {30, 5, 7}}, 1};
  const LiveProfile profile = live_profile(problem);
  EXPECT_EQ(profile.points, (std::vector<LivePoint>{{0, 10}, {1, 30}, {2, 40}, {4, 30}, {5, 40}, {6, 30}, {7, 0}}));
  EXPECT_EQ(profile.peak_bytes, 40U);
  EXPECT_EQ(profile.peak_time, 2);
  EXPECT_EQ(live_at(problem, 2), (std::vector<uint32_t>{2, 0, 1}));
  EXPECT_EQ(live_at(problem, 5), (std::vector<uint32_t>{3, 1}));
  EXPECT_TRUE(live_at(problem, 7).empty());
}

TEST(LiveProfile, MemoryFreedAtATickIsNotCountedTwice) {
  const LayoutProblem problem{{{100, 0, 1}, {100, 1, 2}, {0, 0, 9}}, 1};
  EXPECT_EQ(live_profile(problem).peak_bytes, 100U);
  EXPECT_EQ(live_profile(problem).points.size(), 3U);
}

TEST(LiveProfile, NothingIsEverLive) {
  EXPECT_TRUE(live_profile({}).points.empty());
  EXPECT_EQ(live_profile({}).peak_bytes, 0U);
}

}  // namespace
}  // namespace stepc
