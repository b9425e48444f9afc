// Pace: whether replays pay in the long run where each costs more than its kernels: of a traced step, whose Python runs
// beside the plan, and of a loop's model, whose passes begin and end in Python. Where kernels are small, that costs
// more than the plan saves. Which calls are compared depends on whether they are long alone; the rest is measured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace stepc {

class Pace {
 public:
  static constexpr int64_t kLongRun = 72;  // replays before any eager step; plans are checked after powers of two
  static constexpr int64_t kInARow = 32;   // eager steps, and replays before them: the first ones of either are cold
  static constexpr int64_t kFew = 4;       // eager steps, where these are long
  static constexpr double kLong = 0.05;    // seconds
  static constexpr double kMostSlower = 1.2;
  // A loop's pass that is left to eager begins and ends here too, which takes up to 1.12 times as long.
  static constexpr double kMostSlowerInLoops = 1.07;

  // So many steps that come next are to run as they are, and be timed.
  [[nodiscard]] int64_t wanted_eager() const {
    return replays_ == kLongRun ? std::max((is_long() ? kFew : kInARow) - eager_, int64_t{0}) : 0;
  }
  [[nodiscard]] bool is_long() const { return replay_seconds_ >= kLong; }
  void run_eagerly(int64_t count) { eager_ += count; }
  void ran_eagerly(double seconds) { eager_seconds_ = std::min(eager_seconds_, seconds); }
  // Whether it matters how long the next replay takes.
  [[nodiscard]] bool times_replay() const { return replays_ >= kLongRun - kInARow && replays_ <= kLongRun; }
  // How many times as long as eager the replays took, each at its best, once that is known and above `most`.
  std::optional<double> replayed(double seconds, double most = kMostSlower) {
    if (times_replay()) replay_seconds_ = std::min(replay_seconds_, seconds);
    const double slower = replay_seconds_ / eager_seconds_;
    return replays_++ == kLongRun && slower > most ? std::optional(slower) : std::nullopt;
  }

 private:
  int64_t replays_ = 0, eager_ = 0;
  double eager_seconds_ = std::numeric_limits<double>::infinity();
  double replay_seconds_ = std::numeric_limits<double>::infinity();
};

}  // namespace stepc
