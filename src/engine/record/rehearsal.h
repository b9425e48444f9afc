// Rehearsals: a step runs and is undone. For steps on made inputs, before or between those that count.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capture/op_rule.h"
#include "engine/compare/run_difference.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/step_input.h"
#include "engine/program/undo.h"

namespace stepc {

// The program's slots and host state, by handles: no values are copied.
class SavedSlots {
 public:
  // `program` must outlive this, and have been refreshed.
  SavedSlots(Program& program, const StepInput& input);
  // With `host_state`, what host code has done stays, but for what the program saves as that (Program).
  void restore(const std::shared_ptr<void>& host_state = nullptr) const;

  const std::vector<OwnedKey>& keys() const { return keys_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // the program's by its keys, and the batch's

 private:
  Program& program_;
  std::vector<OwnedKey> keys_;
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> memory_;  // the same, to recognise and put back a tensor that is given other memory
  SavedGradients gradients_;
  std::shared_ptr<void> everything_;
};

// And the values of all that, and of the generators. What the program does not list is not among it.
class SavedState {
 public:
  SavedState(Program& program, const StepInput& input);
  void restore();

 private:
  SavedSlots slots_;
  Undo undo_;
};

// One step that was run and taken back.
struct Rehearsal {
  std::vector<OwnedKey> keys;
  std::vector<Named> left;  // results, and copies of what the program held behind it
  bool narrow = false;      // it computes in bf16 or f16
  std::string problem;      // what of it cannot be taken back, or is not among `left`; empty: nothing
};
Rehearsal rehearse(Program& program, const StepInput& input, const OpRules& rules,
                   const std::function<StepOutput()>& step);

// How far two are apart in results and updates, within rounding; empty: no further.
std::string difference_of(const Rehearsal& one, const Rehearsal& other);

}  // namespace stepc
