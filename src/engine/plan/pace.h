// Pace: decides whether replays pay in the long run if each costs more than its kernels: in a traced step, whose Python
// runs beside the plan, and in a loop's model, whose passes begin and end in Python. If the kernels are small, this
// costs more than the plan saves. Only the length of a call decides whether it is compared; the rest is measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace stepc {

class Pace {
 public:
  static constexpr int64_t kLongRun = 72;  // replays before any eager step; plans are checked after powers of two
  static constexpr int64_t kInARow = 32;  // eager steps, and timed replays before them: the first ones of each are cold
  static constexpr int64_t kFew = 4;      // eager steps, if they are long
  static constexpr double kLong = 0.05;   // a long step, in seconds
  static constexpr double kMostSlower = 1.2;
  // Lower for loops: a compared eager pass begins and ends in stepc too, which takes up to 1.14 times as long as plain
  // eager, and the passes of a row are slower still, because they are cold.
  static constexpr double kMostSlowerInLoops = 1.0;

  // The number of next steps that should run eagerly and be timed.
  [[nodiscard]] int64_t wanted_eager() const {
    return replays_ == kLongRun ? std::max((is_long() ? kFew : kInARow) - eager_, int64_t{0}) : 0;
  }
  [[nodiscard]] bool is_long() const { return usual(replay_seconds_) >= kLong; }
  void run_eagerly(int64_t count) { eager_ += count; }
  void ran_eagerly(double seconds) { eager_seconds_.push_back(seconds); }
  // Whether the duration of the next replay matters.
  [[nodiscard]] bool times_replay() const { return replays_ >= kLongRun - kInARow && replays_ <= kLongRun; }
  // The ratio of replay time to eager time, once it is known and if it is above `most`.
  std::optional<double> replayed(double seconds, double most = kMostSlower) {
    if (times_replay()) replay_seconds_.push_back(seconds);
    if (replays_++ != kLongRun || eager_seconds_.empty()) return std::nullopt;
    const double slower = usual(replay_seconds_) / usual(eager_seconds_);
    return slower > most ? std::optional(slower) : std::nullopt;
  }

 private:
  // The lower quartile. The minimum is an undisturbed run, which few runs are like; a burst of other work on the
  // machine can distort the median.
  static double usual(std::vector<double> seconds) {
    if (seconds.empty()) return std::numeric_limits<double>::infinity();
    const auto quartile = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4);
    std::nth_element(seconds.begin(), quartile, seconds.end());
    return *quartile;
  }

  int64_t replays_ = 0, eager_ = 0;
  std::vector<double> eager_seconds_, replay_seconds_;
};

}  // namespace stepc
