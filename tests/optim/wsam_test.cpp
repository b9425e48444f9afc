#include "optim/wsam.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "tests/optim/parameters.h"

namespace stepc::optim {
namespace {

// (w1^2 + 10 w2^2) / 2
at::Tensor bowl(const at::Tensor& w) { return (w.square() * at::tensor({1.0, 10.0}, at::kDouble)).sum() / 2; }

at::Tensor start() { return at::ones({2}, at::kDouble).requires_grad_(true); }

void take_step(Wsam& wsam, const at::Tensor& w) {
  bowl(w).backward();
  wsam.ascend();
  bowl(w).backward();
  wsam.step();
  wsam.zero_grad();
}

void expect_path(const WsamOptions& options, const std::vector<std::pair<double, double>>& path) {
  const at::Tensor w = start();
  Wsam wsam(std::make_shared<Sgd>(NamedTensors{{"w", w}}, SgdOptions{.lr = 0.01}), options);
  for (const auto& [first, second] : path) {
    take_step(wsam, w);
    EXPECT_NEAR(w[0].item<double>(), first, 1e-12);
    EXPECT_NEAR(w[1].item<double>(), second, 1e-12);
  }
}

TEST(Wsam, GoldenValues) {
  expect_path({}, {{0.989552233264, 0.855223326441}, {0.979139480817, 0.724999234314}});
  expect_path({.decoupled = false}, {{0.989552233264, 0.855223326441}, {0.979139480817, 0.724999234314}});
  expect_path({.adaptive = true}, {{0.989552233264, 0.855223326441}, {0.979065813755, 0.731556280173}});
  expect_path({.gamma = 0.5}, {{0.989950248140, 0.895024814049}, {0.979995777916, 0.800552639020}});
}

TEST(Wsam, WithoutSharpnessItIsTheWrappedOptimizer) {
  for (const bool decoupled : {true, false}) {
    const at::Tensor w = start();
    const at::Tensor plain = start();
    Wsam wsam(std::make_shared<AdamW>(NamedTensors{{"w", w}}, AdamWOptions{}), {.gamma = 0.0, .decoupled = decoupled});
    AdamW adamw({{"w", plain}}, {});
    for (int t = 0; t < 5; ++t) {
      take_step(wsam, w);
      bowl(plain).backward();
      adamw.step();
      adamw.zero_grad();
    }
    EXPECT_TRUE(at::equal(w, plain));
  }
}

TEST(Wsam, FollowsTheLearningRateAndStateOfTheWrappedOptimizer) {
  const at::Tensor w = start();
  const auto adamw = std::make_shared<AdamW>(NamedTensors{{"w", w}}, AdamWOptions{.lr = 0.1});
  Wsam wsam(adamw, {});
  wsam.set_lr(0.0);
  take_step(wsam, w);
  EXPECT_TRUE(at::equal(w, start()));
  EXPECT_EQ(adamw->lr(), 0.0);
  const NamedTensors state = wsam.named_state();
  ASSERT_EQ(state.size(), 4);
  EXPECT_EQ(state[1].second.item<double>(), 1.0);
  EXPECT_GT(state[3].second.sum().item<double>(), 0.0);
}

TEST(Wsam, BothGradientsAreClipped) {
  const at::Tensor w = start();
  Wsam wsam(std::make_shared<Sgd>(NamedTensors{{"w", w}}, SgdOptions{.lr = 0.01}), {.gamma = 0.0, .max_norm = 0.5});
  take_step(wsam, w);
  EXPECT_NEAR((w.detach() - start().detach()).norm().item<double>(), 0.005, 1e-8);
}

TEST(Wsam, MasterWeightsGetTheSharpnessToo) {
  const at::Tensor w = at::ones({2, 2}, at::kBFloat16).requires_grad_(true);
  Wsam wsam(std::make_shared<Sgd>(NamedTensors{{"w", w}}, SgdOptions{.lr = 1e-5}), {});
  for (int t = 0; t < 400; ++t) {
    w.square().sum().backward();
    wsam.ascend();
    w.square().sum().backward();
    wsam.step();
    wsam.zero_grad();
  }
  // A step of 2e-5 and the sharpness beside it: far below bfloat16's 4e-3, and not lost.
  const at::Tensor master = wsam.named_state().back().second;
  EXPECT_EQ(wsam.named_state().back().first, "w.master");
  EXPECT_LT(master.max().item<double>(), 0.992);
  EXPECT_TRUE(at::equal(w, master.to(at::kBFloat16)));
}

TEST(Wsam, ASkippedStepPutsTheWeightsBack) {
  for (const bool decoupled : {true, false}) {
    const at::Tensor w = start();
    Wsam wsam(std::make_shared<AdamW>(NamedTensors{{"w", w}}, AdamWOptions{}), {.decoupled = decoupled});
    bowl(w).backward();
    wsam.ascend();
    EXPECT_FALSE(at::equal(w, start()));
    w.mutable_grad() = at::full({2}, NAN, at::kDouble);
    wsam.step(at::ones({}));
    EXPECT_TRUE(at::equal(w, start()));
    EXPECT_EQ(wsam.named_state()[1].second.item<double>(), 0.0);
  }
}

TEST(Wsam, RefusesToBeCalledOutOfOrder) {
  const at::Tensor w = start();
  Wsam wsam(std::make_shared<Sgd>(NamedTensors{{"w", w}}, SgdOptions{}), {});
  EXPECT_THROW(wsam.step(), UserError);
  EXPECT_THROW(wsam.ascend(), UserError);  // no gradient
  bowl(w).backward();
  wsam.ascend();
  EXPECT_THROW(wsam.ascend(), UserError);
  EXPECT_THROW(Wsam(std::make_shared<Sgd>(NamedTensors{{"w", w}}, SgdOptions{}), {.gamma = 1.0}), UserError);
}

}  // namespace
}  // namespace stepc::optim
