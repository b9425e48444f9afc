// RunClocks: what runs take on their device, whose end the host does not wait for: two marks a run, which are read when
// the device has passed them. Nothing on the CPU.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "runtime/device_clock.h"

namespace stepc {

struct DeviceRuns {
  uint64_t count = 0;
  double seconds = 0;  // of all of them
};

class RunClocks {
 public:
  void begin_run(const std::string& device) {
    has_begun_ = false;
    if (device.empty() || runs_++ < kWarmUp || open_.size() >= kMostOpen) return;
    DeviceClock clock{c10::Device(device)};
    clock.mark();
    open_.push_back(std::move(clock));
    has_begun_ = true;
  }
  void end_run() {
    if (!std::exchange(has_begun_, false)) return;
    open_.back().mark();
  }
  // Those that have ended since the last call.
  DeviceRuns take_ended() {
    DeviceRuns ended;
    for (; !open_.empty() && open_.front().is_over(); open_.pop_front()) {
      if (open_.front().marks() != 2) continue;  // of a run that stopped
      ++ended.count;
      ended.seconds += open_.front().seconds().back();
    }
    return ended;
  }

 private:
  static constexpr uint64_t kWarmUp = 4;   // runs in which libraries make themselves ready and graphs are recorded
  static constexpr size_t kMostOpen = 16;  // runs by which the host is ahead and that are still timed
  uint64_t runs_ = 0;
  bool has_begun_ = false;
  std::deque<DeviceClock> open_;
};

}  // namespace stepc
