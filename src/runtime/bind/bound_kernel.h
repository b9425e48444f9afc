// One instruction's kernel with everything resolved before the first run: machine code, operators, arguments, layouts
// of operands. Private to runtime/; the executor owns kernels and runs them in order.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "aten/device_hook.h"
#include "blocked/micro_kernels.h"
#include "codegen/codegen.h"
#include "comm/ranks.h"
#include "runtime/bind/bound_operands.h"
#include "schedule/schedule.h"

namespace stepc {

// The state that the kernels of a run share.
struct RunState {
  BoundOperands& operands;
  InstructionMemory& memory;
  std::vector<c10::IValue> numbers;       // numbers that this run has read on the host
  std::vector<at::Generator> generators;  // generators of this run
  torch::jit::Stack stack = {};
  std::map<uint32_t, InFlight> in_flight = {};  // exchanges in progress, by mark

  // The planned scratch memory of an instruction's kernel. ATen calls ask the allocator instead, which serves them from
  // the same memory (runtime/instruction_memory.h).
  [[nodiscard]] std::byte* scratch_of(const Instruction& instruction) const {
    return operands.arena_at(instruction.scratch.offset);
  }
};

class BoundKernel {
 public:
  virtual ~BoundKernel() = default;
  virtual void run(RunState& state) = 0;
  // The number of chunks of a kernel that can make its results a chunk at a time. A chunk reads nothing of what
  // the kernel replaces beyond its own elements. All chunks, in order, are one run.
  [[nodiscard]] virtual int64_t chunks() const { return 1; }
  virtual void run_chunk(RunState& /*state*/, int64_t /*chunk*/) {}
  // The elements of a contiguous result that a chunk makes; their end is a multiple of 1024, except for the last
  // chunk. Empty: unknown for every chunk.
  struct Elements {
    int64_t begin = 0, end = 0;
  };
  [[nodiscard]] virtual Elements made_by(int64_t /*chunk*/, size_t /*write*/) const { return {}; }
  // Sets argument `arg` to `number` for all later runs; only for ATen calls.
  virtual void supply(size_t /*arg*/, const c10::IValue& /*number*/) {}
};

struct KernelParts {
  const Schedule& schedule;
  const std::vector<std::shared_ptr<const Kernel>>& programs;  // compiled, in the order of schedule.programs
  const blocked::MicroKernels& micro_kernels;
  Ranks* ranks = nullptr;  // of a step on several ranks
  // Of a Graph on a device, in place of the compiled ones.
  const std::vector<std::shared_ptr<DeviceProgram>>* device_programs = nullptr;

  // Where rows of the op table run.
  [[nodiscard]] c10::Device device() const {
    return schedule.device.empty() ? c10::Device(c10::kCPU) : c10::Device(schedule.device);
  }
};

// Throws UserError if the instruction names something that this LibTorch lacks.
std::unique_ptr<BoundKernel> bind_generated(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_nodes(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_matmul(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_attention(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_loss(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_chunked_loss(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_op(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_aten(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_collective(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_wait(const Instruction& instruction, const KernelParts& parts);
std::unique_ptr<BoundKernel> bind_copy(const Instruction& instruction, const KernelParts& parts);

// The layouts of operands, in the form by which kernels are chosen.
std::vector<TensorLayout> layouts_of(const Schedule& schedule, const std::vector<OperandId>& operands);

}  // namespace stepc
