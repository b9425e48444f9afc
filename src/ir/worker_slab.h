// The slab of one intra-op worker: how its allocations inside a call are placed, first fit. The recorder runs the rule
// to learn how large a slab must be, the executor runs the same rule to hand memory out, so what fitted once fits
// again. Owns no memory: it deals in offsets.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace stepc {

class WorkerSlab {
 public:
  // Offset of `bytes` bytes, a multiple of 64; nullopt when they end beyond `limit`.
  std::optional<uint64_t> allocate(uint64_t bytes, uint64_t limit = UINT64_MAX);
  // Gives back the block that begins at `offset`; unknown offsets are ignored.
  void free(uint64_t offset);
  // One past the last byte that was ever in use.
  [[nodiscard]] uint64_t high_water() const { return high_water_; }
  void clear();

 private:
  struct Block {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::vector<Block> blocks_;  // live ones, ascending; a kernel holds a handful at a time
  uint64_t high_water_ = 0;
};

}  // namespace stepc
