// Which of the tensors that a step hands out lie in one memory: in the program a write to one of them is seen in those
// that overlap it, so they are handed out in one memory here, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/trace.h"

namespace stepc {

// Of two tensors and more that have one dtype, on a storage that the step has made.
struct SharedMemory {
  struct Window {
    size_t tensor = 0;   // of those that are handed out
    int64_t offset = 0;  // elements from where the memory begins
    bool operator==(const Window&) const = default;
  };
  std::optional<size_t> holder;  // the tensor whose memory it is: it covers all windows, and is none of them
  std::vector<Window> windows;   // in the tensors' order
  int64_t elements = 0;          // from the first to the last one, with the gaps between
  bool operator==(const SharedMemory&) const = default;
};

// Of `handed_out`, values of the trace; an invalid one is nothing. What lies in the program's own memory is not among
// them: of that it gets copies.
std::vector<SharedMemory> shared_memories(const Trace& trace, std::span<const ValueId> handed_out);

}  // namespace stepc
