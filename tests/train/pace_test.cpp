#include "train/report/pace.h"

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(Pace, IsTheMedianOfTheLastSteps) {
  Pace pace(3);
  EXPECT_EQ(pace.recent(), 0);
  for (const double seconds : {1.0, 1.0, 9.0, 2.0, 3.0}) pace.add(seconds);
  EXPECT_EQ(pace.recent(), 3);  // of 9, 2, 3
  EXPECT_EQ(pace.overall(), 2);
}

}  // namespace
}  // namespace stepc::train
