#include "plan/memory_budget.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/text.h"
#include "plan/layer_memory.h"

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

uint64_t held_bytes(const Schedule& schedule, const MemoryBudget& budget) {
  if (budget.more_layers == 0) return schedule.needed_bytes();
  const double others =
      LayerMemory(schedule).peak_bytes(budget.more_layers) - static_cast<double>(schedule.peak_bytes());
  return schedule.needed_bytes() + static_cast<uint64_t>(others);
}

}  // namespace stepc
