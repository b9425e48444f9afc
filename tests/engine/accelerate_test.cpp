// The engine's promise: an accelerated step is bit-equal to eager, and never worse than reported.
#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "engine/stepc.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using test::Twins;

TEST(Accelerate, PerceptronIsBitEqualToEagerOverTenSteps) {
  Twins twins(
      [] { return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::GELU(), torch::nn::Linear(32, 4)); });
  twins.run(10, [](int i) {
    torch::manual_seed(100 + i);
    return torch::randn({8, 16});
  });
  EXPECT_EQ(twins.stats().plans, 1U);
  EXPECT_GE(twins.stats().replays, 6U);
  EXPECT_EQ(twins.stats().unplanned_allocations, 0U) << twins.report();
  EXPECT_LE(twins.stats().measured_peak_bytes, twins.stats().eager_peak_bytes * 1.03) << twins.report();
}

}  // namespace
}  // namespace stepc
