// InstructionMemory: serves the allocations of a replayed instruction's ATen calls. A planned allocation gets its place
// in the arena, or memory of the system if it outlives the step; the place may be requested again after it is freed.
// All other allocations come from the instruction's scratch memory, first fit, and those of each intra-op worker from a
// slab. An allocation that does not fit comes from the system and counts as unplanned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aten/cpu_hook.h"
#include "ir/worker_slab.h"
#include "runtime/arena.h"
#include "schedule/schedule.h"

namespace stepc {

// The memory that one replayed step asked for.
struct MemoryCounts {
  uint64_t served = 0;  // allocations answered from the arena
  uint64_t kept = 0;    // planned to outlive the step, taken from the system
  uint64_t kept_bytes = 0;
  uint64_t unplanned = 0;  // not as planned: taken from the system. Zero in a steady step
  uint64_t unplanned_bytes = 0;
  uint64_t device_graphs = 0;     // launched; the allocations inside them were served when they were recorded
  uint64_t arena_peak_bytes = 0;  // one past the last arena byte that was used
};

class InstructionMemory final : public AllocationClient {
 public:
  explicit InstructionMemory(int threads);

  void begin_step(const ArenaPlace& arena);
  void begin(const Instruction& instruction);
  // The instruction's planned allocation of that number, which outlives the step, gets this memory.
  void give(size_t allocation, void* memory) { given_[allocation] = memory; }
  // Notes that something in the arena ends at this offset.
  void note_use(uint64_t end);
  // The next allocation outlives the step.
  void keep_next() { keeps_next_ = true; }
  // The next allocation is a copy for the instruction, which may not take the place of a result of as many bytes.
  void copy_next() { copies_next_ = true; }
  MemoryCounts counts() const;
  // The most scratch memory that the present instruction, and one of its workers, has held at one time.
  uint64_t scratch_bytes() const { return scratch_.high_water(); }
  uint64_t worker_scratch_bytes() const;

  void* allocate(size_t bytes, int worker) override;
  void on_system_allocation(void* memory, size_t bytes, int worker) override {
    if (!is_all_device()) count(bytes, worker);
  }
  void* allocate_on_device(size_t bytes) override;
  void on_device_allocation(void* memory, size_t bytes) override { count(bytes, 0); }
  void on_system_free(void*) override {}
  void on_arena_free(void* memory, int worker) override;

 private:
  // Only its own worker uses it.
  struct alignas(64) Slab {
    WorkerSlab blocks;
  };
  const PlannedAllocation* take_planned(size_t bytes, Space space);
  void* allocate_planned(size_t bytes, Space space);
  void count(size_t bytes, int worker);  // of the system's
  void give_back(const std::byte* freed);
  void* allocate_from_slab(size_t bytes, int worker);
  std::byte* slab_begin(int worker) const;
  void* at(uint64_t offset, size_t bytes);

  // A step whose arena is all a device's plans nothing of what calls take on the host meanwhile.
  [[nodiscard]] bool is_all_device() const { return arena_.device_begin == 0; }

  const int workers_;
  ArenaPlace arena_;
  const Instruction* instruction_ = nullptr;
  std::vector<bool> taken_;  // by planned allocation of the instruction
  std::vector<void*> given_;
  WorkerSlab scratch_;
  bool keeps_next_ = false;
  bool copies_next_ = false;
  bool keeps_ = false;  // the allocation that now goes to the system was planned to do so
  std::unique_ptr<Slab[]> slabs_;
  MemoryCounts counts_;
  std::atomic<uint64_t> worker_served_{0};
  std::atomic<uint64_t> worker_unplanned_{0};
  std::atomic<uint64_t> worker_unplanned_bytes_{0};
};

}  // namespace stepc
