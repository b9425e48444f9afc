// What a step may hold at one time, with the model and its optimizer's state, as a person states it. What does not fit
// is recomputed in the backward pass instead of being kept for it (passes/recompute.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "schedule/schedule.h"

namespace stepc {

struct MemoryBudget {
  enum class Kind : uint8_t {
    kNone,   // all activations are kept
    kAuto,   // the least memory that costs no more than 8 % of the step's time, by the cost model
    kBytes,  // this many bytes, if that is possible
  };
  Kind kind = Kind::kNone;
  uint64_t bytes = 0;
  // For a graph of few layers that stands for one of many: the number of missing layers for each layer that it has.
  // What the missing ones hold counts too (plan/layer_memory.h).
  double more_layers = 0;
};

// "none", "auto" or "12GiB". Throws UserError for any other text.
MemoryBudget parse_memory_budget(std::string_view text);

// The budget that remains for a part of a step beside `others`, bytes that the part leaves unchanged.
MemoryBudget beside(MemoryBudget budget, uint64_t others);

// The bytes of a step at its peak, with its inputs and with what the layers that it stands for hold.
uint64_t held_bytes(const Schedule& schedule, const MemoryBudget& budget);

}  // namespace stepc
