#include "train/report/slow_ranks.h"

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

// After how many of `steps` alike something was said, and what; 0: nothing.
struct Said {
  int step = 0;
  std::string text;
  bool operator==(const Said&) const = default;
};
Said said(SlowRanks& ranks, const std::vector<double>& seconds, int steps) {
  for (int step = 1; step <= steps; ++step)
    if (const auto text = ranks.add(seconds)) return {step, *text};
  return {};
}

TEST(SlowRanks, OneOfHalfTheSpeedIsNamedWithin20Steps) {
  SlowRanks ranks({"a", "b", "c", "d"});
  EXPECT_EQ(said(ranks, {0.1, 0.11, 0.1, 0.12}, 100), Said());
  const Said found = said(ranks, {0.1, 0.11, 0.2, 0.12}, 100);
  EXPECT_LE(found.step, 20);
  EXPECT_EQ(found.text,
            "slow: rank 2 on c computes 200.0 ms a step, the median rank 110.0 ms; what they wait for is not counted");
  EXPECT_EQ(said(ranks, {0.1, 0.11, 0.2, 0.12}, 100), Said()) << "it is said once";
  EXPECT_EQ(said(ranks, {0.1, 0.1, 0.1, 0.1}, 100).text, "no rank is slow any more");
  EXPECT_EQ(said(ranks, {0.1, 0.1, 0.1, 0.1}, 100), Said());
  EXPECT_NE(said(ranks, {0.3, 0.1, 0.1, 0.1}, 100).text.find("rank 0 on a"), std::string::npos);
}

TEST(SlowRanks, OfTwoTheSlowOne) {
  SlowRanks ranks({"a", "b"});
  EXPECT_NE(said(ranks, {0.3, 0.1}, 20).text.find("rank 0 on a computes 300.0 ms"), std::string::npos);
}

TEST(SlowRanks, NoiseIsNotNamed) {
  SlowRanks ranks({"a", "b", "c"});
  EXPECT_EQ(said(ranks, {2e-4, 9e-4, 2e-4}, 100), Said()) << "less than a millisecond";
  for (int step = 0; step < 200; ++step)  // a step that is slow now and then
    EXPECT_EQ(ranks.add(std::vector<double>{0.1, step % 3 == 0 ? 0.5 : 0.1, 0.1}), std::nullopt);
}

}  // namespace
}  // namespace stepc::train
