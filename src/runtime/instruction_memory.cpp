#include "runtime/instruction_memory.h"

#include <algorithm>
#include <utility>

#include "ir/alignment.h"

namespace stepc {

InstructionMemory::InstructionMemory(int threads)
    : workers_(std::max(threads - 1, 0)), slabs_(new Slab[static_cast<size_t>(workers_) + 1]) {}

void InstructionMemory::begin_step(const ArenaPlace& arena) {
  arena_ = arena;
  instruction_ = nullptr;
  keeps_next_ = copies_next_ = false;
  counts_ = {};
  worker_served_ = worker_unplanned_ = worker_unplanned_bytes_ = 0;
}

void InstructionMemory::begin(const Instruction& instruction) {
  instruction_ = &instruction;
  taken_.assign(instruction.allocations.size(), false);
  given_.assign(instruction.allocations.size(), nullptr);
  if (instruction.scratch.bytes != 0) scratch_.clear();
  if (instruction.worker_scratch.bytes != 0)
    for (int w = 0; w <= workers_; ++w) slabs_[static_cast<size_t>(w)].blocks.clear();
}

void InstructionMemory::note_use(uint64_t end) { counts_.arena_peak_bytes = std::max(counts_.arena_peak_bytes, end); }

MemoryCounts InstructionMemory::counts() const {
  MemoryCounts counts = counts_;
  counts.served += worker_served_;
  counts.unplanned += worker_unplanned_;
  counts.unplanned_bytes += worker_unplanned_bytes_;
  return counts;
}

uint64_t InstructionMemory::worker_scratch_bytes() const {
  uint64_t bytes = 0;
  for (int w = 1; w <= workers_; ++w) bytes = std::max(bytes, slabs_[static_cast<size_t>(w)].blocks.high_water());
  return bytes;
}

void* InstructionMemory::at(uint64_t offset, size_t bytes) {
  ++counts_.served;
  note_use(offset + aligned(bytes));
  return arena_.at(offset);
}

// Returns the first planned allocation of that size that is still free: a call may allocate its results in another
// order.
const PlannedAllocation* InstructionMemory::take_planned(size_t bytes, Space space) {
  for (size_t a = 0; a < taken_.size(); ++a) {
    const PlannedAllocation& one = instruction_->allocations[a];
    if (taken_[a] || one.bytes != bytes || one.space != space) continue;
    taken_[a] = true;
    return &one;
  }
  return nullptr;
}

// A call with scratch memory keeps the places of its results until it ends: a temporary tensor's place may yet become
// the result's.
void InstructionMemory::give_back(const std::byte* freed) {
  if (instruction_->kind != Instruction::Kind::kAten && instruction_->kind != Instruction::Kind::kOp) return;
  for (size_t a = 0; a < taken_.size(); ++a) {
    const PlannedAllocation& planned = instruction_->allocations[a];
    if (taken_[a] && freed == (planned.own ? given_[a] : arena_.at(planned.offset))) taken_[a] = false;
  }
}

void* InstructionMemory::allocate(size_t bytes, int worker) {
  if (is_all_device()) {
    keeps_ = std::exchange(keeps_next_, false);
    return nullptr;
  }
  return worker != 0 ? allocate_from_slab(bytes, worker) : allocate_planned(bytes, Space::kHost);
}

void* InstructionMemory::allocate_on_device(size_t bytes) { return allocate_planned(bytes, Space::kDevice); }

void* InstructionMemory::allocate_planned(size_t bytes, Space space) {
  keeps_ = std::exchange(keeps_next_, false);
  if (keeps_ || instruction_ == nullptr) return nullptr;
  const PlannedAllocation* const planned = std::exchange(copies_next_, false) ? nullptr : take_planned(bytes, space);
  if (planned != nullptr) {
    if (!planned->own) return at(planned->offset, bytes);
    void* const given = given_[static_cast<size_t>(planned - instruction_->allocations.data())];
    keeps_ = given == nullptr;
    return given;
  }
  const bool has_scratch = instruction_->scratch.bytes != 0 && (space == Space::kDevice) == is_all_device();
  if (!has_scratch) return nullptr;
  const auto offset = scratch_.allocate(aligned(bytes), instruction_->scratch.bytes);
  return offset.has_value() ? at(instruction_->scratch.offset + *offset, bytes) : nullptr;
}

void* InstructionMemory::allocate_from_slab(size_t bytes, int worker) {
  if (instruction_ == nullptr || worker > workers_ || instruction_->worker_scratch.bytes == 0) return nullptr;
  const auto offset =
      slabs_[static_cast<size_t>(worker)].blocks.allocate(aligned(bytes), instruction_->worker_scratch.bytes);
  if (!offset.has_value()) return nullptr;
  worker_served_.fetch_add(1, std::memory_order_relaxed);
  return slab_begin(worker) + *offset;
}

std::byte* InstructionMemory::slab_begin(int worker) const {
  const Scratch& slabs = instruction_->worker_scratch;
  return arena_.host + slabs.offset + static_cast<uint64_t>(worker - 1) * slabs.bytes;
}

void InstructionMemory::count(size_t bytes, int worker) {
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

void InstructionMemory::on_arena_free(void* memory, int worker) {
  if (instruction_ == nullptr || worker > workers_) return;
  const auto* freed = static_cast<const std::byte*>(memory);
  const Scratch& scratch = worker == 0 ? instruction_->scratch : instruction_->worker_scratch;
  if (scratch.bytes == 0) return;
  if (worker == 0) give_back(freed);
  const std::byte* begin = worker == 0 ? arena_.at(scratch.offset) : slab_begin(worker);
  if (freed < begin || freed >= begin + scratch.bytes) return;
  WorkerSlab& blocks = worker == 0 ? scratch_ : slabs_[static_cast<size_t>(worker)].blocks;
  blocks.free(static_cast<uint64_t>(freed - begin));
}

}  // namespace stepc
