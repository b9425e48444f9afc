// Attention, and the linear layer with its cross-entropy, on the blocked kernels, which read their operands as they
// lie.
#include "base/check.h"
#include "kernels/kernel_choice.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

blocked::HeadStrides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }
blocked::HeadTensor read(const at::Tensor& x) { return {x.const_data_ptr(), strides_of(x)}; }
blocked::HeadResult write(const at::Tensor& x) { return {x.mutable_data_ptr(), strides_of(x)}; }

class AttentionKernel final : public BoundKernel {
 public:
  AttentionKernel(const Instruction& instruction, const KernelParts& parts, BoundAttention bound)
      : instruction_(instruction),
        kernels_(parts.micro_kernels),
        threads_(parts.schedule.threads),
        bound_(std::move(bound)) {}

  void run(RunState& state) override {
    const auto operand = [&](size_t i) -> const at::Tensor& { return state.operands[instruction_.reads[i]]; };
    const size_t first = bound_.backward ? 1 : 0;
    blocked::Attention call = bound_.call;
    call.q = read(operand(first));
    call.k = read(operand(first + 1));
    call.v = read(operand(first + 2));
    const size_t mask = bound_.backward ? 6 : 3;
    bind_mask(call.mask, mask, operand);
    const auto result = [&](size_t w) { return write(state.operands[instruction_.writes[w]]); };
    std::byte* const scratch = state.scratch_of(instruction_);
    if (!bound_.backward) {
      auto* sums = static_cast<float*>(state.operands.data(instruction_.writes[1]));
      return blocked::attention(call, result(0), sums, kernels_, threads_, scratch);
    }
    const auto* sums = operand(5).const_data_ptr<float>();
    blocked::attention_backward(call, {read(operand(0)), read(operand(4)), sums, result(0), result(1), result(2)},
                                kernels_, threads_, scratch);
  }

 private:
  // The operand at that place: a mask, or documents and their places.
  template <class Operand>
  void bind_mask(blocked::AttentionMask& mask, size_t place, const Operand& operand) const {
    const size_t reads = instruction_.reads.size();
    if (mask.kind != blocked::AttentionMask::Kind::kDocuments) {
      if (reads > place) mask.data = operand(place).const_data_ptr();
      return;
    }
    blocked::AttentionDocuments& documents = mask.documents;
    blocked::TokenNumbers* const to[] = {&documents.of_queries, &documents.of_keys, &documents.query_places,
                                         &documents.key_places};
    for (size_t i = place; i < reads; ++i) to[i - place]->data = operand(i).template const_data_ptr<int64_t>();
  }

  const Instruction& instruction_;
  const blocked::MicroKernels& kernels_;
  int threads_;
  BoundAttention bound_;
};

class LossKernel final : public BoundKernel {
 public:
  LossKernel(const Instruction& instruction, const KernelParts& parts, BoundLoss bound)
      : instruction_(instruction),
        kernels_(parts.micro_kernels),
        threads_(parts.schedule.threads),
        bound_(std::move(bound)) {}

  void run(RunState& state) override {
    const auto data = [&](size_t i) -> const void* { return state.operands.data(instruction_.reads[i]); };
    blocked::LinearCrossEntropy call = bound_.call;
    call.hidden = data(0);
    call.weight = data(1);
    call.targets = static_cast<const int64_t*>(data(2));
    if (instruction_.reads.size() > 3) call.gradient = static_cast<const float*>(data(3));
    if (instruction_.reads.size() > 4) call.sum_gradient = static_cast<const float*>(data(4));
    const auto result = [&](size_t w) { return state.operands.data(instruction_.writes[w]); };
    call.loss = static_cast<float*>(result(0));
    call.logp_sum = static_cast<float*>(result(1));
    if (bound_.wants_hidden) call.hidden_gradient = result(2);
    if (bound_.wants_weight) call.weight_gradient = result(3);
    blocked::linear_cross_entropy(call, kernels_, threads_, state.scratch_of(instruction_));
  }

 private:
  const Instruction& instruction_;
  const blocked::MicroKernels& kernels_;
  int threads_;
  BoundLoss bound_;
};

}  // namespace

std::unique_ptr<BoundKernel> bind_attention(const Instruction& instruction, const KernelParts& parts) {
  auto bound = bind_attention(instruction.op, instruction.attrs, layouts_of(parts.schedule, instruction.reads));
  USER_CHECK(bound && bound->copied.empty(), "the blocked {} does not take its operands", instruction.op);
  return std::make_unique<AttentionKernel>(instruction, parts, std::move(*bound));
}

std::unique_ptr<BoundKernel> bind_loss(const Instruction& instruction, const KernelParts& parts) {
  auto bound = bind_loss(instruction.attrs, layouts_of(parts.schedule, instruction.reads), parts.schedule.features);
  USER_CHECK(bound && bound->copied.empty(), "the blocked {} does not take its operands", instruction.op);
  return std::make_unique<LossKernel>(instruction, parts, std::move(*bound));
}

}  // namespace stepc
