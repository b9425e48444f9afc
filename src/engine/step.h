// The engine behind accelerate(): decides for each call whether to record, verify, replay or run eagerly, and keeps the
// plans. Works on flat lists of tensors; engine/accelerate.h gives it the user's types.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/compile.h"
#include "engine/config.h"
#include "engine/program.h"

namespace stepc {

// Measured over the life of a step; the plan's own numbers are those of the plan that ran last.
struct Stats {
  uint64_t nodes = 0;         // ATen calls in the trace
  uint64_t instructions = 0;  // of them replayed (views are not)
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;
  uint64_t planned_peak_bytes = 0;     // step memory: arena and what outlives the step
  uint64_t measured_peak_bytes = 0;    // the same, counted in the last replay
  uint64_t eager_peak_bytes = 0;       // live bytes that the recorded eager step reached
  uint64_t verification_bytes = 0;     // held while the first replay was compared
  uint64_t state_bytes = 0;            // parameters, buffers and optimizer state, outside of the arena
  uint64_t served_allocations = 0;     // of the last replay
  uint64_t unplanned_allocations = 0;  // of all replays
  uint64_t recordings = 0;
  uint64_t replays = 0;
  uint64_t eager_calls = 0;
  uint64_t plans = 0;
  double capture_seconds = 0;  // recorder's own time, kernels excluded
  double planning_seconds = 0;
  double verify_seconds = 0;
  std::string layout_algorithm;
};

class Step {
 public:
  using EagerFn = std::function<std::vector<at::Tensor>()>;

  Step(Program program, Config config);

  // One training step on `batch`: `eager` is the user's function applied to it. Returned tensors own their storage and
  // carry no grad_fn. Whatever the step throws passes through.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& batch, const EagerFn& eager);

  const Stats& stats() const { return stats_; }
  std::string report() const;
  // The text of the plan that ran last; empty before the first.
  std::string graph_text() const;

 private:
  struct Plan {
    std::string signature;
    std::map<std::string, std::string> description;
    std::optional<Trace> previous;  // the last recording, until two agree
    int recordings = 0;
    bool eager = false;             // cannot be replayed
    std::vector<size_t> externals;  // where each of the trace's externals stands in Program::list()
    std::vector<std::string> dropped_gradients;
    Compiled compiled;
    bool verified = false;
  };

  Plan& find_plan(const std::vector<OwnedTensor>& owned);
  std::vector<at::Tensor> record_once(Plan& plan, const std::vector<at::Tensor>& batch, const EagerFn& eager);
  std::vector<at::Tensor> replay(Plan& plan, std::vector<OwnedTensor> owned, const std::vector<at::Tensor>& batch,
                                 const EagerFn& eager);
  std::vector<at::Tensor> verify_first(Plan& plan, const std::vector<at::Tensor>& externals,
                                       const std::vector<at::Tensor>& batch, const EagerFn& eager);
  std::vector<at::Tensor> run_eagerly(const EagerFn& eager);
  void compile(Plan& plan, const Trace& trace, const std::vector<OwnedTensor>& owned);
  void count(const MemoryCounts& memory);

  Program program_;
  Config config_;
  Stats stats_;
  std::list<Plan> plans_;  // most recently used first
};

}  // namespace stepc
