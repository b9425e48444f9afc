// PyTorch's own C++ optimizers keep step counts and learning rates as host numbers: a replay must see them change.
#include <functional>

#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "engine/stepc.h"
#include "tests/engine/twins.h"

namespace stepc {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Case {
  const char* name;
  MakeOptimizer make;
};

template <class Optimizer, class Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Case> cases() {
  namespace o = torch::optim;
  return {{"sgd", maker<o::SGD>(o::SGDOptions(0.1))},
          {"momentum", maker<o::SGD>(o::SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
          {"nesterov", maker<o::SGD>(o::SGDOptions(0.1).momentum(0.9).nesterov(true))},
          {"adam", maker<o::Adam>(o::AdamOptions(0.01))},
          {"amsgrad", maker<o::Adam>(o::AdamOptions(0.01).amsgrad(true).weight_decay(0.1))},
          {"adamw", maker<o::AdamW>(o::AdamWOptions(0.01).weight_decay(0.1))},
          {"adagrad", maker<o::Adagrad>(o::AdagradOptions(0.1).lr_decay(0.01))},
          {"rmsprop", maker<o::RMSprop>(o::RMSpropOptions(0.01).momentum(0.5).centered(true))}};
}

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
}

at::Tensor train(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, const at::Tensor& x) {
  at::Tensor loss = model->forward(x).pow(2).mean();
  loss.backward();
  optim::clip_grad_norm_(model->parameters(), 1.0);  // PyTorch's own reads the norm on the host and drops it
  optimizer.step();
  optimizer.zero_grad();
  return loss;
}

class TorchOptimizer : public ::testing::TestWithParam<Case> {};

TEST_P(TorchOptimizer, TwentyStepsWithAScheduleAreBitEqual) {
  torch::nn::Sequential a = make_model();
  torch::nn::Sequential b = make_model();
  const auto oa = GetParam().make(a->parameters());
  const auto ob = GetParam().make(b->parameters());
  auto step = accelerate([&](const at::Tensor& x) { return train(b, *ob, x); }, {b}, {ob}, {.mode = Mode::kExact});
  for (int i = 0; i < 20; ++i) {
    // Flat while it is recorded, then a slope.
    if (i > 8)
      for (auto* optimizer : {oa.get(), ob.get()})
        optimizer->param_groups()[0].options().set_lr(0.05 / static_cast<double>(i));
    const at::Tensor x = torch::randn({4, 8});
    test::expect_same_bits(train(a, *oa, x), step(x), "loss at step " + std::to_string(i));
    for (size_t p = 0; p < a->parameters().size(); ++p)
      test::expect_same_bits(a->parameters()[p], b->parameters()[p], "parameter at step " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(step.stats().plans, 1U);
  EXPECT_GE(step.stats().replays, 14U);
  EXPECT_GT(step.stats().shadow_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(All, TorchOptimizer, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stepc
