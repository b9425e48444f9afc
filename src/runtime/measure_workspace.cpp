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

// More memory than a call takes beside its operands. On the CPU it is only address space until it is used; on a device
// it is memory, enough for any of its kernels.
uint64_t room_for(const UnknownWorkspace& call, bool is_on_device) {
  uint64_t bytes = is_on_device ? uint64_t{1} << 20 : uint64_t{64} << 20;
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const TensorLayout& operand : *operands) bytes += (is_on_device ? 4 : 16) * aligned(bytes_of(operand));
  return bytes;
}

// A Schedule of this call alone, with its results in an arena that has room for all that the call allocates.
Schedule alone(const UnknownWorkspace& call, int threads, const std::string& device) {
  Schedule s;
  s.threads = threads;
  s.device = device;
  const Space space = device.empty() ? Space::kHost : Space::kDevice;
  Instruction instruction;
  instruction.kind = call.node.aten ? Instruction::Kind::kAten : Instruction::Kind::kOp;
  instruction.op = call.node.op;
  instruction.attrs = call.node.attrs;
  instruction.aten = call.node.aten;
  const auto add = [&](Buffer::Kind kind, const TensorLayout& layout) {
    Operand operand{BufferId(s.buffers.size()), layout.type.dtype, layout.type.shape, layout.strides, 0};
    const auto bytes = static_cast<uint64_t>(extent_of(operand) * size_of(operand.dtype));
    s.buffers.push_back({kind, bytes, s.arena_bytes, static_cast<uint32_t>(s.inputs.size()), "", space});
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
      instruction.allocations.push_back({buffer.bytes, buffer.offset, false, space});
  }
  const uint64_t room = room_for(call, space == Space::kDevice);
  instruction.scratch = {s.arena_bytes, room};
  instruction.worker_scratch = {s.arena_bytes + room, room};
  s.arena_bytes += room * static_cast<uint64_t>(std::max(threads, 1));
  s.instructions.push_back(std::move(instruction));
  return s;
}

// Releases the arena's pages, however the call ends.
class OwnArena {
 public:
  explicit OwnArena(const Schedule& schedule) {
    if (schedule.device.empty()) {
      Arena& arena = *host_.emplace();
      arena.grow_to(schedule.arena_bytes);
      place_.host = arena.base();
      return;
    }
    const auto bytes = static_cast<int64_t>(schedule.arena_bytes);
    on_device_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(c10::Device(schedule.device)));
    place_ = {nullptr, static_cast<std::byte*>(on_device_.mutable_data_ptr()), 0};
  }
  ~OwnArena() {
    if (host_) (**host_).release();
  }
  OwnArena(const OwnArena&) = delete;
  OwnArena& operator=(const OwnArena&) = delete;
  [[nodiscard]] const ArenaPlace& place() const { return place_; }

 private:
  std::optional<ArenaLease> host_;
  at::Tensor on_device_;
  ArenaPlace place_;
};

at::Tensor zeros_like(const Operand& operand, const std::string& device) {
  const c10::Device where = device.empty() ? c10::Device(c10::kCPU) : c10::Device(device);
  const auto options = at::TensorOptions(scalar_type_of(operand.dtype)).device(where);
  return at::empty_strided(operand.sizes, operand.strides, options).zero_();
}

}  // namespace

std::optional<Workspace> measure_workspace(const UnknownWorkspace& call, int threads, const std::string& device) {
  const DrawsLeaveNoTrace draws;
  std::optional<Workspace> workspace;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Schedule schedule = alone(call, threads, device);
    std::vector<at::Tensor> inputs;
    for (const ScheduleInput& input : schedule.inputs)
      inputs.push_back(zeros_like(schedule.operands[input.operand.index()], device));
    const OwnArena own(schedule);
    InstructionMemory memory(threads);
    BoundOperands operands(schedule, memory);
    {
      const BoundOperands::Run run(operands, inputs, own.place());
      RunState state{operands, memory, {}, {at::detail::getDefaultCPUGenerator()}};
      const KernelParts parts{schedule, {}, {}};
      const Instruction& instruction = schedule.instructions.front();
      const auto kernel = call.node.aten ? bind_aten(instruction, parts) : bind_op(instruction, parts);
      memory.begin_step(own.place());
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
