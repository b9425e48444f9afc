#include "ir/worker_slab.h"

#include <algorithm>

#include "ir/alignment.h"

namespace stepc {

std::optional<uint64_t> WorkerSlab::allocate(uint64_t bytes, uint64_t limit) {
  const uint64_t size = aligned(bytes);
  uint64_t begin = 0;
  auto before = blocks_.begin();
  while (before != blocks_.end() && before->begin < begin + size) {
    begin = before->end;
    ++before;
  }
  if (begin + size > limit) return std::nullopt;
  blocks_.insert(before, {begin, begin + size});
  high_water_ = std::max(high_water_, begin + size);
  return begin;
}

void WorkerSlab::free(uint64_t offset) {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.begin == offset; });
  if (found != blocks_.end()) blocks_.erase(found);
}

void WorkerSlab::clear() {
  blocks_.clear();
  high_water_ = 0;
}

}  // namespace stepc
