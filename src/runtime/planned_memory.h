// Serves the allocations of a replayed step from its arena: the running thread's by index, its intra-op workers' from
// slabs, everything that is not as planned from the system, counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "aten/cpu_hook.h"
#include "aten/worker_slab.h"
#include "schedule/schedule.h"

namespace stepc {

// What one replayed step asked for.
struct MemoryCounts {
  uint64_t served = 0;  // allocations answered from the arena
  uint64_t kept = 0;    // planned to outlive the step, taken from the system
  uint64_t kept_bytes = 0;
  uint64_t unplanned = 0;  // not as recorded: taken from the system. Zero in a steady step.
  uint64_t unplanned_bytes = 0;
  uint64_t arena_peak_bytes = 0;  // one past the last arena byte that was handed out
};

class PlannedMemory final : public AllocationClient {
 public:
  explicit PlannedMemory(const Schedule& schedule);

  void begin_step(std::byte* arena);
  void begin(const Instruction& instruction);
  MemoryCounts counts() const;

  void* allocate(size_t bytes, int worker) override;
  void on_system_allocation(void* memory, size_t bytes, int worker) override;
  void on_system_free(void*) override {}
  void on_arena_free(void* memory, int worker) override;

 private:
  // Touched by its own worker alone.
  struct alignas(64) Slab {
    WorkerSlab blocks;
  };
  void* allocate_from_slab(size_t bytes, int worker);
  std::byte* slab_begin(int worker) const;

  const Schedule& schedule_;
  std::byte* arena_ = nullptr;
  const Instruction* instruction_ = nullptr;
  const Placement* next_ = nullptr;
  const Placement* end_ = nullptr;
  bool keeps_ = false;  // the allocation that now goes to the system is planned to
  std::unique_ptr<Slab[]> slabs_;
  MemoryCounts counts_;
  std::atomic<uint64_t> worker_served_{0};
  std::atomic<uint64_t> worker_unplanned_{0};
  std::atomic<uint64_t> worker_unplanned_bytes_{0};
};

}  // namespace stepc
