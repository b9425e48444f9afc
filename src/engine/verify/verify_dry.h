// Verification of a step that was captured without executing it: before its run counts, and within its memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace stepc {

// Compares the run of a virtually captured step before it counts, within the memory that the plan takes: with the plain
// Graph, unless even in parts it needs more memory than the machine or a budget has; and with eager, if the step draws
// no random numbers and eager, with a copy of everything that it changes, fits the plan's memory or a budget.
struct DryVerification {
  Plan::Outcome outcome;   // without a result the plan does not fit the program
  std::string difference;  // empty: the runs agree, or there was nothing to compare with
  std::string with;        // the run from which it differs
  std::string wrong_rule;  // of the program's own operator
  bool with_plain = false, with_eager = false;
  uint64_t plain_bytes = 0, eager_bytes = 0;  // what each would take beside the program's tensors
};
// The text for reports.
std::string to_text(const DryVerification& verification);
// The most that the plain Graph may take beside the program's tensors, so that its dry run stays within the plan's own
// memory.
uint64_t most_of_plain(const Schedule& planned);
DryVerification verify_dry(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, const MemoryBudget& budget);

}  // namespace stepc
