#include "capture/allocation_log.h"

#include <algorithm>

#include "ir/alignment.h"

namespace stepc {

void AllocationLog::begin_call(CallId call) {
  const std::lock_guard lock(mutex_);
  call_ = call;
  call_begin_ = clock_++;
  slabs_.clear();
}

void AllocationLog::end_call() {
  const std::lock_guard lock(mutex_);
  ++clock_;
  uint64_t high_water = 0;
  for (const auto& [worker, slab] : slabs_) high_water = std::max(high_water, slab.high_water());
  // A worker's block that outlives its call cannot come from a slab that others use a call later: then none does.
  if (high_water != 0 && worker_live_.empty()) scratch_.push_back({call_, high_water, call_begin_, clock_});
  call_ = CallId();
}

std::optional<size_t> AllocationLog::find_live(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(const_cast<void*>(memory));
  if (found == live_.end()) return std::nullopt;
  return found->second;
}

std::vector<WorkerScratch> AllocationLog::take_scratch() { return std::move(scratch_); }

void* AllocationLog::allocate(size_t, int) { return nullptr; }

void AllocationLog::on_system_allocation(void* memory, size_t bytes, int worker) {
  const std::lock_guard lock(mutex_);
  live_bytes_ += aligned(bytes);
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  if (worker != 0) {
    worker_live_[memory] = {worker, slabs_[worker].allocate(bytes).value(), bytes};
    return;
  }
  live_[memory] = events_.size();
  events_.push_back({call_, bytes, clock_++, -1, Space::kHost});
}

void AllocationLog::on_device_allocation(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  live_bytes_ += aligned_on_device(bytes);
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  live_[memory] = events_.size();
  events_.push_back({call_, bytes, clock_++, -1, Space::kDevice});
}

void AllocationLog::on_system_free(void* memory) {
  const std::lock_guard lock(mutex_);
  if (const auto found = live_.find(memory); found != live_.end()) {
    events_[found->second].last = clock_++;
    const Event& event = events_[found->second];
    live_bytes_ -= event.space == Space::kDevice ? aligned_on_device(event.bytes) : aligned(event.bytes);
    live_.erase(found);
  } else if (const auto block = worker_live_.find(memory); block != worker_live_.end()) {
    live_bytes_ -= aligned(block->second.bytes);
    slabs_[block->second.worker].free(block->second.offset);
    worker_live_.erase(block);
  }
}

}  // namespace stepc
