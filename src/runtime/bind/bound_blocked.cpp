// Attention, and the linear layer with its cross-entropy, on the blocked kernels. Operands that lie otherwise than
// these read are copied first, into the instruction's scratch memory.
#include <algorithm>

#include <ATen/Functions.h>

#include "base/check.h"
#include "kernels/kernel_choice.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

at::Tensor workspace(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }

// The reads of a run, those that the kernel cannot take as they lie made contiguous.
class Reads {
 public:
  Reads(const std::vector<OperandId>& operands, const std::vector<uint32_t>& copied, const RunState& state) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool copies = std::ranges::find(copied, i) != copied.end();
      tensors_.push_back(copies ? state.operands[operands[i]].contiguous() : state.operands[operands[i]]);
    }
  }
  const at::Tensor& operator[](size_t i) const { return tensors_[i]; }
  [[nodiscard]] size_t size() const { return tensors_.size(); }

 private:
  std::vector<at::Tensor> tensors_;
};

blocked::HeadStrides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }
blocked::HeadTensor read(const at::Tensor& x) { return {x.const_data_ptr(), strides_of(x)}; }
blocked::HeadResult write(const at::Tensor& x) { return {x.mutable_data_ptr(), strides_of(x)}; }

class AttentionKernel final : public BoundKernel {
 public:
  AttentionKernel(const Instruction& instruction, const KernelParts& parts, BoundAttention bound)
      : instruction_(instruction),
        kernels_(parts.micro_kernels),
        threads_(parts.schedule.threads),
        bound_(std::move(bound)),
        bytes_(bound_.backward ? blocked::backward_workspace_bytes(bound_.call, threads_)
                               : blocked::workspace_bytes(bound_.call, threads_)) {}

  void run(RunState& state) override {
    const Reads x(instruction_.reads, bound_.copied, state);
    const size_t first = bound_.backward ? 1 : 0;
    blocked::Attention call = bound_.call;
    call.q = read(x[first]);
    call.k = read(x[first + 1]);
    call.v = read(x[first + 2]);
    const size_t mask = bound_.backward ? 6 : 3;
    if (x.size() > mask) call.mask.data = x[mask].const_data_ptr();
    const auto result = [&](size_t w) { return write(state.operands[instruction_.writes[w]]); };
    const at::Tensor scratch = workspace(bytes_);
    if (!bound_.backward) {
      auto* sums = static_cast<float*>(state.operands.data(instruction_.writes[1]));
      return blocked::attention(call, result(0), sums, kernels_, threads_, scratch.mutable_data_ptr());
    }
    blocked::attention_backward(call,
                                {read(x[0]), read(x[4]), x[5].const_data_ptr<float>(), result(0), result(1), result(2)},
                                kernels_, threads_, scratch.mutable_data_ptr());
  }

 private:
  const Instruction& instruction_;
  const blocked::MicroKernels& kernels_;
  int threads_;
  BoundAttention bound_;
  size_t bytes_;
};

class LossKernel final : public BoundKernel {
 public:
  LossKernel(const Instruction& instruction, const KernelParts& parts, BoundLoss bound)
      : instruction_(instruction),
        kernels_(parts.micro_kernels),
        threads_(parts.schedule.threads),
        bound_(std::move(bound)) {
    // Which results there are decides the size; where they are does not.
    blocked::LinearCrossEntropy sized = bound_.call;
    char any = 0;
    if (bound_.wants_hidden) sized.hidden_gradient = &any;
    if (bound_.wants_weight) sized.weight_gradient = &any;
    bound_.call.chunk = sized.chunk = blocked::frugal_chunk(sized);
    bytes_ = blocked::workspace_bytes(sized, threads_);
  }

  void run(RunState& state) override {
    const Reads x(instruction_.reads, bound_.copied, state);
    blocked::LinearCrossEntropy call = bound_.call;
    call.hidden = x[0].const_data_ptr();
    call.weight = x[1].const_data_ptr();
    call.targets = x[2].const_data_ptr<int64_t>();
    if (x.size() > 3) call.gradient = x[3].const_data_ptr<float>();
    if (x.size() > 4) call.sum_gradient = x[4].const_data_ptr<float>();
    const auto result = [&](size_t w) { return state.operands.data(instruction_.writes[w]); };
    call.loss = static_cast<float*>(result(0));
    call.logp_sum = static_cast<float*>(result(1));
    if (bound_.wants_hidden) call.hidden_gradient = result(2);
    if (bound_.wants_weight) call.weight_gradient = result(3);
    const at::Tensor scratch = workspace(bytes_);
    blocked::linear_cross_entropy(call, kernels_, threads_, scratch.mutable_data_ptr());
  }

 private:
  const Instruction& instruction_;
  const blocked::MicroKernels& kernels_;
  int threads_;
  BoundLoss bound_;
  size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<BoundKernel> bind_attention(const Instruction& instruction, const KernelParts& parts) {
  auto bound = bind_attention(instruction.op, instruction.attrs, layouts_of(parts.schedule, instruction.reads));
  USER_CHECK(bound.has_value(), "the blocked {} does not take its operands", instruction.op);
  return std::make_unique<AttentionKernel>(instruction, parts, std::move(*bound));
}

std::unique_ptr<BoundKernel> bind_loss(const Instruction& instruction, const KernelParts& parts) {
  auto bound = bind_loss(instruction.attrs, layouts_of(parts.schedule, instruction.reads), parts.schedule.features);
  USER_CHECK(bound.has_value(), "the blocked {} does not take its operands", instruction.op);
  return std::make_unique<LossKernel>(instruction, parts, std::move(*bound));
}

}  // namespace stepc
