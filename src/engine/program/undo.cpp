#include "engine/program/undo.h"

#include <cstring>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace stepc {

namespace {
bool is_copied_as_bytes(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_non_overlapping_and_dense();
}
}  // namespace

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

void Undo::restore() {
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
