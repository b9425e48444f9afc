// What a step may hold at once, the model and its optimizer's state included, as a person says it. What does not fit is
// recomputed in the backward pass instead of kept for it (passes/recompute.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "schedule/schedule.h"

namespace stepc {

struct MemoryBudget {
  enum class Kind : uint8_t {
    kNone,   // everything is kept
    kAuto,   // as little memory as costs no more than 8 % of the step's time, by the cost model
    kBytes,  // so many, if that can be reached
  };
  Kind kind = Kind::kNone;
  uint64_t bytes = 0;
  // Of a graph of few layers that stands for one of many: for each that it has, so many that it has not. What those
  // keep for the backward pass counts too.
  double more_layers = 0;
};

// "none", "auto" or "12GiB". Throws UserError otherwise.
MemoryBudget parse_memory_budget(std::string_view text);

// What is left for a part of a step that leaves `others` alone, which are there all the same.
MemoryBudget beside(MemoryBudget budget, uint64_t others);

// What layers make in the forward pass and the backward pass reads.
uint64_t kept_by_layers(const Schedule& schedule);

// What a step holds at its peak, with what it is given and with what layers that it stands for keep.
uint64_t held_bytes(const Schedule& schedule, const MemoryBudget& budget);

}  // namespace stepc
