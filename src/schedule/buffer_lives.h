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
  // Its memory is nobody else's from the first of these instructions to the last. On stream 0 they are the uses. Stream
  // 0 gives memory to the other streams and takes it back: what another stream uses is in use from the first
  // instruction of stream 0 that this stream does not know to have ended, to the wait by which stream 0 knows that the
  // use has ended. Without such a wait it is in use to the end.
  size_t held_from = kNever, held_until = 0;
};

// Lives by buffer, from the instructions alone. `with_outputs`: the outputs count as uses after the last instruction.
std::vector<BufferLife> lives_of(const Schedule& schedule, bool with_outputs);

}  // namespace stepc
