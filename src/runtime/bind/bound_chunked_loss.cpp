// The linear layer with its cross-entropy on a device, a chunk of tokens at a time: ATen's matmuls, and between them a
// generated kernel on the rows of the chunk's logits.
#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ops/rules/shape_rules.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

using at::Tensor;

// Adds left x right to `sums`, or where it `begins` them writes it there; the sums may be wider.
void add_product(Tensor sums, const Tensor& left, const Tensor& right, bool begins) {
  const at::Scalar beta = begins ? 0 : 1;
  const at::ScalarType wide = sums.scalar_type();
  if (wide == left.scalar_type())
    at::addmm_out(sums, sums, left, right, beta);
  else if (sums.is_cuda())
    at::addmm_out(sums, sums, left, right, wide, beta);
  else  // only CUDA's library has such a product
    at::addmm_out(sums, sums, left.to(wide), right.to(wide), beta);
}

class ChunkedLossKernel final : public BoundKernel {
 public:
  ChunkedLossKernel(const Instruction& instruction, const KernelParts& parts)
      : instruction_(instruction),
        schedule_(parts.schedule),
        program_(parts.device_programs->at(instruction.loss->program)),
        is_backward_(instruction.reads.size() > 3),
        wants_weight_(is_backward_ && !instruction.attrs.get<bool>("frozen")) {
    if (instruction.loss->last != kNoProgram) last_ = parts.device_programs->at(instruction.loss->last);
  }

  void run(RunState& state) override {
    const Tensor& hidden = state.operands[instruction_.reads[0]];
    const Tensor& weight = state.operands[instruction_.reads[1]];
    const int64_t tokens = hidden.size(0), chunk = instruction_.loss->tokens;
    // Both lie in the instruction's scratch memory, which serves what is asked for while it runs.
    const Tensor chunk_logits = at::empty({chunk, weight.size(0)}, hidden.options());
    const Tensor sums = wants_weight_ ? weight_sums(state, hidden.scalar_type(), chunk < tokens) : Tensor();
    for (int64_t first = 0; first < tokens; first += chunk) {
      const int64_t rows = std::min(chunk, tokens - first);
      const Tensor some = hidden.narrow(0, first, rows);
      Tensor logits = chunk_logits.narrow(0, 0, rows);
      at::mm_out(logits, some, weight.t());
      run_rows(state, logits, first, rows == chunk ? *program_ : *last_);
      if (!is_backward_) continue;
      Tensor gradient = state.operands[instruction_.writes[2]].narrow(0, first, rows);
      at::mm_out(gradient, logits, weight);
      if (wants_weight_) add_product(sums, logits.t(), some, first == 0);
    }
    if (!wants_weight_) return;
    const Tensor& result = state.operands[instruction_.writes[3]];
    if (!sums.is_same(result)) result.copy_(sums);
  }

 private:
  // Where the weight's gradient is summed: in its place, but for sums of several chunks in a narrow type.
  Tensor weight_sums(RunState& state, at::ScalarType type, bool has_chunks) const {
    const Tensor& result = state.operands[instruction_.writes[3]];
    const at::ScalarType wide = scalar_type_of(stepc::wide(dtype_of(type)));
    if (!has_chunks || result.scalar_type() == wide) return result;
    return at::empty(result.sizes(), result.options().dtype(wide));
  }

  void run_rows(RunState& state, const Tensor& logits, int64_t first, DeviceProgram& program) {
    arguments_ = {logits.data_ptr()};
    const auto from = [&](OperandId id) {
      const int64_t bytes = first * size_of(schedule_.operands[id.index()].dtype);
      arguments_.push_back(static_cast<std::byte*>(state.operands.data(id)) + bytes);
    };
    std::for_each(instruction_.reads.begin() + 2, instruction_.reads.end(), from);
    std::for_each(instruction_.writes.begin(), instruction_.writes.begin() + 2, from);
    if (is_backward_) arguments_.push_back(logits.data_ptr());
    arguments_.push_back(nullptr);  // it has no scratch memory
    program.launch(arguments_);
  }

  const Instruction& instruction_;
  const Schedule& schedule_;
  std::shared_ptr<DeviceProgram> program_, last_;
  bool is_backward_, wants_weight_;
  std::vector<void*> arguments_;
};

}  // namespace

std::unique_ptr<BoundKernel> bind_chunked_loss(const Instruction& instruction, const KernelParts& parts) {
  USER_CHECK(parts.device_programs != nullptr, "{} in chunks runs on a device alone", instruction.op);
  return std::make_unique<ChunkedLossKernel>(instruction, parts);
}

}  // namespace stepc
