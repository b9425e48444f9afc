#include "memory/placement.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stepc::memory {

uint64_t Placement::place(const Span& span, Fit fit) {
  const uint64_t offset = find(span, fit);
  insert(span, offset);
  bytes_ = std::max(bytes_, offset + span.bytes);
  return offset;
}

void Placement::Chunk::forget_from(uint32_t place) {
  std::fill(first.begin() + place, first.end(), INT32_MAX);
  std::fill(last.begin() + place, last.end(), INT32_MIN);
}

uint64_t Placement::find(const Span& span, Fit fit) {
  uint64_t top = 0;  // end of the conflicting spans seen so far: [0, top) has been searched
  uint64_t best_gap = UINT64_MAX;
  uint64_t best_offset = 0;
  std::array<uint8_t, kChunk> conflicts;
  for (const auto& chunk : chunks_) {
    const Chunk& placed = *chunk;
    work_ += placed.count;
    for (uint32_t i = 0; i < kChunk; ++i)
      conflicts[i] =
          static_cast<uint8_t>(placed.first[i] < span.last) & static_cast<uint8_t>(span.first < placed.last[i]);
    for (uint32_t block = 0; block < kChunk; block += kBlock) {
      uint64_t left = 0;
      std::memcpy(&left, conflicts.data() + block, kBlock);
      for (; left != 0; left &= left - 1) {
        const uint32_t i = block + static_cast<uint32_t>(std::countr_zero(left)) / 8;
        if (placed.begin[i] > top) {
          const uint64_t gap = placed.begin[i] - top;
          if (gap >= span.bytes && gap < best_gap) {
            best_gap = gap;
            best_offset = top;
            if (fit == Fit::kLowest || gap == span.bytes) return best_offset;
          }
        }
        top = std::max(top, placed.end[i]);
      }
    }
  }
  return best_gap == UINT64_MAX ? top : best_offset;
}

void Placement::insert(const Span& span, uint64_t offset) {
  // The first chunk whose last span begins after the offset, else the last chunk.
  auto at = std::partition_point(chunks_.begin(), chunks_.end(),
                                 [&](const auto& chunk) { return chunk->begin[chunk->count - 1] <= offset; });
  if (at == chunks_.end()) {
    if (chunks_.empty()) chunks_.push_back(std::make_unique<Chunk>());
    at = chunks_.end() - 1;
  }
  if ((*at)->count == kChunk) {  // split in two halves
    auto upper = std::make_unique<Chunk>();
    Chunk& lower = **at;
    const auto move_half = [&](const auto& from, auto& to) {
      std::copy(from.begin() + kHalfChunk, from.end(), to.begin());
    };
    move_half(lower.first, upper->first);
    move_half(lower.last, upper->last);
    move_half(lower.begin, upper->begin);
    move_half(lower.end, upper->end);
    lower.count = upper->count = kHalfChunk;
    lower.forget_from(kHalfChunk);
    const bool in_upper = upper->begin[0] <= offset;
    at = chunks_.insert(at + 1, std::move(upper));
    if (!in_upper) --at;
  }
  Chunk& chunk = **at;
  const auto slot = std::upper_bound(chunk.begin.begin(), chunk.begin.begin() + chunk.count, offset);
  const auto index = static_cast<uint32_t>(slot - chunk.begin.begin());
  const auto insert_value = [&](auto& column, auto value) {
    std::copy_backward(column.begin() + index, column.begin() + chunk.count, column.begin() + chunk.count + 1);
    column[index] = value;
  };
  insert_value(chunk.first, span.first);
  insert_value(chunk.last, span.last);
  insert_value(chunk.begin, offset);
  insert_value(chunk.end, offset + span.bytes);
  ++chunk.count;
}

}  // namespace stepc::memory
