// The recorder's view of memory: every allocation and free of the recording thread and its intra-op workers, on one
// event clock. Owns no memory.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "aten/cpu_hook.h"
#include "ir/trace.h"
#include "ir/worker_slab.h"

namespace stepc {

class AllocationLog final : public AllocationClient {
 public:
  struct Event {
    CallId call;  // invalid: made between calls
    uint64_t bytes = 0;
    int64_t first = 0;
    int64_t last = -1;  // -1: still live
    Space space = Space::kHost;
  };

  // Begins a call; allocations belong to it until end_call(). Between calls they belong to none.
  void begin_call(CallId call);
  void end_call();

  // The live allocation that begins at `memory`.
  std::optional<size_t> find_live(const void* memory);
  const std::vector<Event>& events() const { return events_; }
  // The scratch memory that workers need, one row for each call that needs any.
  std::vector<WorkerScratch> take_scratch();
  int64_t ticks() const { return clock_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

  void* allocate(size_t bytes, int worker) override;
  void on_system_allocation(void* memory, size_t bytes, int worker) override;
  void on_device_allocation(void* memory, size_t bytes) override;
  [[nodiscard]] bool watches_device() const override { return true; }
  void on_system_free(void* memory) override;
  void on_arena_free(void*, int) override {}
  // Traces grow in the gaps between the step's tensors.
  [[nodiscard]] bool maps_large_blocks() const override { return true; }

 private:
  struct WorkerBlock {
    int worker = 0;
    uint64_t offset = 0;  // in the worker's slab
    uint64_t bytes = 0;
  };

  std::mutex mutex_;
  CallId call_;
  int64_t call_begin_ = 0;
  int64_t clock_ = 0;
  uint64_t live_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  std::vector<Event> events_;
  std::unordered_map<void*, size_t> live_;
  std::unordered_map<void*, WorkerBlock> worker_live_;
  std::unordered_map<int, WorkerSlab> slabs_;
  std::vector<WorkerScratch> scratch_;
};

}  // namespace stepc
