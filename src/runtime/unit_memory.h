// UnitMemory: serves what a unit's ATen calls allocate from the arena of a planned Graph: a result gets the place that
// was planned for it, or memory of its own where it outlives the step; everything else comes out of the unit's scratch
// memory, first fit. What does not fit there comes from the system, and is counted as unplanned; but a run that learns
// finds out how much scratch memory each unit needs instead.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "aten/cpu_hook.h"
#include "aten/worker_slab.h"
#include "runtime/planned_memory.h"

namespace stepc {

class UnitMemory final : public AllocationClient {
 public:
  // A result that one of the calls will ask memory for: so many bytes at `memory`; nullptr: the system's, because it
  // outlives the step.
  struct Result {
    size_t bytes = 0;
    std::byte* memory = nullptr;
  };

  // To learn, the scope must watch frees.
  void begin_step(std::byte* arena, bool learns);
  void begin_unit(uint64_t scratch_offset, uint64_t scratch_bytes);
  // The results of the unit's next call. An earlier call's may not stand in for them: of a group, what is made on the
  // way would lie where a result belongs, and be read after that is written.
  void expect(std::vector<Result> results) { results_ = std::move(results); }
  // How much scratch memory the unit needs, learnt.
  uint64_t wanted_scratch_bytes() const { return wanted_.high_water(); }
  // Something in the arena ends at this offset.
  void note_use(uint64_t end);
  // The next allocation outlives the step.
  void keep_next() { keeps_next_ = true; }
  // A tensor that the program keeps was made.
  void note_kept(size_t bytes);
  MemoryCounts counts() const;

  void* allocate(size_t bytes, int worker) override;
  void on_system_allocation(void* memory, size_t bytes, int worker) override;
  void on_system_free(void* memory) override;
  void on_arena_free(void* memory, int worker) override;

 private:
  void learn(void* memory, size_t bytes);

  std::byte* arena_ = nullptr;
  std::vector<Result> results_;  // not asked for yet
  uint64_t scratch_offset_ = 0;
  uint64_t scratch_bytes_ = 0;
  WorkerSlab scratch_;
  bool learns_ = false;
  std::mutex learning_;                  // frees come from any thread
  WorkerSlab wanted_;                    // as scratch_, but without a limit
  std::map<void*, uint64_t> wanted_at_;  // by memory
  bool keeps_next_ = false;
  bool keeps_ = false;  // the allocation that now goes to the system is planned to
  MemoryCounts counts_;
  std::atomic<uint64_t> worker_unplanned_{0};
  std::atomic<uint64_t> worker_unplanned_bytes_{0};
};

}  // namespace stepc
