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
    if (pace.wants_eager()) {
      pace.ran_eagerly(eager + late);
      ++eagerly;
    } else {
      slower = pace.replayed(replay + late);
    }
  }
  return {slower, eagerly};
}

TEST(Pace, AStepWhoseReplaysAreSlowerIsFound) {
  const auto [slower, eagerly] = found(3e-4, 2e-4);
  ASSERT_TRUE(slower.has_value());
  EXPECT_NEAR(*slower, 1.5, 1e-9);
  EXPECT_EQ(eagerly, Pace::kCompared);
}

TEST(Pace, FewOfTheOthersRunEagerly) {
  for (const double replay : {1e-4, 2e-4, 2.3e-4}) {
    const auto [slower, eagerly] = found(replay, 2e-4);
    EXPECT_FALSE(slower.has_value()) << replay;
    EXPECT_EQ(eagerly, Pace::kCompared);
  }
}

TEST(Pace, NothingIsComparedInShortRuns) {
  Pace pace;
  for (int64_t i = 0; i < Pace::kLongRun; ++i) {
    EXPECT_FALSE(pace.wants_eager());
    EXPECT_FALSE(pace.replayed(1).has_value());
  }
  EXPECT_TRUE(pace.wants_eager());
}

}  // namespace
}  // namespace stepc
