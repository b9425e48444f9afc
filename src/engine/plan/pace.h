// Pace: whether the replays of a traced step pay in the long run. Its own Python runs beside the plan, and where its
// kernels are small, to see each of its calls costs more than the plan saves. The same calls are compared whatever the
// clock says; only what they come to is measured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace stepc {

class Pace {
 public:
  static constexpr int64_t kLongRun = 64;  // replays before any is compared
  static constexpr int64_t kCompared = 8;  // replays, and as many eager steps, in turn
  static constexpr double kMostSlower = 1.2;

  // Whether the next step is to run as it is, and be timed.
  [[nodiscard]] bool wants_eager() const { return eager_ < kCompared && replays_ >= kLongRun + eager_; }
  void ran_eagerly(double seconds) {
    ++eager_;
    eager_seconds_ = std::min(eager_seconds_, seconds);
  }
  // How many times as long as eager the replays took, each at its best, once that is known and above kMostSlower.
  std::optional<double> replayed(double seconds) {
    ++replays_;
    if (replays_ <= kLongRun || replays_ > kLongRun + kCompared) return std::nullopt;
    replay_seconds_ = std::min(replay_seconds_, seconds);
    const double slower = replay_seconds_ / eager_seconds_;
    return replays_ == kLongRun + kCompared && slower > kMostSlower ? std::optional(slower) : std::nullopt;
  }

 private:
  int64_t replays_ = 0, eager_ = 0;
  double eager_seconds_ = std::numeric_limits<double>::infinity();
  double replay_seconds_ = std::numeric_limits<double>::infinity();
};

}  // namespace stepc
