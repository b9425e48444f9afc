#include "runtime/kernel_call.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace stepc {

bool KernelCall::may_share(size_t input, size_t output) const {
  const std::pair<uint32_t, uint32_t> pair(static_cast<uint32_t>(input), static_cast<uint32_t>(output));
  return std::ranges::find(kernel_->in_place, pair) != kernel_->in_place.end();
}

void KernelCall::run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                     std::byte* scratch) const {
  std::vector<void*> buffers;
  buffers.reserve(inputs.size() + outputs.size());
  for (const at::Tensor& input : inputs)
    buffers.push_back(const_cast<void*>(input.const_data_ptr()));  // NOLINT: the kernel only reads inputs
  for (const at::Tensor& output : outputs) buffers.push_back(output.mutable_data_ptr());
  for (const KernelPhase& phase : kernel_->phases)
    at::parallel_for(0, phase.items, std::max<int64_t>(1, phase.grain),
                     [&](int64_t begin, int64_t end) { phase.run(buffers.data(), begin, end, scratch); });
}

}  // namespace stepc
