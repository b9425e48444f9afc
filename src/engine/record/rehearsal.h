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

// The program's slots and host state, by handles; copies no values.
class SavedSlots {
 public:
  // `program` must outlive this object and must have been refreshed.
  SavedSlots(Program& program, const StepInput& input);
  // With `host_state`, effects of host code stay, except for the part that Program::save_host_state() saved in it.
  void restore(const std::shared_ptr<void>& host_state = nullptr) const;

  const std::vector<OwnedKey>& keys() const { return keys_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // the program's by its keys, then the batch's

 private:
  Program& program_;
  std::vector<OwnedKey> keys_;
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> memory_;  // of each tensor, so that restore() recognises and reverts a change of memory
  SavedGradients gradients_;
  std::shared_ptr<void> everything_;
};

// The slots, the values of their tensors, and the generators. Excludes what the program does not list.
class SavedState {
 public:
  SavedState(Program& program, const StepInput& input);
  void restore();

 private:
  SavedSlots slots_;
  Undo undo_;
};

// One step that was run and undone.
struct Rehearsal {
  std::vector<OwnedKey> keys;
  std::vector<Named> left;        // results, and copies of what the program held after it
  DType narrowest = DType::kF32;  // floating-point type that the step computes in
  std::string problem;            // what of the step cannot be undone, or is not in `left`; empty: nothing
};
Rehearsal rehearse(Program& program, const StepInput& input, const OpRules& rules,
                   const std::function<StepOutput()>& step);

// The distance of two rehearsals in results and updates, beyond rounding; empty: within rounding.
std::string difference_of(const Rehearsal& one, const Rehearsal& other);

}  // namespace stepc
