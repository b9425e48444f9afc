// Which of the tensors that a step hands out share memory. In the program a write to one of them is visible in those
// that overlap it, so they are handed out in one memory here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/trace.h"

namespace stepc {

// Memory that two or more tensors of one dtype share, on a storage that the step has made.
struct SharedMemory {
  struct Window {
    size_t tensor = 0;   // index among the tensors that are handed out
    int64_t offset = 0;  // elements from the beginning of the memory
    bool operator==(const Window&) const = default;
  };
  std::optional<size_t> holder;  // the tensor that owns the memory: it covers all windows and is not one of them
  std::vector<Window> windows;   // in the tensors' order
  int64_t elements = 0;          // from the first to the last one, with the gaps between them
  bool operator==(const SharedMemory&) const = default;
};

// The shared memories of `handed_out`, values of the trace; an invalid value is nothing. Excludes tensors in the
// program's own memory: the program gets copies of those.
std::vector<SharedMemory> shared_memories(const Trace& trace, std::span<const ValueId> handed_out);

}  // namespace stepc
