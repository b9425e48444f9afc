// Two copies of one model: `a` trains eagerly, `b` through accelerate(), with the same batches, learning rates and
// random numbers; after every step everything must be equal, bit by bit.
#pragma once

#include <functional>

#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include "base/check.h"
#include "engine/stepc.h"
#include "optim/adamw.h"
#include "optim/clip.h"

namespace stepc::test {

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  ASSERT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << what << " differs";
}

template <class Holder>
struct TwinsOf {
  using LossFn = std::function<at::Tensor(Holder&, const at::Tensor&)>;

  explicit TwinsOf(const std::function<Holder()>& make, LossFn loss = {}, at::ScalarType dtype = at::kFloat,
                   Config config = {.mode = Mode::kExact})
      : a_(make_seeded(make, dtype)), b_(make_seeded(make, dtype)), loss_(std::move(loss)) {
    if (!loss_)
      loss_ = [](Holder& model, const at::Tensor& batch) { return model->forward(batch).to(at::kFloat).pow(2).mean(); };
    optimizer_a_ = std::make_unique<optim::AdamW>(named(a_), options());
    optimizer_b_ = std::make_unique<optim::AdamW>(named(b_), options());
    step_ = std::make_unique<Accelerated<StepFn>>(
        accelerate(StepFn([this](const at::Tensor& batch) { return train(b_, *optimizer_b_, batch); }), {b_},
                   {*optimizer_b_}, config));
  }

  // Leaves the process's random generator alone, so that several twins may run on several threads.
  void do_not_seed() { seeded_ = false; }

  // Trains both for `steps` steps with batch(i), comparing after each.
  void run(int steps, const std::function<at::Tensor(int)>& batch) {
    for (int i = 0; i < steps; ++i) {
      const at::Tensor x = batch(i);
      optimizer_a_->set_lr(1e-2 / (1 + calls_));
      optimizer_b_->set_lr(1e-2 / (1 + calls_));
      ++calls_;
      if (seeded_) torch::manual_seed(1000 + i);
      const auto [loss_a, norm_a] = train(a_, *optimizer_a_, x);
      const at::Tensor generator_a = at::detail::getDefaultCPUGenerator().get_state();
      if (seeded_) torch::manual_seed(1000 + i);
      const auto [loss_b, norm_b] = (*step_)(x);
      if (seeded_) expect_same_bits(generator_a, at::detail::getDefaultCPUGenerator().get_state(), "generator");
      expect_same_bits(loss_a, loss_b, str("loss at step {}", i));
      expect_same_bits(norm_a, norm_b, str("gradient norm at step {}", i));
      EXPECT_FALSE(loss_b.requires_grad());
      losses_.emplace_back(loss_a.detach().clone(), loss_b);
      compare();
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (size_t i = 0; i < losses_.size(); ++i)
      expect_same_bits(losses_[i].first, losses_[i].second, str("kept loss {}", i));
  }

  void compare() {
    const auto pa = named(a_);
    const auto pb = named(b_);
    for (size_t i = 0; i < pa.size(); ++i) {
      expect_same_bits(pa[i].second, pb[i].second, pa[i].first);
      expect_same_bits(pa[i].second.grad(), pb[i].second.grad(), "gradient of " + pa[i].first);
    }
    for (size_t i = 0; i < a_->buffers().size(); ++i) expect_same_bits(a_->buffers()[i], b_->buffers()[i], "buffer");
    const auto sa = optimizer_a_->named_state();
    const auto sb = optimizer_b_->named_state();
    for (size_t i = 0; i < sa.size(); ++i) expect_same_bits(sa[i].second, sb[i].second, sa[i].first);
  }

  const Stats& stats() const { return step_->stats(); }
  std::string report() const { return step_->report(); }
  std::string graph_text() const { return step_->graph_text(); }
  Holder& a() { return a_; }
  Holder& b() { return b_; }

 private:
  using Outputs = std::tuple<at::Tensor, at::Tensor>;
  using StepFn = std::function<Outputs(const at::Tensor&)>;

  static Holder make_seeded(const std::function<Holder()>& make, at::ScalarType dtype) {
    torch::manual_seed(7);
    Holder model = make();
    model->to(dtype);
    return model;
  }
  static std::vector<std::pair<std::string, at::Tensor>> named(Holder& model) {
    std::vector<std::pair<std::string, at::Tensor>> out;
    for (auto& item : model->named_parameters())
      if (item.value().requires_grad()) out.emplace_back(item.key(), item.value());
    return out;
  }
  static optim::AdamWOptions options() {
    optim::AdamWOptions options;
    options.lr = 1e-2;
    options.weight_decay = 0.1;
    return options;
  }
  Outputs train(Holder& model, optim::AdamW& optimizer, const at::Tensor& batch) {
    at::Tensor loss = loss_(model, batch);
    loss.backward();
    std::vector<at::Tensor> parameters;
    for (const auto& [key, tensor] : optimizer.parameters()) parameters.push_back(tensor);
    at::Tensor norm = optim::clip_grad_norm_(parameters, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    return {loss, norm};
  }

  Holder a_;
  Holder b_;
  LossFn loss_;
  std::unique_ptr<optim::AdamW> optimizer_a_;
  std::unique_ptr<optim::AdamW> optimizer_b_;
  std::unique_ptr<Accelerated<StepFn>> step_;
  std::vector<std::pair<at::Tensor, at::Tensor>> losses_;
  int calls_ = 0;
  bool seeded_ = true;
};

using Twins = TwinsOf<torch::nn::Sequential>;

}  // namespace stepc::test
