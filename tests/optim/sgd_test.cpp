#include "optim/sgd.h"

#include <gtest/gtest.h>

#include <torch/optim/sgd.h>

#include "base/check.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

TEST(Sgd, AgreesWithLibTorch) {
  struct Case {
    double momentum;
    bool nesterov;
    double weight_decay;
  };
  for (const auto& [momentum, nesterov, decay] :
       {Case{0, false, 0}, Case{0, false, 0.1}, Case{0.9, false, 0}, Case{0.9, true, 0}, Case{0.8, true, 0.1}}) {
    const at::Tensor mine = parameter({7, 5}, at::kDouble);
    const at::Tensor theirs = mine.detach().clone().requires_grad_(true);
    Sgd sgd({{"w", mine}}, {.lr = 0.05, .momentum = momentum, .nesterov = nesterov, .weight_decay = decay});
    torch::optim::SGD reference(
        {theirs}, torch::optim::SGDOptions(0.05).momentum(momentum).nesterov(nesterov).weight_decay(decay));
    for (int t = 0; t < 10; ++t) {
      set_grad(mine, t);
      set_grad(theirs, t);
      sgd.step();
      reference.step();
      EXPECT_TRUE(at::allclose(mine, theirs, 0, 1e-14)) << momentum << nesterov << decay << " step " << t;
    }
  }
}

TEST(Sgd, KeepsNoStateWithoutMomentum) {
  const at::Tensor p = parameter({2, 2}, at::kFloat);
  EXPECT_EQ(Sgd({{"w", p}}, {}).named_state().size(), 2);
  EXPECT_EQ(Sgd({{"w", p}}, {.momentum = 0.9}).named_state().size(), 3);
  EXPECT_THROW(Sgd({{"w", p}}, {.nesterov = true}), UserError);
  EXPECT_THROW(Sgd({{"w", p}}, {.momentum = 1.0}), UserError);
}

}  // namespace
}  // namespace stepc::optim
