// The proof of a plan. If recorded kernels ran: a replay against eager, bit by bit. If a Graph ran: against the plain
// Graph, one ATen call a node, which draws the same random numbers; and against eager, because only eager shows a fault
// of capture, unless the step draws or eager needs more memory than there may be. Values agree within rounding. A wrong
// plan changes nothing: eager's step counts, or, if eager does not run, a replay that agreed.
//
// Eager may be the less accurate one: it sums gradients in bf16 and norms in f32. If it differs from a replay, the next
// call of the step decides: the recorded calls, which must reproduce eager's bits, run again, each compared with
// float64 (calls_in_float64.h), and the replay must agree with that.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/traced_step.h"

namespace stepc {

struct Verification {
  Plan::Outcome outcome;        // of the replay; without a result eager did not run and nothing changed
  std::string difference;       // empty: the replay agrees with what it was compared with, or plan.dispute says more
  std::string from;             // the run from which it differs
  bool with_plain = false;      // it was compared with the plain Graph
  bool with_eager = false;      // also with eager, or with the recorded calls instead of eager
  bool ran_eagerly = false;     // the step that counts is eager's
  std::string wrong_rule;       // of the program's own operator, found in the plan's run
  std::string eager_errs;       // float64 decided for the replay: the least accurate call of eager
  StepOutput output;            // of the step that counts
  uint64_t snapshot_bytes = 0;  // held by the comparison itself
  // Of a traced step: the last plan that it followed, whether that plan was compared, and how the step left it.
  std::shared_ptr<Plan> plan;
  bool compared = false;
  Departure departure;
  std::string decided_otherwise;       // where the plan would have read another boolean or integer than eager
  std::optional<Recording> recording;  // of a step that left its plan, with the output
};

// `tensors` are the program's by its keys, then the batch's. `step` runs the user's function.
Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, bool eager_fits);

// The same for a traced step that left its plans and was recorded: `plan` was made from that recording or has its
// calls. `output` is the step's. Nothing is compared if the plan cannot run on what there was `before`.
Verification verify_recorded(Plan& plan, Program& program, const BeforeStep& before, const Trace& recorded,
                             StepOutput output, bool eager_fits);

// The same for a traced step. `step` runs once, eagerly; this run shows what its host code supplies and which of
// `plans` it follows. If that plan `is_due`, it runs from the same state, and then eager's state is restored. Releases
// `tensors`. `recorded`: the program and the batch, for a step that leaves its plans.
Verification verify_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program,
                           std::vector<at::Tensor>& tensors, const std::function<StepOutput()>& step,
                           RecordedProgram& recorded, const std::function<bool(const Plan&)>& is_due,
                           const std::function<bool(const Plan&)>& eager_fits);

}  // namespace stepc
