// When tasks on streams begin and end, and how exchanges share a link.
#include "plan/stream_times.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

std::vector<double> ends(const std::vector<StreamTask>& tasks, double begin = 0) {
  std::vector<double> out;
  for (const StreamTime& time : stream_times(tasks, begin)) out.push_back(time.end_seconds);
  return out;
}

StreamTask on_link(uint32_t stream, double seconds, size_t link, double share = 1) {
  return {.stream = stream, .seconds = seconds, .link = link, .link_share = share};
}

using Ends = std::vector<double>;

TEST(StreamTimes, TasksOfAStreamFollowEachOtherAndStreamsRunSideBySide) {
  EXPECT_EQ(ends({{.stream = 0, .seconds = 1}, {.stream = 1, .seconds = 5}, {.stream = 0, .seconds = 2}}, 0.5),
            (Ends{1.5, 5.5, 3.5}));
  EXPECT_TRUE(stream_times({}, 1).empty());
}

TEST(StreamTimes, ATaskBeginsAfterAnotherStreamsTask) {
  const std::vector<StreamTime> times =
      stream_times(std::vector<StreamTask>{{.stream = 0, .seconds = 2},
                                           {.stream = 1, .seconds = 1, .after = 0},
                                           {.stream = 0, .seconds = 0.25, .after = 1}},
                   0);
  EXPECT_EQ(times, (std::vector<StreamTime>{{0, 2}, {2, 3}, {3, 3.25}}));
}

TEST(StreamTimes, ExchangesOnOneLinkShareItsRate) {
  // The worked example of the header: a has 1 s left when b begins, and both take twice as long until b ends.
  EXPECT_EQ(ends({on_link(0, 2, 0), {.stream = 1, .seconds = 1}, on_link(1, 1, 0)}), (Ends{3, 1, 3}));
  // The one that is left has the link alone again.
  EXPECT_EQ(ends({on_link(0, 3, 0), on_link(1, 1, 0)}), (Ends{4, 2}));
  // Three at once.
  EXPECT_EQ(ends({on_link(0, 1, 0), on_link(1, 1, 0), on_link(2, 1, 0)}), (Ends{3, 3, 3}));
}

TEST(StreamTimes, ExchangesOnOtherLinksDoNotShare) {
  EXPECT_EQ(ends({on_link(0, 2, 0), on_link(1, 2, 1)}), (Ends{2, 2}));
}

TEST(StreamTimes, OnlyBytesShareALink) {
  // Half of the second one's time is latency: the link carries bytes for a second and a half.
  EXPECT_EQ(ends({on_link(0, 1, 0), on_link(1, 1, 0, 0.5)}), (Ends{1.5, 1.5}));
  EXPECT_EQ(ends({on_link(0, 1, 0), on_link(1, 1, 0, 0)}), (Ends{1, 1}));
}

TEST(StreamTimes, SharingMovesWhatWaitsForIt) {
  EXPECT_EQ(ends({on_link(1, 2, 0), on_link(0, 2, 0), {.stream = 0, .seconds = 1, .after = 0}}), (Ends{4, 4, 5}));
}

}  // namespace
}  // namespace stepc
