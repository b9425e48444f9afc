#include "runtime/unit_memory.h"

#include <algorithm>
#include <utility>

#include "ir/alignment.h"

namespace stepc {

void UnitMemory::begin_step(std::byte* arena, bool learns) {
  arena_ = arena;
  learns_ = learns;
  counts_ = {};
  worker_unplanned_ = worker_unplanned_bytes_ = 0;
  begin_unit(0, 0);
}

void UnitMemory::begin_unit(uint64_t scratch_offset, uint64_t scratch_bytes) {
  results_.clear();
  scratch_offset_ = scratch_offset;
  scratch_bytes_ = scratch_bytes;
  scratch_.clear();
  if (!learns_) return;
  const std::lock_guard lock(learning_);
  wanted_.clear();
  wanted_at_.clear();
}

void UnitMemory::note_use(uint64_t end) { counts_.arena_peak_bytes = std::max(counts_.arena_peak_bytes, end); }

void UnitMemory::note_kept(size_t bytes) {
  ++counts_.kept;
  counts_.kept_bytes += aligned(bytes);
}

MemoryCounts UnitMemory::counts() const {
  MemoryCounts counts = counts_;
  counts.unplanned += worker_unplanned_;
  counts.unplanned_bytes += worker_unplanned_bytes_;
  return counts;
}

void* UnitMemory::allocate(size_t bytes, int worker) {
  if (worker != 0) return nullptr;
  keeps_ = std::exchange(keeps_next_, false);
  if (keeps_) return nullptr;
  const auto result = std::ranges::find(results_, bytes, &Result::bytes);
  if (result != results_.end()) {
    std::byte* memory = result->memory;
    results_.erase(result);
    keeps_ = memory == nullptr;
    counts_.served += keeps_ ? 0 : 1;
    return memory;
  }
  const auto offset = scratch_.allocate(aligned(bytes), scratch_bytes_);
  if (!offset.has_value()) return nullptr;
  ++counts_.served;
  note_use(scratch_offset_ + *offset + aligned(bytes));
  void* memory = arena_ + scratch_offset_ + *offset;
  if (learns_) learn(memory, bytes);
  return memory;
}

void UnitMemory::on_system_allocation(void* memory, size_t bytes, int worker) {
  if (worker != 0) {
    worker_unplanned_.fetch_add(1, std::memory_order_relaxed);
    worker_unplanned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  } else if (learns_) {
    if (!keeps_) learn(memory, bytes);
  } else if (!keeps_) {
    ++counts_.unplanned;
    counts_.unplanned_bytes += bytes;
  }
}

void UnitMemory::learn(void* memory, size_t bytes) {
  const std::lock_guard lock(learning_);
  wanted_at_[memory] = *wanted_.allocate(bytes);
}

void UnitMemory::on_system_free(void* memory) {
  if (!learns_) return;
  const std::lock_guard lock(learning_);
  const auto found = wanted_at_.find(memory);
  if (found == wanted_at_.end()) return;
  wanted_.free(found->second);
  wanted_at_.erase(found);
}

void UnitMemory::on_arena_free(void* memory, int worker) {
  const std::byte* begin = arena_ + scratch_offset_;
  const auto* freed = static_cast<const std::byte*>(memory);
  if (worker != 0 || freed < begin || freed >= begin + scratch_bytes_) return;
  scratch_.free(static_cast<uint64_t>(freed - begin));
  on_system_free(memory);  // of what is learnt, alike
}

}  // namespace stepc
