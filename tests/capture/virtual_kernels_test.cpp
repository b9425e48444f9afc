#include "capture/virtual/virtual_kernels.h"

#include <chrono>

#include <gtest/gtest.h>

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "aten/virtual_memory.h"
#include "base/check.h"
#include "capture/virtual/virtual_region.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

constexpr int64_t kWide = 1 << 16;

TEST(VirtualKernels, LargeMemoryIsNeverTouched) {
  const VirtualRegion region;
  at::Tensor x = torch::randn({int64_t{1} << 30, 1 << 12});  // 16 TiB
  const at::Tensor w = torch::empty({1 << 12, 1 << 12});
  x = torch::gelu(x.matmul(w.t())).softmax(-1);
  x.mul_(2).add_(1);
  EXPECT_TRUE(is_virtual(x));
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{int64_t{1} << 30, 1 << 12}));
  EXPECT_EQ(x.sum().dim(), 0);
}

TEST(VirtualKernels, ATrainingStepGetsItsGradients) {
  const VirtualRegion region;
  torch::nn::Sequential model(torch::nn::Linear(512, kWide), torch::nn::GELU(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWide})), torch::nn::Dropout(0.1),
                              torch::nn::Linear(kWide, 512));
  torch::optim::AdamW optimizer(model->parameters());
  const at::Tensor loss = model->forward(torch::randn({1 << 20, 512})).pow(2).mean();
  loss.backward();
  // torch::nn::utils::clip_grad_norm_ returns the norm as a number, which nobody knows here.
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : model->parameters()) norms.push_back(parameter.grad().norm());
  const at::Tensor scale = (1.0 / torch::stack(norms).norm()).clamp(c10::nullopt, 1.0);
  for (const at::Tensor& parameter : model->parameters()) parameter.grad().mul_(scale);
  optimizer.step();
  for (const at::Tensor& parameter : model->parameters()) {
    ASSERT_TRUE(parameter.grad().defined());
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
  EXPECT_TRUE(is_virtual(loss));
}

TEST(VirtualKernels, WhatFollowsFromTheBatchAloneIsComputed) {
  const at::Tensor ids = torch::arange(12).view({2, 6});
  const VirtualRegion region;
  const at::Tensor mask = ids.ne(5).logical_and(torch::ones({2, 6}, at::kBool));
  EXPECT_FALSE(mask.all().item<bool>());
  EXPECT_EQ((mask.cumsum(-1) - 1).max().item<int64_t>(), 5);
  const at::Tensor weight = torch::empty({kWide, 64});
  EXPECT_TRUE(is_virtual(torch::embedding(weight, ids)));
  // A selection by a known mask has a known length.
  EXPECT_EQ(weight.narrow(0, 0, 12).view({2, 6, 64}).index({mask}).size(0), 11);
  EXPECT_EQ(weight.narrow(0, 0, 2).narrow(1, 0, 6).masked_select(mask).size(0), 11);
}

TEST(VirtualKernels, ReadingWhatWasNeverComputedNamesTheOperator) {
  const VirtualRegion region;
  const at::Tensor x = torch::empty({kWide});
  EXPECT_USER_ERROR(x.sum().item<float>(), "aten::_local_scalar_dense reads a value that was never computed");
  EXPECT_USER_ERROR(torch::equal(x, x), "aten::equal reads a value that was never computed");
  EXPECT_USER_ERROR(torch::nonzero(x), "aten::nonzero reads a value that was never computed");
  EXPECT_USER_ERROR(x.index({x > 0}), "aten::index.Tensor reads a value that was never computed");
  EXPECT_USER_ERROR(x.masked_select(x > 0), "aten::masked_select reads a value that was never computed");
}

TEST(VirtualKernels, AnUnknownWriteMakesAKnownTensorUnknown) {
  const VirtualRegion region;
  const at::Tensor counter = torch::zeros({});
  counter.add_(1);
  EXPECT_EQ(counter.item<float>(), 1);
  const at::Tensor view = counter.view({1});
  view.add_(torch::empty({kWide}).sum());
  EXPECT_USER_ERROR(counter.item<float>(), "never computed");
}

TEST(VirtualKernels, TheProgramIsLeftAsItWas) {
  const at::Tensor step = torch::full({}, 7.0);
  const at::Tensor weight = torch::ones({kWide});
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  {
    VirtualRegion region;
    step.add_(1);
    EXPECT_EQ(step.item<float>(), 8);  // inside, the counter counts
    weight.mul_(2);
    torch::dropout(weight, 0.5, true);
    torch::rand({3});
    region.kernels().restore();
    region.kernels().restore();  // idempotent
  }
  EXPECT_EQ(step.item<float>(), 7);
  EXPECT_TRUE(torch::equal(weight, torch::ones({kWide})));
  EXPECT_TRUE(torch::equal(generator.get_state(), state));
}

TEST(VirtualKernels, TheProgramSaysWhatIsKnown) {
  const at::Tensor image = torch::ones({kWide});
  const at::Tensor scale = torch::ones({});
  VirtualRegion region;
  EXPECT_FALSE(region.kernels().is_known(image));
  EXPECT_TRUE(region.kernels().is_known(scale));
  region.kernels().mark_known(image);
  region.kernels().mark_unknown(scale);
  EXPECT_EQ(image.sum().item<float>(), kWide);
  EXPECT_USER_ERROR(scale.item<float>(), "never computed");
}

TEST(VirtualKernels, RandomDrawsChangeTheGenerator) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor x = torch::ones({1 << 20});
  const at::Tensor small = torch::ones({2000});
  torch::manual_seed(3);
  torch::dropout(small, 0.5, true);
  const at::Tensor real = generator.get_state();
  VirtualRegion region;
  torch::manual_seed(3);
  torch::dropout(small, 0.5, true);
  EXPECT_TRUE(torch::equal(generator.get_state().clone(), real)) << "a small draw goes on as the real one";
  const at::Tensor before = generator.get_state();
  torch::native_dropout(x, 0.0, true);
  torch::native_dropout(x, 0.5, false);
  EXPECT_TRUE(torch::equal(generator.get_state(), before)) << "nothing is drawn";
  torch::native_dropout(x, 0.5, true);
  EXPECT_FALSE(torch::equal(generator.get_state(), before));
}

TEST(VirtualKernels, StoragesGrow) {
  const VirtualRegion region;
  at::Tensor x = torch::empty({kWide});
  x.resize_({kWide, 1 << 20});
  EXPECT_EQ(x.storage().nbytes(), size_t{1} << 38);
  EXPECT_TRUE(is_virtual(x));
}

TEST(VirtualKernels, TensorsBecomeWindowsOnOtherStorages) {
  const VirtualRegion region;
  const at::Tensor x = torch::empty({64, kWide});
  at::Tensor window = torch::empty({0});
  window.set_(x.t());
  EXPECT_EQ(window.sizes(), (std::vector<int64_t>{kWide, 64}));
  EXPECT_TRUE(window.is_alias_of(x));
  window.set_(x.storage(), 8, {2, 3}, {1, 2});
  EXPECT_EQ(window.strides(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(window.storage_offset(), 8);
  window.set_(x.storage());
  EXPECT_EQ(window.numel(), 64 * kWide);
}

TEST(VirtualKernels, ResizingAnOutTensorIsRefused) {
  const VirtualRegion region;
  const at::Tensor x = torch::empty({kWide});
  at::Tensor right = torch::empty({kWide});
  at::Tensor wrong = torch::empty({0});
  torch::add_out(right, x, x);
  EXPECT_USER_ERROR(torch::add_out(wrong, x, x), "aten::add.out resizes its out= tensor");
}

TEST(VirtualKernels, CallsAreCheap) {
  const VirtualRegion region;
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::empty({1 << 12, 1 << 12});
  const at::Tensor w = torch::empty({1 << 12});
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    constexpr int kCalls = 6 * 200;
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < 200; ++k) {
      torch::mm(x, x).add_(x);
      torch::silu(x.t());
      torch::native_layer_norm(x, {1 << 12}, w, w, 1e-5);
      torch::mul(x, w);
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kCalls);
  }
  RecordProperty("microseconds_a_call", std::to_string(best * 1e6));
  EXPECT_LT(best, 20e-6);
}

TEST(VirtualRegion, AModelIsBuiltWithoutMemoryAndMaterialisedTensorByTensor) {
  torch::nn::Linear layer(nullptr);
  at::Tensor tied;
  {
    const VirtualRegion region;
    layer = torch::nn::Linear(1 << 20, 1 << 20);  // 4 TiB
    torch::nn::init::normal_(layer->bias);
    tied = layer->bias.detach();
  }
  EXPECT_TRUE(is_virtual(layer->weight));
  EXPECT_TRUE(is_virtual(layer->bias));
  EXPECT_THROW(layer->bias.sum(), c10::Error);  // outside a region an unmaterialised tensor is an error, not zeros
  materialise(layer->bias);
  {
    const torch::NoGradGuard no_grad;
    layer->bias.fill_(2);
  }
  EXPECT_EQ(tied.mean().item<float>(), 2);
  EXPECT_TRUE(layer->bias.requires_grad());
  EXPECT_TRUE(is_virtual(layer->weight));
}

TEST(VirtualRegion, RegionsDoNotNest) {
  const VirtualRegion region;
  EXPECT_USER_ERROR(VirtualRegion(), "a virtual region is opened inside another one");
}

}  // namespace
}  // namespace stepc
