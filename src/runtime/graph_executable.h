// GraphExecutable: a planned Graph bound to the program, the `fast` counterpart of Executable. Owns the plan and the
// tensors over the arena; borrows the program's tensors for the length of a run.
#pragma once

#include <memory>
#include <string>

#include "ir/trace.h"
#include "runtime/executable.h"
#include "runtime/graph_plan.h"

namespace stepc {

class GraphExecutable {
 public:
  // `trace` is what the plan's Graph was made of: it says where inputs stand and which numbers host code supplies.
  // Throws UserError for a step that a Graph cannot run: pauses, host code between kernels, generators of the program's
  // own.
  GraphExecutable(const Trace& trace, GraphPlan plan);
  ~GraphExecutable();
  GraphExecutable(const GraphExecutable&) = delete;
  GraphExecutable& operator=(const GraphExecutable&) = delete;

  // The trace's `call` is given `number` as its argument `arg` in the next run.
  void supply(CallId call, size_t arg, const c10::IValue& number);

  // Runs the step once on the calling thread, in its arena. The externals are the trace's, as for Executable, and must
  // fit. What a guard needs runs first, then the program's host code that stands after guards (on_event), then the
  // rest. `stopped` of the result says why host code does something else. nullopt: a guard did not hold, or an
  // index is out of range. Either way nothing was written. The first run finds out which kernels need more scratch
  // memory than was known, and the arena is laid out anew for the next.
  std::optional<StepResult> run(const RunInputs& inputs);
  // The host has supplied an integer that the Graph has built in as another one: it is not the program's step.
  bool is_unfit() const;

  const GraphPlan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stepc
