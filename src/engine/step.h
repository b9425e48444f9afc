// The engine behind accelerate(): decides for each call whether to record, verify, replay or run eagerly, and keeps the
// plans. Works on flat lists of tensors; the doors (engine/accelerate.h, python/) give it the user's types.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan.h"
#include "engine/program.h"
#include "engine/step_input.h"

namespace stepc {

// Measured over the life of a step; the plan's own numbers are those of the plan that ran last.
struct Stats {
  uint64_t nodes = 0;         // ATen calls in the trace
  uint64_t instructions = 0;  // of them replayed (views are not)
  uint64_t guards = 0;        // host reads that a replay holds to the recorded number
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;
  uint64_t planned_peak_bytes = 0;     // step memory: arena and what outlives the step
  uint64_t measured_peak_bytes = 0;    // the same, counted in the last replay
  uint64_t eager_peak_bytes = 0;       // live bytes that the recorded eager step reached
  uint64_t verification_bytes = 0;     // held while a replay was compared
  uint64_t state_bytes = 0;            // parameters, buffers and optimizer state, outside of the arena
  uint64_t served_allocations = 0;     // of the last replay
  uint64_t unplanned_allocations = 0;  // of all replays
  uint64_t recordings = 0;
  uint64_t replays = 0;
  uint64_t eager_calls = 0;  // steps that ran eagerly: without a plan, or beside a replay to verify it
  uint64_t verifications = 0;
  uint64_t guard_misses = 0;
  uint64_t plans = 0;
  double capture_seconds = 0;  // recorder's own time, kernels excluded
  double planning_seconds = 0;
  double verify_seconds = 0;
  double shadow_seconds = 0;  // optimizers run without kernels
  std::string layout_algorithm;
  std::vector<std::string> warnings;
};

class Step {
 public:
  using EagerFn = std::function<StepOutput()>;

  Step(std::unique_ptr<Program> program, Config config);
  ~Step();

  // One training step: `eager` is the user's function applied to `input`. Returned tensors own their storage and carry
  // no grad_fn. Whatever the step throws passes through.
  StepOutput run(const StepInput& input, const EagerFn& eager);

  const Stats& stats() const { return stats_; }
  std::string report() const;
  // The trace of the plan that ran last; empty before the first.
  std::string graph_text() const;

 private:
  // All that is known of one signature.
  struct Entry {
    std::string signature;
    std::map<std::string, std::string> description;
    std::list<Plan> plans;    // one a branch that the step takes; most recently used first
    std::vector<Trace> open;  // recordings that nothing agreed with yet
    int recordings = 0;       // since the last plan
    int explanations = 0;     // recordings that found new owners
    std::string last_obstacle;
    bool eager = false;
  };

  Entry& find_entry(const StepInput& input);
  StepOutput record_once(Entry& entry, const StepInput& input, const EagerFn& eager);
  void keep_recording(Entry& entry, Recording& recording);
  bool agree_with_any(Entry& entry, Trace& trace, std::string& reason);
  void add_plan(Entry& entry, Trace recorded, Trace agreed);
  std::optional<StepOutput> replay(Entry& entry, const EagerFn& eager);
  std::optional<StepOutput> verify(Entry& entry, std::list<Plan>::iterator plan, const EagerFn& eager,
                                   Plan::Outcome& outcome);
  bool must_verify(const Plan& plan) const;
  StepOutput run_eagerly(const EagerFn& eager);
  void give_up(Entry& entry, const std::string& reason);
  void list_tensors(const StepInput& input);
  void count(const Plan& plan, const MemoryCounts& memory);
  void warn(const std::string& text);

  std::unique_ptr<Program> program_;
  Config config_;
  Stats stats_;
  std::list<Entry> entries_;         // most recently used first
  std::vector<at::Tensor> tensors_;  // of the running step: the program's, then the batch's
};

}  // namespace stepc
