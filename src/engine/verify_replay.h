// The proof of a plan: a replay against eager, bit by bit where recorded kernels ran, within rounding where a Graph
// did; where that draws random numbers of its own, against the plain Graph, one ATen call a node, which draws the same.
// The eager step is the one that counts, so effects happen once and a wrong plan changes nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan.h"

namespace stepc {

struct Verification {
  Plan::Outcome outcome;        // of the replay; without a result eager did not run and nothing changed
  std::string difference;       // empty: the replay agrees with what it was compared with
  bool with_plain = false;      // which is the plain Graph, not eager
  StepOutput output;            // eager's
  uint64_t snapshot_bytes = 0;  // what the comparison itself held
};

// `tensors` are the program's by its keys, and the batch's after them. `step` runs the user's function.
Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step);

// Of a step that was captured without executing it: its run is compared before it counts, and within the memory that
// the plan takes. With the plain Graph, unless even in parts that needs more than the machine, or a budget, has; with
// eager, too, where that, with a copy of all that it changes, fits the budget, or else the plan.
struct DryVerification {
  Plan::Outcome outcome;   // without a result the plan does not fit the program
  std::string difference;  // empty: the runs agree, or there was nothing to compare with
  std::string with;        // what it differs from
  bool with_plain = false, with_eager = false;
  uint64_t plain_bytes = 0, eager_bytes = 0;  // what either would take beside the program's tensors
};
// For reports.
std::string to_text(const DryVerification& verification);
DryVerification verify_dry(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, const MemoryBudget& budget);

}  // namespace stepc
