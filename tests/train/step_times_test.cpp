#include "train/report/step_times.h"

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(StepTimes, IsTheMedianOfTheLastSteps) {
  StepTimes times(3);
  EXPECT_EQ(times.recent(), 0);
  for (const double seconds : {1.0, 1.0, 9.0, 2.0, 3.0}) times.add(seconds);
  EXPECT_EQ(times.recent(), 3);  // of 9, 2, 3
  EXPECT_EQ(times.overall(), 2);
}

}  // namespace
}  // namespace stepc::train
