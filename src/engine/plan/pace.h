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
  static constexpr int64_t kInARow = 32;   // eager steps, and replays before them: the first ones of either are cold
  static constexpr int64_t kFew = 4;       // eager steps, where these are long
  static constexpr double kLong = 0.05;    // seconds
  static constexpr double kMostSlower = 1.2;
  // A loop's pass that is left to eager begins and ends here too, which takes up to 1.14 times as long, and the passes
  // of a row are slower still, being cold.
  static constexpr double kMostSlowerInLoops = 1.0;

  // So many steps that come next are to run as they are, and be timed.
  [[nodiscard]] int64_t wanted_eager() const {
    return replays_ == kLongRun ? std::max((is_long() ? kFew : kInARow) - eager_, int64_t{0}) : 0;
  }
  [[nodiscard]] bool is_long() const { return usual(replay_seconds_) >= kLong; }
  void run_eagerly(int64_t count) { eager_ += count; }
  void ran_eagerly(double seconds) { eager_seconds_.push_back(seconds); }
  // Whether it matters how long the next replay takes.
  [[nodiscard]] bool times_replay() const { return replays_ >= kLongRun - kInARow && replays_ <= kLongRun; }
  // How many times as long as eager the replays took, once that is known and above `most`.
  std::optional<double> replayed(double seconds, double most = kMostSlower) {
    if (times_replay()) replay_seconds_.push_back(seconds);
    if (replays_++ != kLongRun || eager_seconds_.empty()) return std::nullopt;
    const double slower = usual(replay_seconds_) / usual(eager_seconds_);
    return slower > most ? std::optional(slower) : std::nullopt;
  }

 private:
  // The lower quartile: the best of a row is one that nothing disturbed and few are like, its median one that a burst
  // of other work on the machine can reach.
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
