#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/host_reads.h"

namespace stepc::optim {
namespace {

TEST(LossScaler, Float16GradientsBelowItsRangeSurvive) {
  const at::Tensor w = at::ones({4, 4}, at::kHalf).requires_grad_(true);
  const LossScaler scaler;
  const auto gradient = [&](const at::Tensor& scale) {
    w.mutable_grad().reset();
    const at::Tensor loss = (w.to(at::kFloat) * 1e-9).sum();  // below float16's smallest number, 6e-8
    (loss * scale).backward();
    return w.grad().abs().max().item<double>();
  };
  EXPECT_EQ(gradient(at::ones({})), 0.0);
  gradient(scaler.scale());
  EXPECT_EQ(scaler.unscale_({w}).item<double>(), 0.0);
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  EXPECT_NEAR(w.grad()[0][0].item<double>(), 1e-9, 1e-12);
}

TEST(LossScaler, FallsAtAnOverflowAndGrowsAfterGoodSteps) {
  const at::Tensor w = at::ones({2, 2}, at::kHalf).requires_grad_(true);
  LossScaler scaler({.initial = 1024.0, .interval = 2});
  AdamW adamw({{"w", w}}, {.lr = 0.125});
  std::vector<double> scales;
  std::vector<double> values;
  for (const double grad : {1.0, 60000.0, 1.0, 1.0, 1.0}) {
    w.mutable_grad() = (at::full({2, 2}, grad) * scaler.scale()).to(at::kHalf);
    const at::Tensor overflow = scaler.unscale_({w});
    clip_grad_norm_({w}, 1.0);
    adamw.step(overflow);
    scaler.update_(overflow);
    scales.push_back(scaler.scale().item<double>());
    values.push_back(w.detach()[0][0].item<double>());
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 512, 512, 1024, 1024}));
  EXPECT_EQ(values[0], values[1]);
  EXPECT_GT(values[1], values[2]);
  EXPECT_TRUE(std::isfinite(values.back()));
}

TEST(LossScaler, ReadsNothingBackToTheHost) {
  const at::Tensor w = at::ones({2, 2}, at::kHalf).requires_grad_(true);
  LossScaler scaler;
  AdamW adamw({{"w", w}}, {});
  const test::HostReads reads;
  (w.sum() * scaler.scale()).backward();
  const at::Tensor overflow = scaler.unscale_({w});
  clip_grad_norm_({w}, 1.0);
  adamw.step(overflow);
  scaler.update_(overflow);
  EXPECT_EQ(test::HostReads::found(), std::set<std::string>{});
}

TEST(LossScaler, ItsStateIsKeptWithTheOptimizers) {
  const at::Tensor w = at::ones({2, 2}).requires_grad_(true);
  LossScaler scaler({.initial = 256.0});
  AdamW adamw({{"w", w}}, {});
  adamw.keep(scaler.named_state());
  NamedTensors saved;
  for (const auto& [name, tensor] : adamw.named_state()) saved.emplace_back(name, tensor.clone());
  scaler.update_(at::ones({}));
  EXPECT_EQ(scaler.scale().item<double>(), 128.0);
  adamw.load_state(saved);
  EXPECT_EQ(scaler.scale().item<double>(), 256.0);
}

TEST(LossScaler, RefusesBadOptions) {
  EXPECT_THROW(LossScaler({.initial = 0.0}), UserError);
  EXPECT_THROW(LossScaler({.growth = 0.5}), UserError);
  EXPECT_THROW(LossScaler({.backoff = 0.0}), UserError);
  EXPECT_THROW(LossScaler({.interval = 0}), UserError);
}

}  // namespace
}  // namespace stepc::optim
