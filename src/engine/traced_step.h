// A step whose host code runs at every call, beside the plan: its calls are compared with the plan's as they come, and
// nothing is computed but what the plan computes. The plan runs up to each number that the host code reads, and the rest
// at the end. Where the host code makes another call than the plan's, or throws, the step is as if there were no plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "engine/program.h"

namespace stepc {

struct TracedStep {
  StepOutput output;
  // The plan ran. Else everything was computed as the host code asked for it, and this says why; or, with `unfit`,
  // nothing was done.
  bool is_replay = false;
  bool unfit = false;
  std::string difference;
  StepResult result;  // of the replay, without its tensors
};

// `tensors` are the program's by its keys, and the batch's after them: they are let go. `step` runs the user's function.
TracedStep run_traced(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<StepOutput()>& step, RunTimes* times);

}  // namespace stepc
