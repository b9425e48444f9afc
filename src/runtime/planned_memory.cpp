#include "runtime/planned_memory.h"

#include <algorithm>

#include "ir/alignment.h"

namespace stepc {

PlannedMemory::PlannedMemory(const Schedule& schedule)
    : schedule_(schedule), slabs_(new Slab[static_cast<size_t>(schedule.workers) + 1]) {}

void PlannedMemory::begin_step(std::byte* arena) {
  arena_ = arena;
  instruction_ = nullptr;
  next_ = end_ = nullptr;
  counts_ = {};
  worker_served_ = worker_unplanned_ = worker_unplanned_bytes_ = 0;
}

void PlannedMemory::begin(const Instruction& instruction) {
  instruction_ = &instruction;
  next_ = schedule_.placements.data() + instruction.first_placement;
  end_ = next_ + instruction.placements;
  if (instruction.scratch_bytes != 0)
    for (int w = 0; w <= schedule_.workers; ++w) slabs_[static_cast<size_t>(w)].blocks.clear();
}

MemoryCounts PlannedMemory::counts() const {
  MemoryCounts counts = counts_;
  counts.served += worker_served_;
  counts.unplanned += worker_unplanned_;
  counts.unplanned_bytes += worker_unplanned_bytes_;
  return counts;
}

void* PlannedMemory::allocate(size_t bytes, int worker) {
  if (worker != 0) return allocate_from_slab(bytes, worker);
  keeps_ = false;
  if (next_ == end_ || next_->bytes != bytes) return nullptr;
  const Placement& placement = *next_++;
  if (placement.system) {
    keeps_ = true;
    return nullptr;
  }
  ++counts_.served;
  counts_.arena_peak_bytes = std::max(counts_.arena_peak_bytes, placement.offset + aligned(bytes));
  return arena_ + placement.offset;
}

void* PlannedMemory::allocate_from_slab(size_t bytes, int worker) {
  if (instruction_ == nullptr || worker > schedule_.workers) return nullptr;
  const auto offset = slabs_[static_cast<size_t>(worker)].blocks.allocate(bytes, instruction_->scratch_bytes);
  if (!offset.has_value()) return nullptr;
  worker_served_.fetch_add(1, std::memory_order_relaxed);
  return slab_begin(worker) + *offset;
}

std::byte* PlannedMemory::slab_begin(int worker) const {
  return arena_ + instruction_->scratch_offset + static_cast<uint64_t>(worker - 1) * instruction_->scratch_bytes;
}

void PlannedMemory::on_system_allocation(void*, size_t bytes, int worker) {
  if (worker != 0) {
    worker_unplanned_.fetch_add(1, std::memory_order_relaxed);
    worker_unplanned_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  } else if (keeps_) {
    ++counts_.kept;
    counts_.kept_bytes += aligned(bytes);
  } else {
    ++counts_.unplanned;
    counts_.unplanned_bytes += bytes;
  }
}

void PlannedMemory::on_arena_free(void* memory, int worker) {
  if (worker == 0 || worker > schedule_.workers || instruction_ == nullptr || instruction_->scratch_bytes == 0) return;
  const std::byte* begin = slab_begin(worker);
  const auto* freed = static_cast<const std::byte*>(memory);
  if (freed < begin || freed >= begin + instruction_->scratch_bytes) return;
  slabs_[static_cast<size_t>(worker)].blocks.free(static_cast<uint64_t>(freed - begin));
}

}  // namespace stepc
