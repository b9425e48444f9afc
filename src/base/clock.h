// The clock that durations are measured with.
#pragma once

#include <chrono>

namespace stepc {

using Clock = std::chrono::steady_clock;  // never goes back

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace stepc
