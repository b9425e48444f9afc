// The program and the batch of one step as the recorder needs them, and what happens to tensors without an owner that a
// recording finds.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "capture/op_rule.h"
#include "capture/recorder.h"
#include "engine/program/program.h"
#include "engine/program/step_input.h"

namespace stepc {

// The program's tensors by its keys, and the batch's after them.
std::vector<at::Tensor> list_tensors(const Program& program, const StepInput& input);

// Ends a step, recorded or not: what it returns owns its storage, apart from `program`'s, and carries no grad_fn.
void own_results(StepOutput& output, const std::vector<at::Tensor>& program);

// Finds the owners of what a recording says outlives the step, for the next recording to know. Returns whether any was
// found; what has none stays among the unowned.
bool explain_unowned(Program& program, Recording& recording);
// They become obstacles.
void refuse_unowned(Recording& recording);
// Of a traced step: a tensor that it only reads is data and may be another tensor next time; no owner is looked for.
void leave_out_data(Recording& recording);
// Of a traced step: a tensor that it made and keeps where only its own code finds it becomes a result without an owner.
void leave_to_host(Recording& recording);

// Borrows all three for one step.
class RecordedStep final : public RecordedProgram {
 public:
  RecordedStep(Program& program, const StepInput& input, const OpRules& rules)
      : program_(program), input_(input), rules_(rules) {}
  std::vector<OwnedTensor> list() override;
  std::vector<std::pair<std::string, at::Generator>> generators() override { return program_.all_generators(); }
  bool can_rebind(Owner owner) override { return owner == Owner::kGradient || program_.can_rebind(owner); }
  void find_events(Trace& trace) override { program_.find_events(trace); }
  const OpRules& op_rules() override { return rules_; }
  std::string source_line() override { return program_.source_line(); }
  void settle(bool all) override { program_.settle(all); }

 private:
  Program& program_;
  const StepInput& input_;
  const OpRules& rules_;
};

}  // namespace stepc
