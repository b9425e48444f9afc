// Collectives of the ranks of a mesh, on their process groups. Operands are contiguous (schedule/verify_collectives.h).
#include "base/check.h"
#include "comm/ranks.h"
#include "ops/op_def.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

std::vector<Axis> axes_of(const Instruction& instruction) {
  const auto& axes = instruction.attrs.get<std::vector<int64_t>>("axes");
  return {axes.begin(), axes.end()};
}

class CollectiveKernel final : public BoundKernel {
 public:
  CollectiveKernel(const Instruction& instruction, const KernelParts& parts)
      : instruction_(instruction),
        collective_(op_def(instruction.op).collective),
        group_(parts.ranks->along(parts.schedule.mesh, axes_of(instruction))) {
    for (const AttrDef& attr : op_def(instruction.op).attrs)
      if (attr.kind == AttrKind::kWord)  // the only word says how it reduces
        how_ = parse_reduce_op(instruction.attrs.get<std::string>(attr.name)).value();
  }

  void run(RunState& state) override {
    std::vector<at::Tensor> operands, results;
    for (OperandId read : instruction_.reads) operands.push_back(state.operands[read]);
    for (OperandId write : instruction_.writes) results.push_back(state.operands[write]);
    if (instruction_.mark) {
      state.in_flight.insert_or_assign(*instruction_.mark, begin(operands, results));
      return;
    }
    std::byte* const scratch = state.scratch_of(instruction_);
    const uint64_t bytes = instruction_.scratch.bytes;
    switch (collective_) {
      case Collective::kAllGather:
        return group_.all_gather(operands, results);
      case Collective::kAllToAll:
        return group_.all_to_all(operands, results);
      case Collective::kRotate:
        return group_.rotate(operands, results, instruction_.attrs.get<int64_t>("by"));
      case Collective::kReduceScatter:
        return group_.reduce_scatter(operands, results, how_, scratch, bytes);
      case Collective::kAllReduce:  // in place
        return group_.all_reduce(results, how_, scratch, bytes);
      case Collective::kNone:
      case Collective::kReshard:
      case Collective::kWait:
        break;
    }
    INTERNAL_CHECK(false, "{} is no collective of a rank's step", instruction_.op);
  }

 private:
  InFlight begin(at::TensorList operands, at::TensorList results) {
    switch (collective_) {
      case Collective::kAllGather:
        return group_.begin_all_gather(operands, results);
      case Collective::kAllToAll:
        return group_.begin_all_to_all(operands, results);
      case Collective::kRotate:
        return group_.begin_rotate(operands, results, instruction_.attrs.get<int64_t>("by"));
      case Collective::kReduceScatter:
        return group_.begin_reduce_scatter(operands, results, how_);
      default:
        user_error("{} cannot go on beside the computation", instruction_.op);
    }
  }

  const Instruction& instruction_;
  Collective collective_;
  RankGroup& group_;
  ReduceOp how_ = ReduceOp::kSum;
};

class WaitKernel final : public BoundKernel {
 public:
  explicit WaitKernel(uint32_t mark) : mark_(mark) {}
  void run(RunState& state) override {
    auto found = state.in_flight.extract(mark_);
    if (!found.empty()) found.mapped().end();
  }

 private:
  uint32_t mark_;
};

}  // namespace

std::unique_ptr<BoundKernel> bind_wait(const Instruction& instruction, const KernelParts&) {
  USER_CHECK(instruction.mark.has_value(), "a wait for no mark");
  return std::make_unique<WaitKernel>(*instruction.mark);
}

std::unique_ptr<BoundKernel> bind_collective(const Instruction& instruction, const KernelParts& parts) {
  INTERNAL_CHECK(parts.ranks != nullptr, "{} without other ranks", instruction.op);
  return std::make_unique<CollectiveKernel>(instruction, parts);
}

}  // namespace stepc
