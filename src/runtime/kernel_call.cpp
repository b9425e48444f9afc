#include "runtime/kernel_call.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"

namespace stepc {

KernelCall::KernelCall(const Graph& group, KernelCompiler& compiler) : kernel_(compiler.compile(lower(group))) {
  for (const GraphOutput& output : group.outputs) outputs_.push_back(group.type(output.tensor));
}

bool KernelCall::may_share(size_t input, size_t output) const {
  const std::pair<uint32_t, uint32_t> pair(static_cast<uint32_t>(input), static_cast<uint32_t>(output));
  return std::ranges::find(kernel_->in_place, pair) != kernel_->in_place.end();
}

void KernelCall::run(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> dense;  // keeps copies alive
  std::vector<void*> buffers;
  for (const at::Tensor& input : inputs) {
    dense.push_back(input.contiguous());
    buffers.push_back(const_cast<void*>(dense.back().const_data_ptr()));  // NOLINT: the kernel only reads inputs
  }
  outputs.resize(outputs_.size());
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].defined()) outputs[o] = at::empty(outputs_[o].shape, scalar_type_of(outputs_[o].dtype));
    buffers.push_back(outputs[o].mutable_data_ptr());
  }
  const at::Tensor scratch =
      kernel_->scratch_bytes == 0 ? at::Tensor() : at::empty({kernel_->scratch_bytes}, at::kByte);
  void* memory = scratch.defined() ? scratch.mutable_data_ptr() : nullptr;
  for (const KernelPhase& phase : kernel_->phases)
    at::parallel_for(0, phase.items, std::max<int64_t>(1, phase.grain),
                     [&](int64_t begin, int64_t end) { phase.run(buffers.data(), begin, end, memory); });
}

}  // namespace stepc
