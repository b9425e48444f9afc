// DeviceClock: moments on a device's current stream, as events, and the time between them. Marking one makes nobody
// wait; what was launched since the mark before has ended when the device reaches it.
#pragma once

#include <cstddef>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stepc {

class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device) {}

  void mark() {
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // which keeps the time
    events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  [[nodiscard]] size_t marks() const { return events_.size(); }
  // Whether the device has reached all of them.
  [[nodiscard]] bool is_over() const { return events_.empty() || events_.back().query(); }
  void wait() const {
    if (!events_.empty()) events_.back().synchronize();
  }
  // From the first mark, when the device has reached all.
  [[nodiscard]] std::vector<double> seconds() const {
    constexpr double kMilli = 1e-3;
    std::vector<double> out;
    for (const c10::Event& event : events_) out.push_back(kMilli * events_.front().elapsedTime(event));
    return out;
  }

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;
};

}  // namespace stepc
