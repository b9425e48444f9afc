// A plan on paper: a step captured without executing it and without allocating its memory, so also for a model larger
// than the machine. The program keeps its bits.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "capture/recorder.h"
#include "capture/virtual/virtual_kernels.h"
#include "engine/program/program.h"
#include "engine/program/step_input.h"

namespace stepc {

struct VirtualPlan {
  // What recordings of the running step would agree on, but for allocations. After an obstacle the last recording.
  Trace trace;
  std::string obstacle;  // why the step would run eagerly, empty if it can be replayed
  // What the step does is decided by numbers that its own code reads: the trace is one path of it, with an event of
  // kind kRead for each of them, and holds while that code makes the same calls (ir/agree.h, agree_on_calls()).
  bool is_path = false;
  uint64_t calls = 0;
  uint64_t parameters = 0;  // elements
  uint64_t parameter_bytes = 0;
  uint64_t buffer_bytes = 0;  // and whatever else the program keeps for the step
  uint64_t optimizer_bytes = 0;
  // The largest sum of bytes that the step's own values need at once, gradients among them, kernels' workspaces not: no
  // memory layout is smaller.
  uint64_t step_bytes_lower_bound = 0;
  int recordings = 0;
  double seconds = 0;

  uint64_t state_bytes() const { return parameter_bytes + buffer_bytes + optimizer_bytes; }
  std::string report() const;
};

// `step` is the user's function applied to `input`, whose tensors keep their values where they have any: what the step
// computes from them alone (masks, positions) is computed. It runs a few times, until the optimizers have made their
// state and two recordings agree. Throws UserError with operator and source line when it reads a value that was never
// computed. Host code of the program that neither `program` nor this knows of runs too, and its effects stay.
VirtualPlan plan_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                           const OpRules& rules, VirtualKernels::Reads reads = VirtualKernels::Reads::kThrow);

// The same of one path of the step: that on which it reads `numbers`, as VirtualKernels takes them, and then whatever
// stands in. A path may end in an error of the step's own: the trace then ends there, and holds no results. With
// `is_from_same_state` each recording begins where the program stands, so that what its code counts does not go on
// between them; else each begins where the one before has left it.
VirtualPlan plan_path_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                                const OpRules& rules, std::vector<Arg> numbers, bool is_from_same_state = false);

// What the step's own code does where it reads `numbers`: once, and without executing anything. The program is left as
// it was; where `keeps` says so of the run, what Python code has done outside of tensors and optimizers stays.
struct VirtualRun {
  Recording recording;             // as far as it came; its tensors have no values
  std::exception_ptr thrown = {};  // by the step
};
VirtualRun run_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                         const OpRules& rules, std::vector<Arg> numbers,
                         const std::function<bool(const VirtualRun&)>& keeps = {});

// How many calls the two begin with alike, but for the numbers that the host passes or reads.
size_t calls_alike(const Trace& one, const Trace& other);

}  // namespace stepc
