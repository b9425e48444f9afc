#include "engine/program/undo.h"

#include <cstring>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "engine/program/event_update.h"

namespace stepc {

namespace {
bool is_copied_as_bytes(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_non_overlapping_and_dense();
}
}  // namespace

SavedGradients::SavedGradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors) {
  for (size_t k = 0; k < keys.size(); ++k)
    if (keys[k].owner == Owner::kParameter) gradients_.emplace_back(tensors[k], tensors[k].grad());
}
void SavedGradients::restore() const {
  for (const auto& [parameter, gradient] : gradients_) set_gradient(parameter, gradient);
}

Undo::Undo(Program* program, std::vector<at::Tensor> tensors, const std::vector<at::Generator>& generators)
    : program_(program),
      tensors_(std::move(tensors)),
      host_state_(program == nullptr ? nullptr : program->save_host_state()) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::erase_if(tensors_, [](const at::Tensor& tensor) { return !tensor.defined(); });
  size_t dense = 0;
  for (const at::Tensor& tensor : tensors_) {
    bytes_ += tensor.nbytes();
    if (is_copied_as_bytes(tensor)) dense += tensor.nbytes();
  }
  bytes_of_dense_.reserve(dense);
  for (const at::Tensor& tensor : tensors_) {
    if (!is_copied_as_bytes(tensor)) {
      copies_.push_back(tensor.clone());
      continue;
    }
    const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
    bytes_of_dense_.insert(bytes_of_dense_.end(), from, from + tensor.nbytes());
  }
  const auto save = [&](const at::Generator& generator) {
    generators_.emplace_back(generator, read_generator(generator));
  };
  save(at::detail::getDefaultCPUGenerator());
  for (const at::Generator& generator : generators)
    if (generator.defined()) save(generator);
}

void Undo::add_host_state(Program& program) {
  if (program_ != nullptr) return;
  program_ = &program;
  host_state_ = program.save_host_state();
}

void Undo::add_gradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors) {
  gradients_.emplace(keys, tensors);
}

void Undo::restore() {
  if (gradients_) gradients_->restore();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::byte* from = bytes_of_dense_.data();
  size_t copy = 0;
  for (at::Tensor& tensor : tensors_) {
    if (!is_copied_as_bytes(tensor)) {
      tensor.copy_(copies_[copy++]);
      continue;
    }
    if (tensor.nbytes() != 0) std::memcpy(tensor.mutable_data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
  for (const auto& [generator, snapshot] : generators_) write_generator(generator, snapshot);
  if (program_ != nullptr) program_->restore_host_state(host_state_);
}

}  // namespace stepc
