#include "plan/memory_budget.h"

#include <optional>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

MemoryBudget parse_memory_budget(std::string_view text) {
  if (text == "none") return {};
  if (text == "auto") return {MemoryBudget::Kind::kAuto, 0};
  if (const std::optional<uint64_t> bytes = parse_bytes(text)) return {MemoryBudget::Kind::kBytes, *bytes};
  user_error("memory budget is \"{}\"; it is \"none\", \"auto\" or a size such as \"12GiB\"", text);
}

}  // namespace stepc
