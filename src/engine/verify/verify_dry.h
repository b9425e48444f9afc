// Verification of a step that was captured without executing it: before its run counts, and within its memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace stepc {

// Of a step that was captured without executing it: its run is compared before it counts, and within the memory that
// the plan takes. With the plain Graph, unless even in parts that needs more than the machine, or a budget, has; with
// eager, too, where that, with a copy of all that it changes, fits the budget, or else the plan.
struct DryVerification {
  Plan::Outcome outcome;   // without a result the plan does not fit the program
  std::string difference;  // empty: the runs agree, or there was nothing to compare with
  std::string with;        // what it differs from
  std::string wrong_rule;  // of an operator of the program's own
  bool with_plain = false, with_eager = false;
  uint64_t plain_bytes = 0, eager_bytes = 0;  // what either would take beside the program's tensors
};
// For reports.
std::string to_text(const DryVerification& verification);
// What the plain Graph may take beside the program's tensors, for its dry run to stay within the plan's own memory.
uint64_t most_of_plain(const Schedule& planned);
DryVerification verify_dry(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, const MemoryBudget& budget);

}  // namespace stepc
