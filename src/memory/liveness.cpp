#include "memory/liveness.h"

#include <algorithm>

#include "memory/spans.h"

namespace stepc {

LiveProfile live_profile(const LayoutProblem& problem) {
  struct Change {
    int64_t time;
    uint64_t bytes;
    bool begins;
  };
  std::vector<Change> changes;
  for (const memory::Span& span : memory::make_spans(problem)) {
    const Interval& interval = problem.intervals[span.source];
    changes.push_back({interval.first, span.bytes, true});
    changes.push_back({interval.last, span.bytes, false});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.time < b.time; });

  LiveProfile profile;
  uint64_t live = 0;
  for (size_t i = 0; i < changes.size();) {
    const int64_t time = changes[i].time;
    uint64_t freed = 0;
    for (; i < changes.size() && changes[i].time == time; ++i) {
      (changes[i].begins ? live : freed) += changes[i].bytes;
    }
    live -= freed;
    profile.points.push_back({time, live});
    if (live > profile.peak_bytes) {
      profile.peak_bytes = live;
      profile.peak_time = time;
    }
  }
  return profile;
}

std::vector<uint32_t> live_at(const LayoutProblem& problem, int64_t time) {
  std::vector<uint32_t> live;
  for (uint32_t i = 0; i < problem.intervals.size(); ++i) {
    const Interval& interval = problem.intervals[i];
    if (interval.first <= time && time < interval.last) live.push_back(i);
  }
  std::stable_sort(live.begin(), live.end(),
                   [&](uint32_t a, uint32_t b) { return problem.intervals[a].bytes > problem.intervals[b].bytes; });
  return live;
}

}  // namespace stepc
