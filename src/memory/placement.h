// The arena while a layout is made: everything placed so far, and the free place for the next interval. Internal to
// memory/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/spans.h"

namespace stepc::memory {

enum class Fit {
  kLowest,    // the lowest gap that is large enough
  kTightest,  // the smallest gap that is large enough, the lowest of those
};

// Placed spans sorted by offset, kept in chunks so that an insertion moves little. place() reads all of them in offset
// order: a linear scan of packed times, which at 10,000 spans is faster than any tree and has no bad case. Few of them
// conflict, so vector compares skip blocks without a conflict.
class Placement {
 public:
  // Places the span and returns its offset.
  uint64_t place(const Span& span, Fit fit);
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Spans inspected so far: the unit in which work is bounded.
  [[nodiscard]] uint64_t work() const { return work_; }

 private:
  static constexpr uint32_t kChunk = 128;
  static constexpr uint32_t kHalfChunk = kChunk / 2;
  static constexpr uint32_t kBlock = sizeof(uint64_t);
  struct Chunk {
    Chunk() { forget_from(0); }
    // Empty places conflict with nothing.
    void forget_from(uint32_t place);

    uint32_t count = 0;
    std::array<int32_t, kChunk> first, last;
    std::array<uint64_t, kChunk> begin, end;
  };

  [[nodiscard]] uint64_t find(const Span& span, Fit fit);
  void insert(const Span& span, uint64_t offset);

  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t bytes_ = 0;
  uint64_t work_ = 0;
};

}  // namespace stepc::memory
