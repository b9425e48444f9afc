// What an accelerated step has measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prediction.h"

namespace stepc {

// Measured over the life of a step. Numbers of one plan are those of the plan that ran last.
struct Stats {
  uint64_t nodes = 0;         // ATen calls in the trace
  uint64_t instructions = 0;  // of the plan: replayed calls (views are not replayed), or those of the Graph's Schedule
  uint64_t graph_nodes = 0;   // fast mode: of the Graph that runs instead of the calls; 0: none does
  uint64_t kernels = 0;       // generated ones among the instructions
  uint64_t guards = 0;        // host reads that must give the recorded number in a replay
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;
  uint64_t planned_peak_bytes = 0;     // step memory: arena and what outlives the step
  uint64_t measured_peak_bytes = 0;    // the same, counted in the last replay
  uint64_t eager_peak_bytes = 0;       // live bytes that the recorded eager step reached
  uint64_t verification_bytes = 0;     // held while a replay was compared
  uint64_t state_bytes = 0;            // parameters, buffers and optimizer state, outside the arena
  uint64_t device_graphs = 0;          // launched by the last replay on its device
  uint64_t served_allocations = 0;     // of the last replay
  uint64_t unplanned_allocations = 0;  // of all replays
  uint64_t recordings = 0;
  uint64_t replays = 0;
  uint64_t recorded_replays = 0;  // replays and verified replays that ran the recorded calls although there is a Graph
  uint64_t eager_calls = 0;       // steps that ran eagerly: without a plan, or beside a replay to verify it
  uint64_t verifications = 0;
  uint64_t plain_verifications = 0;    // of the verifications: with the plain Graph
  uint64_t eager_verifications = 0;    // of the verifications: with eager
  uint64_t float64_verifications = 0;  // of the verifications: eager differed, and float64 decided
  uint64_t guard_misses = 0;
  uint64_t checks = 0;         // steps that ran eagerly although there is a plan, to be compared with the plan's calls
  uint64_t failed_checks = 0;  // of the checks: steps that did something else than their plan, which no guard had seen
  uint64_t departures = 0;     // of traced steps from their plans
  uint64_t known_updates = 0;  // of optimizers in replays: host numbers were computed without their code
  uint64_t plans = 0;
  uint64_t late_plans = 0;  // made after the warm-up, which ends with the first replay or Step::end_warm_up()
  bool is_warm = false;
  double capture_seconds = 0;  // of the recorder itself, without kernels
  double settle_seconds = 0;   // of the program's garbage collections that recordings asked for
  double planning_seconds = 0;
  double verify_seconds = 0;
  double shadow_seconds = 0;   // of optimizers that run without kernels, with the copies that undo them
  double execute_seconds = 0;  // of replays, from the first instruction to the last; on a device, of the host's calls
  double device_seconds = 0;   // of device_replays, from what they launched first to the end of what they launched last
  uint64_t device_replays = 0;  // that were timed on their device
  std::string layout_algorithm;
  std::string traced;         // why the step's host code runs beside every replay; empty: it does not
  std::string eager_errs;     // where float64 decided: the least accurate call of eager
  std::string auto_budget;    // memory budget "auto": what it expects of its plan, then what was measured
  std::string verified_with;  // virtually captured step: what its run was compared with, and in how much memory
  std::vector<std::string> opaque_calls;  // fast mode: ATen calls of the Graph that no op expresses, each name once
  std::vector<std::string> warnings;
};

// Planned and measured numbers, as text for people.
std::string report_text(const Stats& stats, std::string_view mode, const std::optional<Prediction>& prediction = {});

}  // namespace stepc
