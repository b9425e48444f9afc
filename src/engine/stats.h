// What an accelerated step has measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prediction.h"

namespace stepc {

// Measured over the life of a step; the plan's own numbers are those of the plan that ran last.
struct Stats {
  uint64_t nodes = 0;         // ATen calls in the trace
  uint64_t instructions = 0;  // of them replayed (views are not), or of the Graph
  uint64_t graph_nodes = 0;   // fast mode: of the Graph that runs in their stead; 0: none does
  uint64_t kernels = 0;       // generated ones among its instructions
  uint64_t guards = 0;        // host reads that a replay holds to the recorded number
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;
  uint64_t planned_peak_bytes = 0;     // step memory: arena and what outlives the step
  uint64_t measured_peak_bytes = 0;    // the same, counted in the last replay
  uint64_t eager_peak_bytes = 0;       // live bytes that the recorded eager step reached
  uint64_t verification_bytes = 0;     // held while a replay was compared
  uint64_t state_bytes = 0;            // parameters, buffers and optimizer state, outside of the arena
  uint64_t device_graphs = 0;          // that the last replay launched on its device
  uint64_t served_allocations = 0;     // of the last replay
  uint64_t unplanned_allocations = 0;  // of all replays
  uint64_t recordings = 0;
  uint64_t replays = 0;
  uint64_t recorded_replays = 0;  // of those and of verified ones: ran the recorded calls although there is a Graph
  uint64_t eager_calls = 0;       // steps that ran eagerly: without a plan, or beside a replay to verify it
  uint64_t verifications = 0;
  uint64_t plain_verifications = 0;    // of them with the plain Graph
  uint64_t eager_verifications = 0;    // and with eager
  uint64_t float64_verifications = 0;  // where eager differed, and float64 decided
  uint64_t guard_misses = 0;
  uint64_t checks = 0;         // steps that ran as they are although there is a plan, to be compared with its calls
  uint64_t failed_checks = 0;  // of them: those that did something else than their plan, which no guard had seen
  uint64_t departures = 0;     // of traced steps from their plans
  uint64_t known_updates = 0;  // of optimizers in replays: those whose host numbers were computed without their code
  uint64_t plans = 0;
  uint64_t late_plans = 0;  // of them: made after the warm-up, which ends with the first replay or Step::end_warm_up()
  bool is_warm = false;
  double capture_seconds = 0;  // recorder's own time, kernels excluded
  double settle_seconds = 0;   // the program's garbage collections that recordings asked for
  double planning_seconds = 0;
  double verify_seconds = 0;
  double shadow_seconds = 0;   // optimizers run without kernels, and what is copied to take that back
  double execute_seconds = 0;  // replays, from the first instruction to the last
  std::string layout_algorithm;
  std::string traced;         // why the step's host code runs beside every replay; empty: it does not
  std::string eager_errs;     // where float64 decided: which of eager's calls was the worse one
  std::string auto_budget;    // memory budget "auto": what it expects of its plan, then what was measured
  std::string verified_with;  // a virtually captured step: what its run was compared with, and in how much memory
  std::vector<std::string> opaque_calls;  // fast mode: ATen calls of the Graph that no op expresses, each once
  std::vector<std::string> warnings;
};

// Planned beside measured, for people.
std::string report_text(const Stats& stats, std::string_view mode, const std::optional<Prediction>& prediction = {});

}  // namespace stepc
