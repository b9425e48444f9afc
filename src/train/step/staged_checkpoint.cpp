#include "train/step/staged_checkpoint.h"

#include <map>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"

namespace stepc::train {

namespace {
using Place = std::pair<const void*, int64_t>;  // of a tensor's elements, which may be virtual
Place place_of(const at::Tensor& tensor) { return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset()}; }
}  // namespace

uint64_t staged_bytes(const NamedTensors& weights, const NamedTensors& state) {
  std::set<Place> places;
  uint64_t bytes = 0;
  for (const NamedTensors* list : {&weights, &state})
    for (const auto& [name, tensor] : *list)
      if (places.insert(place_of(tensor)).second) bytes += tensor.nbytes();
  return bytes;
}

uint64_t saved_bytes(const NamedTensors& weights, const NamedTensors& state) {
  return bytes_of(weights) + bytes_of(state);
}

StagedCheckpoint::StagedCheckpoint(const NamedTensors& weights, const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  std::map<Place, at::Tensor> copies;
  const auto staged = [&](const at::Tensor& tensor) {
    at::Tensor& copy = copies[place_of(tensor)];
    if (!copy.defined()) copy = at::zeros(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
    return copy;
  };
  for (const auto& [name, tensor] : weights) weights_.emplace_back(name, staged(tensor));
  for (const auto& [name, tensor] : state) {
    state_is_weight_.push_back(copies.contains(place_of(tensor)));
    state_.emplace_back(name, staged(tensor));
  }
  bytes_ = staged_bytes(weights, state);
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
