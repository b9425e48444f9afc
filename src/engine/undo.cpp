#include "engine/undo.h"

#include <cstring>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace stepc {

Undo::Undo(Program& program, std::vector<at::Tensor> tensors, const std::vector<at::Generator>& generators)
    : program_(program), tensors_(std::move(tensors)), host_state_(program.save_host_state()) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  copies_.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) {
    copies_.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
    if (tensor.defined()) bytes_ += tensor.nbytes();
  }
  const auto save = [&](const at::Generator& generator) {
    generators_.emplace_back(generator, read_generator(generator));
  };
  save(at::detail::getDefaultCPUGenerator());
  for (const at::Generator& generator : generators)
    if (generator.defined()) save(generator);
}

void Undo::restore() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].defined()) tensors_[i].copy_(copies_[i]);
  copies_.clear();
  for (const auto& [generator, snapshot] : generators_) write_generator(generator, snapshot);
  program_.restore_host_state(host_state_);
}

}  // namespace stepc
