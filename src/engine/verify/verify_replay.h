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
  std::string from;             // what it differs from
  bool with_plain = false;      // it was compared with the plain Graph
  bool with_eager = false;      // and with eager, or with the recorded calls in its stead
  bool ran_eagerly = false;     // the step that counts is eager's
  std::string wrong_rule;       // of an operator of the program's own, which the plan's run has shown
  std::string eager_errs;       // float64 decided for the replay: which of eager's calls was the worse one
  StepOutput output;            // of the step that counts
  uint64_t snapshot_bytes = 0;  // what the comparison itself held
  // Of a traced step: the last plan that it followed, and whether that was compared; how it left that.
  std::shared_ptr<Plan> plan;
  bool compared = false;
  Departure departure;
  std::string decided_otherwise;       // the plan would have read another truth or integer than eager: where
  std::optional<Recording> recording;  // of a step that left its plan, with the output
};

// `tensors` are the program's by its keys, and the batch's after them. `step` runs the user's function.
Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, bool eager_fits);

// The same for a traced step that left its plans and was recorded: `plan` is of that recording, or has its calls.
// `output` is the step's. Not compared where the plan cannot run on what was there `before`.
Verification verify_recorded(Plan& plan, Program& program, const BeforeStep& before, const Trace& recorded,
                             StepOutput output, bool eager_fits);

// The same for a traced step: `step` runs once, eagerly, which tells what its host code supplies and which of `plans`
// it follows. That plan runs from the same state if it `is_due`, and then what eager left is put back. `tensors` are
// let go. `recorded`: the program and the batch, for a step that leaves its plans.
Verification verify_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program,
                           std::vector<at::Tensor>& tensors, const std::function<StepOutput()>& step,
                           RecordedProgram& recorded, const std::function<bool(const Plan&)>& is_due,
                           const std::function<bool(const Plan&)>& eager_fits);

}  // namespace stepc
