#include "runtime/measure_workspace.h"

#include <algorithm>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/constants.h"
#include "aten/cpu_hook.h"
#include "aten/draws_leave_no_trace.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "runtime/arena.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

// More than a call takes beside its operands, and address space alone until it does.
uint64_t room_for(const UnknownWorkspace& call) {
  uint64_t bytes = uint64_t{64} << 20;
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const TensorLayout& operand : *operands) bytes += 16 * aligned(bytes_of(operand));
  return bytes;
}

// A Schedule of this one call, its results in an arena with room for whatever else it asks for.
Schedule alone(const UnknownWorkspace& call, int threads) {
  Schedule s;
  s.threads = threads;
  Instruction instruction;
  instruction.kind = call.node.aten ? Instruction::Kind::kAten : Instruction::Kind::kOp;
  instruction.op = call.node.op;
  instruction.attrs = call.node.attrs;
  instruction.aten = call.node.aten;
  const auto add = [&](Buffer::Kind kind, const TensorLayout& layout) {
    Operand operand{BufferId(s.buffers.size()), layout.type.dtype, layout.type.shape, layout.strides, 0};
    const auto bytes = static_cast<uint64_t>(extent_of(operand) * size_of(operand.dtype));
    s.buffers.push_back({kind, bytes, s.arena_bytes, static_cast<uint32_t>(s.inputs.size()), ""});
    if (kind == Buffer::Kind::kArena) s.arena_bytes += aligned(bytes);
    s.operands.push_back(std::move(operand));
    return OperandId(s.operands.size() - 1);
  };
  for (const TensorLayout& input : call.inputs) {
    instruction.reads.push_back(add(Buffer::Kind::kInput, input));
    s.inputs.push_back({InputKind::kCaptured, str("{}", s.inputs.size()), instruction.reads.back()});
  }
  const bool overwrites = !call.node.aten && op_def(call.node.op).has(Trait::kOverwrites);
  const size_t changed = call.node.aten ? call.node.aten->writes.size() : overwrites ? 1 : 0;
  for (const TensorLayout& output : call.outputs) {
    instruction.writes.push_back(add(Buffer::Kind::kArena, output));
    const Buffer& buffer = s.buffers.back();
    if (instruction.writes.size() + changed <= call.outputs.size())
      instruction.allocations.push_back({buffer.bytes, buffer.offset, false});
  }
  const uint64_t room = room_for(call);
  instruction.scratch = {s.arena_bytes, room};
  instruction.worker_scratch = {s.arena_bytes + room, room};
  s.arena_bytes += room * static_cast<uint64_t>(std::max(threads, 1));
  s.instructions.push_back(std::move(instruction));
  return s;
}

// However the call ends, none of its pages stay.
struct OwnArena {
  ArenaLease lease;
  ~OwnArena() { (*lease).release(); }
};

at::Tensor zeros_like(const Operand& operand) {
  return at::empty_strided(operand.sizes, operand.strides, scalar_type_of(operand.dtype)).zero_();
}

}  // namespace

std::optional<Workspace> measure_workspace(const UnknownWorkspace& call, int threads) {
  const DrawsLeaveNoTrace draws;
  std::optional<Workspace> workspace;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Schedule schedule = alone(call, threads);
    std::vector<at::Tensor> inputs;
    for (const ScheduleInput& input : schedule.inputs)
      inputs.push_back(zeros_like(schedule.operands[input.operand.index()]));
    const OwnArena own;
    Arena& arena = *own.lease;
    arena.grow_to(schedule.arena_bytes);
    InstructionMemory memory(threads);
    BoundOperands operands(schedule, memory);
    {
      const BoundOperands::Run run(operands, inputs, ArenaPlace{arena.base()});
      RunState state{operands, memory, {}, {at::detail::getDefaultCPUGenerator()}};
      const KernelParts parts{schedule, {}, {}};
      const Instruction& instruction = schedule.instructions.front();
      const auto kernel = call.node.aten ? bind_aten(instruction, parts) : bind_op(instruction, parts);
      memory.begin_step(ArenaPlace{arena.base()});
      memory.begin(instruction);
      const AllocationScope scope(memory, /*watch_frees=*/false);
      kernel->run(state);
    }
    workspace = {memory.scratch_bytes(), memory.worker_scratch_bytes()};
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): zeros are no input for it
  }
  return workspace;
}

}  // namespace stepc
