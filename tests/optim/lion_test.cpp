#include "optim/lion.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

TEST(Lion, FollowsTheFormulaInFloat64) {
  const at::Tensor matrix = parameter({6, 4}, at::kDouble, 1);
  const at::Tensor vector = parameter({9}, at::kDouble, 2);
  Lion lion({{"matrix", matrix}, {"vector", vector}}, {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3});
  std::vector<at::Tensor> values = {matrix.detach().clone(), vector.detach().clone()};
  std::vector<at::Tensor> averages = {at::zeros_like(values[0]), at::zeros_like(values[1])};
  for (int t = 1; t <= 10; ++t) {
    lion.set_lr(0.02 / t);
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor& p = i == 0 ? matrix : vector;
      set_grad(p, t);
      const at::Tensor direction = (0.8 * averages[i] + 0.2 * p.grad()).sign();
      values[i] = values[i] * (1 - 0.02 / t * (i == 0 ? 0.3 : 0.0)) - 0.02 / t * direction;
      averages[i] = 0.95 * averages[i] + 0.05 * p.grad();
    }
    lion.step();
    EXPECT_TRUE(at::allclose(matrix, values[0], 0, 1e-12)) << t;
    EXPECT_TRUE(at::allclose(vector, values[1], 0, 1e-12)) << t;
  }
  EXPECT_THROW(Lion({{"w", matrix}}, {.beta2 = 1.0}), UserError);
}

}  // namespace
}  // namespace stepc::optim
