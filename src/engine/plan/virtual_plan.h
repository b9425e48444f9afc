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
  // What recordings of the running step would agree on, without allocations. After an obstacle: the last recording.
  Trace trace;
  std::string obstacle;  // why the step would run eagerly, empty if it can be replayed
  // Numbers that the step's own code reads decide what it does. The trace is one path of the step, with an event of
  // kind kRead for each number, and holds as long as that code makes the same calls (ir/agree.h, agree_on_calls()).
  bool is_path = false;
  uint64_t calls = 0;
  uint64_t parameters = 0;  // elements
  uint64_t parameter_bytes = 0;
  uint64_t buffer_bytes = 0;  // and what else the program keeps for the step
  uint64_t optimizer_bytes = 0;
  // The largest sum of bytes that the step's own values need at one time: with gradients, without the workspaces of
  // kernels. No memory layout is smaller.
  uint64_t step_bytes_lower_bound = 0;
  int recordings = 0;
  double seconds = 0;

  uint64_t state_bytes() const { return parameter_bytes + buffer_bytes + optimizer_bytes; }
  std::string report() const;
};

// `step` is the user's function applied to `input`. Tensors of `input` that have values keep them: what the step
// computes from them alone (masks, positions) is computed. The step runs a few times, until the optimizers have made
// their state and two recordings agree. Throws UserError with operator and source line if it reads a value that was
// never computed. Host code that neither `program` nor this function knows runs too, and its effects stay.
VirtualPlan plan_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                           const OpRules& rules, VirtualKernels::Reads reads = VirtualKernels::Reads::kThrow);

// The same for one path of the step: the path on which it reads `numbers`, as VirtualKernels takes them, and stand-ins
// after them. A path may end in an error of the step; the trace then ends there, without results. With
// `is_from_same_state` each recording begins in the program's present state, so its code does not count on between
// them; otherwise each begins in the state that the one before has left.
VirtualPlan plan_path_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                                const OpRules& rules, std::vector<Arg> numbers, bool is_from_same_state = false);

// Runs the step's own code once on `numbers`, without executing anything. Restores the program; if `keeps` returns true
// for the run, the effects of Python code outside tensors and optimizers stay.
struct VirtualRun {
  Recording recording;             // up to where the run came; its tensors have no values
  std::exception_ptr thrown = {};  // by the step
};
VirtualRun run_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                         const OpRules& rules, std::vector<Arg> numbers,
                         const std::function<bool(const VirtualRun&)>& keeps = {});

// The number of calls at the beginning that the traces have in common, apart from numbers that the host passes or
// reads.
size_t calls_alike(const Trace& one, const Trace& other);

}  // namespace stepc
