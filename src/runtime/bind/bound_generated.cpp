// Generated kernels and copies.
#include <algorithm>

#include <ATen/Parallel.h>

#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

class Generated final : public BoundKernel {
 public:
  Generated(const Instruction& instruction, std::shared_ptr<const Kernel> kernel, const LoopProgram& program)
      : instruction_(instruction), kernel_(std::move(kernel)), operands_(instruction.reads) {
    operands_.insert(operands_.end(), instruction.writes.begin(), instruction.writes.end());
    buffers_.resize(operands_.size());
    is_row_ = is_one_row(program);
  }
  void run(RunState& state) override {
    for (size_t i = 0; i < operands_.size(); ++i) buffers_[i] = state.operands.data(operands_[i]);
    for (const KernelPhase& phase : kernel_->phases) run_items(state, phase, 0, phase.items);
  }

  [[nodiscard]] int64_t chunks() const override { return is_row_ ? (items() + kItemsOfChunk - 1) / kItemsOfChunk : 1; }
  void run_chunk(RunState& state, int64_t chunk) override {
    for (size_t i = 0; i < operands_.size(); ++i) buffers_[i] = state.operands.data(operands_[i]);
    const auto [begin, end] = made_by(chunk, 0);
    run_items(state, kernel_->phases.front(), begin, end);
  }
  [[nodiscard]] Elements made_by(int64_t chunk, size_t /*write*/) const override {
    return {chunk * kItemsOfChunk, std::min(items(), (chunk + 1) * kItemsOfChunk)};
  }

 private:
  static constexpr int64_t kItemsOfChunk = int64_t{1} << 16;

  // Whether each item computes one element of every result, in the order of the items.
  static bool is_one_row(const LoopProgram& program) {
    if (program.phases.size() != 1) return false;
    const LoopPhase& phase = program.phases.front();
    return std::ranges::all_of(
               phase.instructions,
               [&](const LoopInstruction& one) { return one.op != LoopOp::kStore || one.index == Affine::of(0); }) &&
           phase.variables.front().kind == LoopVariable::Kind::kItem;
  }
  [[nodiscard]] int64_t items() const { return kernel_->phases.front().items; }
  void run_items(RunState& state, const KernelPhase& phase, int64_t first, int64_t last) {
    std::byte* const scratch = state.scratch_of(instruction_);
    at::parallel_for(first, last, std::max<int64_t>(1, phase.grain),
                     [&](int64_t begin, int64_t end) { phase.run(buffers_.data(), begin, end, scratch); });
  }

  const Instruction& instruction_;
  std::shared_ptr<const Kernel> kernel_;
  std::vector<OperandId> operands_;
  std::vector<void*> buffers_;
  bool is_row_ = false;
};

// On a device.
class GeneratedOnDevice final : public BoundKernel {
 public:
  GeneratedOnDevice(const Instruction& instruction, std::shared_ptr<DeviceProgram> program)
      : instruction_(instruction), program_(std::move(program)), operands_(instruction.reads) {
    operands_.insert(operands_.end(), instruction.writes.begin(), instruction.writes.end());
    arguments_.resize(operands_.size() + 1);
  }
  void run(RunState& state) override {
    for (size_t i = 0; i < operands_.size(); ++i) arguments_[i] = state.operands.data(operands_[i]);
    arguments_.back() = state.scratch_of(instruction_);
    program_->launch(arguments_);
  }

 private:
  const Instruction& instruction_;
  std::shared_ptr<DeviceProgram> program_;
  std::vector<OperandId> operands_;
  std::vector<void*> arguments_;  // scratch memory last
};

// A dimension of stride 0 is written once.
class Copy final : public BoundKernel {
 public:
  explicit Copy(const Instruction& instruction)
      : from_(instruction.reads[0]),
        to_(instruction.writes[0]),
        is_beside_(instruction.attrs.find("non_blocking") != nullptr) {}
  void run(RunState& state) override {
    at::Tensor from = state.operands[from_];
    at::Tensor to = state.operands[to_];
    for (int64_t d = 0; d < to.dim(); ++d) {
      if (to.stride(d) != 0 || to.size(d) == 0) continue;
      to = to.narrow(d, 0, 1);
      from = from.narrow(d, 0, 1);
    }
    // Memory that is not page-locked has been read when the call returns.
    to.copy_(from, is_beside_ || (!to.is_cpu() && from.is_cpu() && !from.is_pinned()));
  }

 private:
  OperandId from_, to_;
  bool is_beside_;  // asynchronous, between host and device
};

}  // namespace

std::unique_ptr<BoundKernel> bind_generated(const Instruction& instruction, const KernelParts& parts) {
  if (parts.device_programs != nullptr)
    return std::make_unique<GeneratedOnDevice>(instruction, parts.device_programs->at(instruction.program));
  return std::make_unique<Generated>(instruction, parts.programs[instruction.program],
                                     parts.schedule.programs[instruction.program]);
}
std::unique_ptr<BoundKernel> bind_copy(const Instruction& instruction, const KernelParts&) {
  return std::make_unique<Copy>(instruction);
}

std::vector<TensorLayout> layouts_of(const Schedule& schedule, const std::vector<OperandId>& operands) {
  std::vector<TensorLayout> out;
  for (OperandId id : operands) {
    const Operand& operand = schedule.operands[id.index()];
    out.push_back({{operand.dtype, operand.sizes}, operand.strides});
  }
  return out;
}

}  // namespace stepc
