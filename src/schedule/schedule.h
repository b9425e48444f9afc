// Schedule: the step as instructions over one arena, everything decided: which calls run, where each of their
// allocations lies, what is handed to the system. Plain data; the executor runs it, reports print it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/trace.h"

namespace stepc {

// Where the n-th allocation of an instruction lies.
struct Placement {
  uint64_t bytes = 0;
  uint64_t offset = 0;
  bool system = false;  // outlives the step: not in the arena
  StorageId storage;    // invalid: a workspace
  bool operator==(const Placement&) const = default;
};

// One call of the trace with its slice of Schedule::placements.
struct Instruction {
  CallId call;
  uint32_t first_placement = 0;
  uint32_t placements = 0;
  uint64_t scratch_bytes = 0;  // for each intra-op worker, aligned to 64
  uint64_t scratch_offset = 0;
  bool operator==(const Instruction&) const = default;
};

struct Schedule {
  std::vector<Instruction> instructions;
  std::vector<Placement> placements;
  int workers = 0;                      // intra-op worker threads that scratch is planned for, the leader not counted
  uint64_t arena_bytes = 0;             // size of the arena
  uint64_t planned_peak_bytes = 0;      // the arena and what outlives the step, at their largest
  uint64_t live_lower_bound_bytes = 0;  // largest sum of live planned bytes: no arena can be smaller
  std::string layout_algorithm;
  bool operator==(const Schedule&) const = default;
};

// The schedule of `exact` mode: the trace's own calls in their order, views left out, and memory planned from the
// recorded lifetimes. `threads` is the intra-op thread count that the step was recorded with.
Schedule schedule_trace(const Trace& trace, int threads);

// Throws InternalError when two placements that live at the same time overlap, or one leaves the arena.
void verify(const Trace& trace, const Schedule& schedule);

}  // namespace stepc
