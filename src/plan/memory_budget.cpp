#include "plan/memory_budget.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

MemoryBudget parse_memory_budget(std::string_view text) {
  if (text == "none") return {};
  if (text == "auto") return {MemoryBudget::Kind::kAuto, 0};
  if (const std::optional<uint64_t> bytes = parse_bytes(text)) return {MemoryBudget::Kind::kBytes, *bytes};
  user_error("memory budget is \"{}\"; it is \"none\", \"auto\" or a size such as \"12GiB\"", text);
}

MemoryBudget beside(MemoryBudget budget, uint64_t others) {
  if (budget.kind == MemoryBudget::Kind::kBytes)
    budget.bytes -= std::min(others, std::max<uint64_t>(budget.bytes, 1) - 1);
  return budget;
}

uint64_t kept_by_layers(const Schedule& schedule) {
  std::vector<bool> is_kept(schedule.buffers.size()), is_made(schedule.buffers.size());
  uint64_t bytes = 0;
  for (const Instruction& one : schedule.instructions) {
    if (one.source.phase == Phase::kBackward)
      for (OperandId read : one.reads)
        if (const size_t buffer = schedule.operands[read.index()].buffer.index(); is_kept[buffer]) {
          bytes += schedule.buffers[buffer].bytes;
          is_kept[buffer] = false;
        }
    for (OperandId write : one.writes) {
      const size_t buffer = schedule.operands[write.index()].buffer.index();
      if (schedule.buffers[buffer].kind != Buffer::Kind::kArena || is_made[buffer]) continue;
      is_made[buffer] = true;
      is_kept[buffer] = one.source.phase == Phase::kForward && is_of_a_layer(one.source);
    }
  }
  return bytes;
}

uint64_t held_bytes(const Schedule& schedule, const MemoryBudget& budget) {
  const double others = budget.more_layers > 0 ? budget.more_layers * static_cast<double>(kept_by_layers(schedule)) : 0;
  return schedule.needed_bytes() + static_cast<uint64_t>(others);
}

}  // namespace stepc
