#include "train/staged_checkpoint.h"

#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"

namespace stepc::train {

StagedCheckpoint::StagedCheckpoint(const NamedTensors& weights, const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  std::map<const void*, at::Tensor> copies;  // by the address of the original
  const auto staged = [&](const at::Tensor& tensor) {
    at::Tensor& copy = copies[tensor.const_data_ptr()];
    if (!copy.defined()) {
      copy = at::zeros(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
      bytes_ += copy.nbytes();
    }
    return copy;
  };
  for (const auto& [name, tensor] : weights) weights_.emplace_back(name, staged(tensor));
  for (const auto& [name, tensor] : state) {
    state_is_weight_.push_back(copies.contains(tensor.const_data_ptr()));
    state_.emplace_back(name, staged(tensor));
  }
}

void StagedCheckpoint::copy(const NamedTensors& weights, const NamedTensors& state) {
  INTERNAL_CHECK_EQ(weights.size(), weights_.size());
  INTERNAL_CHECK_EQ(state.size(), state_.size());
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) weights_[i].second.copy_(weights[i].second);
  for (size_t i = 0; i < state.size(); ++i)
    if (!state_is_weight_[i]) state_[i].second.copy_(state[i].second);
}

}  // namespace stepc::train
