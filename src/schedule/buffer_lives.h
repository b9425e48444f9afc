// When each buffer of a Schedule is in use.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/schedule.h"

namespace stepc {

struct BufferLife {
  static constexpr size_t kNever = SIZE_MAX;
  size_t first_use = kNever, first_write = kNever;  // instructions
  size_t last_use = 0;
};

// Lives by buffer, from the instructions alone. `with_outputs`: the outputs count as uses after the last instruction.
std::vector<BufferLife> lives_of(const Schedule& schedule, bool with_outputs);

}  // namespace stepc
