#include "optim/wsam.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "optim/clip.h"

namespace stepc::optim {

Wsam::Wsam(std::shared_ptr<Optimizer> wrapped, const WsamOptions& options)
    : Optimizer("WSAM", *wrapped), wrapped_(std::move(wrapped)), options_(options) {
  check_range("rho", options.rho, 0.0, 1e6);
  check_range("gamma", options.gamma, 0.0, kBelowOne);
  check_range("epsilon", options.epsilon, 0.0, 1.0);
  if (options.max_norm) check_range("max_norm", *options.max_norm, 1e-30, 1e30);
}

void Wsam::update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) {
  INTERNAL_CHECK(false, "WSAM updates through the optimizer that it wraps");
}

void Wsam::clip() const {
  if (!options_.max_norm) return;
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : parameters_) all.push_back(parameter);
  clip_grad_norm_(all, *options_.max_norm);
}

void Wsam::ascend() {
  USER_CHECK(weights_.empty(), "WSAM: ascend() was called twice without a step() between");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> squares;
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    squares.push_back(sum_of_squares(options_.adaptive ? parameter.abs() * grad : grad));
  }
  USER_CHECK(!squares.empty(), "WSAM: no parameter has a gradient; run backward() first");
  const at::Tensor distance = options_.rho / (at::stack(squares).sum().sqrt() + options_.epsilon);

  std::vector<at::Tensor> moves(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const at::Tensor& grad = parameter.grad();
    if (grad.defined()) moves[i] = (options_.adaptive ? parameter * parameter * grad : grad) * distance;
  }
  clip();  // after the moves, which follow the gradients as they are
  weights_.resize(parameters_.size());
  grads_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (!moves[i].defined()) continue;
    grads_[i] = std::exchange(parameter.mutable_grad(), at::Tensor());
    weights_[i] = parameter.detach().clone();
    parameter.add_(moves[i]);
  }
}

void Wsam::step(const at::Tensor& skip) {
  USER_CHECK(!weights_.empty(), "WSAM: step() needs ascend() and a second backward() before it");
  const at::NoGradGuard no_grad;
  clip();
  const double alpha = options_.gamma / (1.0 - options_.gamma);
  std::vector<at::Tensor> gained(parameters_.size());  // by the gradient on the way uphill
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (weights_[i].defined()) parameter.copy_(weights_[i]);
    const at::Tensor uphill = std::exchange(parameter.mutable_grad(), grads_[i]);
    if (!uphill.defined() || !grads_[i].defined()) continue;
    if (options_.decoupled)
      gained[i] = uphill - grads_[i];
    else
      parameter.mutable_grad() = alpha * uphill + (1.0 - alpha) * grads_[i];
  }
  wrapped_->step(skip);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gained[i].defined()) continue;
    wrapped_->edit(i, [&](const at::Tensor& value) {
      const at::Tensor move = gained[i].to(value.scalar_type()) * (lr_ * alpha);
      value.sub_(skip.defined() ? at::where(skip.ne(0), at::zeros_like(move), move) : move);
    });
  }
  weights_.clear();
  grads_.clear();
}

}  // namespace stepc::optim
