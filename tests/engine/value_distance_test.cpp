#include "engine/compare/value_distance.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace stepc {
namespace {

TEST(ValueDistance, IsTheRootMeanSquareInFloat64) {
  at::manual_seed(0);
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {1, 7, 1 << 16, 200'001}) {
      const at::Tensor a = at::randn({size}).to(type), b = (a.to(at::kFloat) + 0.1 * at::randn({size})).to(type);
      const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
      const ValueDistance distance = value_distance(a, b);
      EXPECT_NEAR(distance.rms, wide_b.square().mean().sqrt().item<double>(), 1e-12 * distance.rms);
      EXPECT_NEAR(distance.apart, (wide_a - wide_b).square().mean().sqrt().item<double>(), 1e-12 * distance.rms);
      EXPECT_TRUE(distance.finite_alike);
    }
  }
}

TEST(ValueDistance, LeavesOutWhatIsNotFiniteAndSaysWhereOnlyOneIs) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor a = at::tensor({3.0, infinity, 1.0}), b = at::tensor({0.0, -infinity, 1.0});
  const ValueDistance both = value_distance(a, b);
  EXPECT_TRUE(both.finite_alike);
  EXPECT_DOUBLE_EQ(both.rms, std::sqrt(1.0 / 3));
  EXPECT_DOUBLE_EQ(both.apart, std::sqrt(3.0));
  EXPECT_FALSE(value_distance(a, at::tensor({3.0, 2.0, 1.0})).finite_alike);
  EXPECT_FALSE(value_distance(at::tensor({std::nan(""), 0.0, 0.0}), at::zeros({3}, at::kDouble)).finite_alike);
}

TEST(ValueDistance, TakesAnyStridesAndNothing) {
  const at::Tensor a = at::randn({40, 30}), b = at::randn({30, 40});
  EXPECT_EQ(value_distance(a, b.t()).apart, value_distance(a, b.t().contiguous()).apart);
  EXPECT_EQ(value_distance(at::empty({0}), at::empty({0})).apart, 0);
}

TEST(ValueDistance, DoesNotDependOnThreads) {
  const at::Tensor a = at::randn({300'000}), b = at::randn({300'000});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = value_distance(a, b).apart;
  at::set_num_threads(4);
  EXPECT_EQ(value_distance(a, b).apart, one);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace stepc
