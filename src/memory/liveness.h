// Live bytes over time: what a report draws and what no layout can beat. Times are those of memory/layout.h.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/layout.h"

namespace stepc {

// From `time` on, until the next point, `bytes` are live.
struct LivePoint {
  int64_t time = 0;
  uint64_t bytes = 0;
  bool operator==(const LivePoint&) const = default;
};

struct LiveProfile {
  std::vector<LivePoint> points;  // ascending, one for every tick at which something begins or ends
  uint64_t peak_bytes = 0;
  int64_t peak_time = 0;  // the first tick at which the peak is reached
};

// Sizes are rounded up to the problem's alignment; with alignment 1 the profile is that of the requested bytes.
LiveProfile live_profile(const LayoutProblem& problem);

// The intervals live at `time`, largest first: who makes up a peak.
std::vector<uint32_t> live_at(const LayoutProblem& problem, int64_t time);

}  // namespace stepc
