#include "runtime/measure_workspace.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/constants.h"
#include "aten/cpu_hook.h"
#include "aten/generator_snapshot.h"
#include "ir/alignment.h"
#include "ir/worker_slab.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

// Places what is asked for as InstructionMemory will, but without a limit.
class Meter final : public AllocationClient {
 public:
  Meter(std::vector<uint64_t> results, int threads)
      : results_(std::move(results)), slabs_(static_cast<size_t>(std::max(threads, 1))) {}

  void* allocate(size_t, int) override { return nullptr; }
  void on_system_allocation(void* memory, size_t bytes, int worker) override {
    const std::lock_guard lock(mutex_);
    const auto result = std::ranges::find(results_, bytes);
    if (worker == 0 && result != results_.end()) {
      results_.erase(result);
      in_places_[memory] = bytes;
      return;
    }
    if (static_cast<size_t>(worker) >= slabs_.size()) return;
    at_[memory] = {worker, *slabs_[static_cast<size_t>(worker)].allocate(aligned(bytes))};
  }
  void on_system_free(void* memory) override {
    const std::lock_guard lock(mutex_);
    if (const auto placed = in_places_.extract(memory)) results_.push_back(placed.mapped());
    const auto found = at_.find(memory);
    if (found == at_.end()) return;
    slabs_[static_cast<size_t>(found->second.worker)].free(found->second.offset);
    at_.erase(found);
  }
  void on_arena_free(void*, int) override {}

  [[nodiscard]] Workspace measured() const {
    Workspace workspace{slabs_[0].high_water(), 0};
    for (size_t w = 1; w < slabs_.size(); ++w)
      workspace.worker_bytes = std::max(workspace.worker_bytes, slabs_[w].high_water());
    return workspace;
  }

 private:
  struct Block {
    int worker = 0;
    uint64_t offset = 0;
  };
  std::mutex mutex_;               // frees come from any thread
  std::vector<uint64_t> results_;  // whose places are free
  std::map<void*, uint64_t> in_places_;
  std::vector<WorkerSlab> slabs_;  // by worker
  std::map<void*, Block> at_;
};

// A Schedule of this one call.
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
    s.buffers.push_back({kind, bytes, 0, static_cast<uint32_t>(s.inputs.size()), ""});
    s.operands.push_back(std::move(operand));
    return OperandId(s.operands.size() - 1);
  };
  for (const TensorLayout& input : call.inputs) {
    instruction.reads.push_back(add(Buffer::Kind::kInput, input));
    s.inputs.push_back({InputKind::kCaptured, str("{}", s.inputs.size()), instruction.reads.back()});
  }
  for (const TensorType& output : call.outputs)
    instruction.writes.push_back(add(Buffer::Kind::kOwn, {output, contiguous_strides(output.shape)}));
  s.instructions.push_back(std::move(instruction));
  return s;
}

at::Tensor zeros_like(const Operand& operand) {
  return at::empty_strided(operand.sizes, operand.strides, scalar_type_of(operand.dtype)).zero_();
}

}  // namespace

std::optional<Workspace> measure_workspace(const UnknownWorkspace& call, int threads) {
  const GeneratorSnapshot draws = read_generator(at::detail::getDefaultCPUGenerator());
  std::optional<Workspace> workspace;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Schedule schedule = alone(call, threads);
    std::vector<at::Tensor> inputs;
    std::vector<uint64_t> results;
    for (const ScheduleInput& input : schedule.inputs)
      inputs.push_back(zeros_like(schedule.operands[input.operand.index()]));
    for (const Buffer& buffer : schedule.buffers)
      if (buffer.kind == Buffer::Kind::kOwn) results.push_back(buffer.bytes);
    InstructionMemory unused(threads);
    BoundOperands operands(schedule, unused);
    const BoundOperands::Run run(operands, inputs, nullptr);
    RunState state{operands, unused, {}, {at::detail::getDefaultCPUGenerator()}};
    const KernelParts parts{schedule, {}, {}};
    const Instruction& instruction = schedule.instructions.front();
    const auto kernel = call.node.aten ? bind_aten(instruction, parts) : bind_op(instruction, parts);
    Meter meter(std::move(results), threads);
    {
      const AllocationScope scope(meter, /*watch_frees=*/true);
      kernel->run(state);
    }
    workspace = meter.measured();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): zeros are no input for it
  }
  write_generator(at::detail::getDefaultCPUGenerator(), draws);
  return workspace;
}

}  // namespace stepc
