#include "engine/plan/pace.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

// What is found of a step whose replays and eager runs take so long, the longer one now and then; and how many steps
// ran eagerly.
std::pair<std::optional<double>, int64_t> found(double replay, double eager) {
  Pace pace;
  std::optional<double> slower;
  int64_t eagerly = 0;
  for (int64_t i = 0; i < 10 * Pace::kLongRun && !slower; ++i) {
    const double late = i % 5 == 0 ? 1 : 0;
    if (pace.wanted_eager() > 0) {
      pace.run_eagerly(1);
      if (i % 3 != 0) pace.ran_eagerly(eager + late);  // one that nothing came back from tells no seconds
      ++eagerly;
    } else {
      slower = pace.replayed(pace.times_replay() ? replay + late : 0);
    }
  }
  return {slower, eagerly};
}

TEST(Pace, AStepWhoseReplaysAreSlowerIsFound) {
  const auto [slower, eagerly] = found(3e-4, 2e-4);
  ASSERT_TRUE(slower.has_value());
  EXPECT_NEAR(*slower, 1.5, 1e-9);
  EXPECT_EQ(eagerly, Pace::kInARow);
}

TEST(Pace, FewOfTheOthersRunEagerly) {
  for (const double replay : {1e-4, 2e-4, 2.3e-4}) {
    const auto [slower, eagerly] = found(replay, 2e-4);
    EXPECT_FALSE(slower.has_value()) << replay;
    EXPECT_EQ(eagerly, Pace::kInARow);
  }
}

TEST(Pace, FewLongStepsRunEagerly) {
  const auto [slower, eagerly] = found(2 * Pace::kLong, Pace::kLong);
  EXPECT_TRUE(slower.has_value());
  EXPECT_EQ(eagerly, Pace::kFew);
}

TEST(Pace, NothingIsComparedInShortRuns) {
  Pace pace;
  for (int64_t i = 0; i < Pace::kLongRun; ++i) {
    EXPECT_EQ(pace.wanted_eager(), 0);
    EXPECT_EQ(pace.times_replay(), i >= Pace::kLongRun - Pace::kInARow);
    EXPECT_FALSE(pace.replayed(1e-4).has_value());
  }
  EXPECT_EQ(pace.wanted_eager(), Pace::kInARow);
}

TEST(Pace, WithoutAnEagerRunsSecondsNothingIsFound) {
  Pace pace;
  for (int64_t i = 0; i < 2 * Pace::kLongRun; ++i) {
    pace.run_eagerly(pace.wanted_eager());
    EXPECT_FALSE(pace.replayed(1e-4).has_value());
  }
  EXPECT_EQ(pace.wanted_eager(), 0);
  EXPECT_FALSE(pace.times_replay());
}

}  // namespace
}  // namespace stepc
