// One instruction's kernel with everything resolved before the first run: machine code, operators, arguments, how
// operands lie. Private to runtime/; the executor owns these and runs them in order.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "blocked/micro_kernels.h"
#include "codegen/codegen.h"
#include "comm/ranks.h"
#include "runtime/bind/bound_operands.h"
#include "schedule/schedule.h"

namespace stepc {

// What the kernels of a run share.
struct RunState {
  BoundOperands& operands;
  InstructionMemory& memory;
  std::vector<c10::IValue> numbers;       // what this run has read on the host
  std::vector<at::Generator> generators;  // of this run
  torch::jit::Stack stack = {};
  std::map<uint32_t, InFlight> in_flight = {};  // exchanges that have begun, by mark

  // What an instruction's kernel works in, as the plan has it. ATen calls ask the allocator instead, which answers from
  // the same memory (runtime/instruction_memory.h).
  [[nodiscard]] std::byte* scratch_of(const Instruction& instruction) const {
    return operands.arena() + instruction.scratch.offset;
  }
};

class BoundKernel {
 public:
  virtual ~BoundKernel() = default;
  virtual void run(RunState& state) = 0;
  // Of a kernel that can make its results a stretch at a time, each of them reading of what it replaces nothing beyond
  // that stretch: how many there are. All of them, in order, are a run.
  [[nodiscard]] virtual int64_t stretches() const { return 1; }
  virtual void run_stretch(RunState& /*state*/, int64_t /*stretch*/) {}
  // The elements of a contiguous result that a stretch makes, a multiple of 1024 before the last one's end. Empty: of
  // none can it be said.
  struct Elements {
    int64_t begin = 0, end = 0;
  };
  [[nodiscard]] virtual Elements made_by(int64_t /*stretch*/, size_t /*write*/) const { return {}; }
  // From now on argument `arg` is `number`; of ATen calls alone.
  virtual void supply(size_t /*arg*/, const c10::IValue& /*number*/) {}
};

struct KernelParts {
  const Schedule& schedule;
  const std::vector<std::shared_ptr<const Kernel>>& programs;  // compiled, as schedule.programs
  const blocked::MicroKernels& micro_kernels;
  Ranks* ranks = nullptr;  // of a step for several
};

// Throws UserError when the instruction names what this LibTorch does not have.
std::unique_ptr<BoundKernel> bind_generated(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_nodes(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_matmul(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_attention(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_loss(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_op(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_aten(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_collective(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_wait(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_copy(const Instruction& instruction, const KernelParts& parts);

// How an operand lies, as kernels are chosen by.
std::vector<TensorLayout> layouts_of(const Schedule& schedule, const std::vector<OperandId>& operands);

}  // namespace stepc
