// How ranks share a reduction out: each reduces one part of all elements, as equal as they come, the last ones shorter
// or empty; and of that part one piece after the other, so that what the others send of it takes memory of a bounded
// size.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stepc {

// What the other ranks send at a time, together. Enough that a piece takes long beside what it costs to ask for it (0.1
// ms), and a tenth of a percent of the memory of a machine that trains.
inline constexpr uint64_t kReductionScratchBytes = uint64_t{16} << 20;

inline int64_t part_elements(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks; }

inline int64_t piece_elements(int64_t elements, uint64_t element_bytes, int64_t ranks) {
  const auto others = static_cast<uint64_t>(std::max<int64_t>(ranks - 1, 1));
  const auto most = static_cast<int64_t>(kReductionScratchBytes / (others * element_bytes));
  return std::min(part_elements(elements, ranks), std::max<int64_t>(most, 1));
}

// For what they send: one piece from each of the others.
inline uint64_t reduction_scratch_bytes(int64_t elements, uint64_t element_bytes, int64_t ranks) {
  return static_cast<uint64_t>(piece_elements(elements, element_bytes, ranks) * (ranks - 1)) * element_bytes;
}

}  // namespace stepc
