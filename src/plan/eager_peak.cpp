#include "plan/eager_peak.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/alignment.h"
#include "memory/layout.h"

namespace stepc {

namespace {

// The largest sum of live bytes that the recorded calls reached.
uint64_t recorded_peak_bytes(const Trace& trace) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // tick; bytes that come or go
  for (const Allocation& one : trace.allocations) {
    const auto bytes = static_cast<int64_t>(aligned(one.bytes));
    changes.emplace_back(one.first, bytes);
    changes.emplace_back(one.last, -bytes);
  }
  std::ranges::sort(changes);
  int64_t live = 0, peak = 0;
  for (const auto& [tick, bytes] : changes) peak = std::max(peak, live += bytes);
  return static_cast<uint64_t>(peak);
}

// A storage is needed from the first call that names it to the last, to the end if the program keeps it.
uint64_t needed_bytes(const Trace& trace) {
  std::vector<Interval> uses(trace.storages.size());
  const auto end = static_cast<int64_t>(trace.calls.size());
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    const auto now = static_cast<int64_t>(c);
    const auto use = [&](ValueId value) {
      Interval& interval = uses[trace.values[value.index()].storage.index()];
      if (interval.last == 0) interval.first = now;
      interval.last = now + 1;
    };
    for_each_value(trace.calls[c].args, use);
    for_each_value(trace.calls[c].results, use);
  }
  LayoutProblem problem;
  for (size_t s = 0; s < uses.size(); ++s) {
    const Storage& storage = trace.storages[s];
    if (storage.external || uses[s].last == 0 || storage.bytes == 0) continue;
    problem.intervals.push_back({storage.bytes, uses[s].first, storage.escapes ? end : uses[s].last});
  }
  return lower_bound(problem);
}

}  // namespace

uint64_t eager_peak_bytes(const Trace& trace) {
  return trace.allocations.empty() ? needed_bytes(trace) : recorded_peak_bytes(trace);
}

}  // namespace stepc
