#include "runtime/device_guards.h"

#include <utility>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stepc {

namespace {
bool is_final(const Schedule& schedule, const Instruction& instruction) {
  using Kind = Instruction::Kind;
  if (instruction.kind == Kind::kEvent || instruction.kind == Kind::kPause) return true;
  for (const OperandId write : instruction.writes) {
    if (!write.valid()) continue;
    const Buffer& buffer = schedule.buffers[schedule.operands[write.index()].buffer.index()];
    if (buffer.kind == Buffer::Kind::kInput && is_of_program(schedule.inputs[buffer.input].kind)) return true;
  }
  return false;
}
}  // namespace

DeviceGuards::DeviceGuards(const Schedule& schedule) : device_(schedule.device), asked_(device_.type()) {
  const std::vector<Instruction>& all = schedule.instructions;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind != Instruction::Kind::kGuard || all[i].number) continue;
    const Operand& answer = schedule.operands[all[i].reads[0].index()];
    answers_.push_back(at::empty(answer.sizes, at::TensorOptions().dtype(at::kBool).pinned_memory(true)));
    for (size_t behind = i + 1; behind < all.size(); ++behind) {
      if (!is_final(schedule, all[behind])) continue;
      effects_.insert(behind);
      break;
    }
  }
}

void DeviceGuards::ask(const at::Tensor& answer) {
  answers_[open_++].copy_(answer, /*non_blocking=*/true);
  asked_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

bool DeviceGuards::hold() {
  const size_t count = std::exchange(open_, 0);
  if (count > 0) asked_.synchronize();
  bool do_all = true;
  for (size_t k = 0; k < count; ++k) do_all = do_all && *answers_[k].const_data_ptr<bool>();
  return do_all;
}

}  // namespace stepc
