#include "engine/compare/run_difference.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace stepc {
namespace {

// A bias whose first half has no gradient but rounding, as Adam leaves it: moved all the same. And a weight beside it.
struct AfterAdam {
  at::Tensor bias = at::ones({8}), bias_moment = at::ones({8}), weight = at::ones({4, 4}),
             weight_moment = at::ones({4, 4});

  AfterAdam() { bias_moment.slice(0, 0, 4).fill_(1e-9); }

  [[nodiscard]] std::vector<Named> left() const {
    return {named("bias", "parameter", bias, false, Owner::kParameter, "bias"),
            named("bias.m", "state exp_avg", bias_moment, false, Owner::kOptimizerState, "bias.exp_avg"),
            named("weight", "parameter", weight, false, Owner::kParameter, "weight"),
            named("weight.m", "state exp_avg", weight_moment, false, Owner::kOptimizerState, "weight.exp_avg")};
  }
};

TEST(RunDifference, ElementsThatOnlyRoundingMovesMayMoveElsewhere) {
  const AfterAdam one;
  AfterAdam other;
  other.bias.slice(0, 0, 4).add_(0.01);
  EXPECT_EQ(difference_in_values(one.left(), other.left(), DType::kF32), "");
}

TEST(RunDifference, ElementsBesideThemMayNot) {
  const AfterAdam one;
  AfterAdam other;
  other.bias[6] += 0.01;
  EXPECT_EQ(difference_in_values(one.left(), other.left(), DType::kF32).substr(0, 7), "bias by");
}

TEST(RunDifference, NorMayTheyWhereTheOtherRunFoundAGradient) {
  AfterAdam one, other;
  one.bias[1] += 0.01;
  one.bias_moment[1] = 1.0;
  other.bias_moment[1] = 1.0 - 1e-4;  // within rounding of it, and no rounding itself
  EXPECT_EQ(difference_in_values(one.left(), other.left(), DType::kF32).substr(0, 7), "bias by");
}

TEST(RunDifference, WithoutAnOptimizersStateNothingIsExcused) {
  const AfterAdam one;
  AfterAdam other;
  other.bias.slice(0, 0, 4).add_(0.01);
  std::vector<Named> first = one.left(), second = other.left();
  first.erase(first.begin() + 1);
  second.erase(second.begin() + 1);
  EXPECT_EQ(difference_in_values(first, second, DType::kF32).substr(0, 7), "bias by");
}

}  // namespace
}  // namespace stepc
