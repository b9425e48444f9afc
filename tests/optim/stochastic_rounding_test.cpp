#include "optim/stochastic_rounding.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace stepc::optim {
namespace {

TEST(StochasticRounding, IsRightOnAverageAndHitsOnlyTheTwoNeighbours) {
  at::manual_seed(1);
  for (const double value : {1.001, -1.001, 3.14159, 1e-30, -7e20}) {
    const at::Tensor exact = at::full({200000}, value, at::kFloat);
    const at::Tensor rounded = stochastically_rounded(exact).to(at::kDouble);
    const double step = std::exp2(std::floor(std::log2(std::abs(value))) - 7);
    EXPECT_LT((rounded - exact.to(at::kDouble)).abs().max().item<double>(), step);
    EXPECT_NEAR((rounded.mean().item<double>() - exact[0].item<double>()) / step, 0.0, 0.005) << value;
  }
}

TEST(StochasticRounding, KeepsWhatBfloat16CanHold) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor exact = at::tensor({0.0F, 1.0F, -2.5F, 0.0078125F, kInfinity, -kInfinity}, at::kFloat);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(at::equal(stochastically_rounded(exact).to(at::kFloat), exact));
  EXPECT_TRUE(stochastically_rounded(at::full({9}, NAN, at::kFloat)).isnan().all().item<bool>());
}

}  // namespace
}  // namespace stepc::optim
