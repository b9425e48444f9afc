#include "schedule/schedule.h"

#include <algorithm>

#include "base/check.h"
#include "ir/alignment.h"
#include "memory/layout.h"
#include "memory/liveness.h"

namespace stepc {

namespace {
// The calls that the program's host code makes itself: those of eager events, and the own calls of shadow events.
std::vector<bool> calls_left_out(const Trace& trace) {
  std::vector<bool> out(trace.calls.size(), false);
  for (const HostEvent& event : trace.events) {
    for (CallId call : event.own_calls) out[call.index()] = true;
    if (event.kind == HostEvent::Kind::kEager)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) out[c] = true;
  }
  return out;
}

// The intervals that the arena holds: planned allocations first, then the workers' scratch, in the trace's order.
LayoutProblem layout_problem(const Trace& trace, int workers) {
  const std::vector<bool> left_out = calls_left_out(trace);
  LayoutProblem problem;
  problem.alignment = kAlignment;
  for (const Allocation& allocation : trace.allocations)
    if (!allocation.kept && !left_out[allocation.call.index()])
      problem.intervals.push_back({allocation.bytes, allocation.first, allocation.last});
  if (workers > 0)
    for (const WorkerScratch& scratch : trace.scratch)
      if (!left_out[scratch.call.index()])
        problem.intervals.push_back(
            {aligned(scratch.bytes) * static_cast<uint64_t>(workers), scratch.first, scratch.last});
  return problem;
}

// What the step hands to the program counts from its allocation to the end.
uint64_t peak_with_kept(const Trace& trace, uint64_t arena_bytes) {
  uint64_t kept = 0;
  for (const Allocation& allocation : trace.allocations)
    if (allocation.kept) kept += aligned(allocation.bytes);
  return arena_bytes + kept;
}
}  // namespace

Schedule schedule_trace(const Trace& trace, int threads) {
  Schedule schedule;
  schedule.workers = std::max(threads - 1, 0);
  const LayoutProblem problem = layout_problem(trace, schedule.workers);
  const Layout layout = plan_layout(problem);
  schedule.arena_bytes = layout.bytes;
  schedule.layout_algorithm = layout.algorithm;
  schedule.live_lower_bound_bytes = lower_bound(problem);
  schedule.planned_peak_bytes = peak_with_kept(trace, layout.bytes);

  const std::vector<bool> left_out = calls_left_out(trace);
  size_t interval = 0;
  size_t allocation = 0;
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    Instruction instruction;
    instruction.call = CallId(c);
    instruction.first_placement = static_cast<uint32_t>(schedule.placements.size());
    for (; allocation < trace.allocations.size() && trace.allocations[allocation].call.index() == c; ++allocation) {
      if (left_out[c]) continue;
      const Allocation& one = trace.allocations[allocation];
      Placement placement{one.bytes, 0, one.kept, one.storage};
      if (!one.kept) placement.offset = layout.offsets[interval++];
      schedule.placements.push_back(placement);
      ++instruction.placements;
    }
    const bool skip = left_out[c] || (is_view(trace, trace.calls[c]) && instruction.placements == 0);
    if (!skip) schedule.instructions.push_back(instruction);
  }
  if (schedule.workers > 0) {
    size_t next = 0;
    for (Instruction& instruction : schedule.instructions) {
      while (next < trace.scratch.size() && left_out[trace.scratch[next].call.index()]) ++next;
      if (next == trace.scratch.size() || trace.scratch[next].call != instruction.call) continue;
      instruction.scratch_bytes = aligned(trace.scratch[next++].bytes);
      instruction.scratch_offset = layout.offsets[interval++];
    }
  }
  INTERNAL_CHECK_EQ(interval, problem.intervals.size());
  return schedule;
}

void verify(const Trace& trace, const Schedule& schedule) {
  const LayoutProblem problem = layout_problem(trace, schedule.workers);
  Layout layout;
  layout.bytes = schedule.arena_bytes;
  for (const Placement& placement : schedule.placements)
    if (!placement.system) layout.offsets.push_back(placement.offset);
  for (const Instruction& instruction : schedule.instructions)
    if (instruction.scratch_bytes != 0) layout.offsets.push_back(instruction.scratch_offset);
  verify_layout(problem, layout);
}

}  // namespace stepc
