#include "capture/virtual/known_masks.h"

#include <optional>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/nonzero.h>

#include "aten/virtual_device.h"
#include "aten/virtual_memory.h"

namespace stepc {

bool replace_known_masks(KnownValues& known, torch::jit::Stack* stack) {
  c10::List<std::optional<at::Tensor>> indices;
  for (const std::optional<at::Tensor>& index : stack->back().toOptionalTensorVector()) {
    const bool is_mask = index.has_value() && index->defined() &&
                         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    if (!is_mask) {
      indices.push_back(index);
      continue;
    }
    if (!known.is_known(*index)) return false;
    const at::Tensor selected = on_host(*index).nonzero();
    for (int64_t d = 0; d < selected.size(1); ++d) indices.push_back(selected.select(1, d));
  }
  stack->back() = std::move(indices);
  return true;
}

bool select_by_known_mask(KnownValues& known, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 2).toTensor();
  const at::Tensor mask = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!known.is_known(mask)) return false;
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const int64_t selected = on_host(mask).expand(sizes).nonzero().size(0);
  torch::jit::drop(*stack, 2);
  stack->emplace_back(virtual_tensor({selected}, {1}, self.scalar_type(), self.device()));
  return true;
}

}  // namespace stepc
