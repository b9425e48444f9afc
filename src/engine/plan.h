// A plan: one captured variant of a step, compiled, and what replaying it takes from the program around it. Owns the
// executable; borrows the program's tensors for the length of a run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/shadow.h"
#include "engine/compile.h"
#include "engine/program.h"
#include "engine/undo.h"

namespace stepc {

// The gradients of a program's parameters, to be put back. Handles only.
class SavedGradients {
 public:
  SavedGradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors);
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // parameter, its gradient
};

class Plan {
 public:
  // `recorded` is the last of the recordings that agreed, `agreed` what they agreed on; `tensors` are the program's by
  // its keys, and the batch's after them.
  // With `kernels` the step runs as a Graph, in fast mode; why_exact() says where it cannot.
  Plan(Trace recorded, Trace agreed, const Program& program, const std::vector<at::Tensor>& tensors, int threads,
       KernelSources* kernels = nullptr, const MemoryBudget& budget = {});

  // What one run came to. Without `result` nothing has changed in the program.
  struct Outcome {
    std::optional<StepResult> result;
    std::optional<size_t> missed_read;  // another branch: this guard read `read`
    Arg read;
    std::string change;  // or: why the plan no longer fits the program
  };

  // Runs the step on the program as it is. The result's rebindings are left to apply(). What kernels or host code throw
  // passes through, with everything undone that can be.
  // `times`, if there is one, gets when each instruction ran.
  Outcome run(Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times = nullptr);

  // Gives the program's slots the tensors that the step left there.
  void apply(Program& program, const std::vector<at::Tensor>& tensors, const StepResult& result) const;

  // All tensors that the step may change, for a full undo.
  std::vector<at::Tensor> changed(const std::vector<at::Tensor>& tensors) const;
  std::vector<at::Generator> generators(const Program& program) const;

  // Whether this is the variant that begins as `other` does up to its read `index`, and then reads `number`.
  bool continues(const Plan& other, size_t index, const Arg& number) const;

  // A run that came to a pause, and how it goes on.
  bool is_paused() const { return executable_->is_paused(); }
  StepResult resume(const std::vector<at::Tensor>& incoming) { return executable_->resume(incoming); }
  void abandon() { executable_->abandon(); }
  // The door's number for what the outputs at the pause are made into.
  int64_t pause_structure() const;

  const Trace& recorded() const { return recorded_; }
  const Trace& trace() const { return executable_->trace(); }
  const Schedule& schedule() const { return executable_->schedule(); }
  // Set when the step runs as a Graph.
  const GraphExecutable* fast() const { return fast_.get(); }
  // The program's host code passes integers that the Graph has built in as others.
  bool is_unfit() const { return fast_ != nullptr && fast_->is_unfit(); }
  const std::string& why_exact() const { return why_exact_; }
  // And whether that is a fault of stepc.
  bool has_fault() const { return has_fault_; }
  // What the step needs beside the program's own memory, as planned; a Graph's first run may add scratch memory.
  struct Memory {
    uint64_t peak_bytes = 0;  // the arena, and what outlives the step
    uint64_t arena_bytes = 0;
    uint64_t live_lower_bound_bytes = 0;
    std::string_view layout_algorithm;
  };
  Memory memory() const;
  double planning_seconds() const { return planning_seconds_; }
  double shadow_seconds() const { return shadow_seconds_; }
  double execute_seconds() const { return execute_seconds_; }

  int64_t replays = 0;
  bool verified = false;

 private:
  struct EventRun {
    std::unique_ptr<Shadow> shadow;     // none: an eager event
    bool in_place = false;              // a guard stands before it: it runs when the replay gets there
    std::vector<at::Tensor> stand_ins;  // by parameter of the program: the gradient that the event finds
  };

  void find_places(const Program& program);
  void find_undo();
  void compile_graph(const Trace& agreed, KernelSources& kernels, const FastOptions& options);
  void prepare_events();
  std::vector<at::Tensor> gather(const std::vector<size_t>& places, const std::vector<at::Tensor>& tensors) const;
  std::string shadow(size_t event, Program& program, const std::vector<at::Tensor>& tensors);
  StepResult execute(const RunInputs& inputs);
  std::string run_event(size_t event, Program& program, const std::vector<at::Tensor>& tensors,
                        const std::vector<Bound>& gradients);

  Trace recorded_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<GraphExecutable> fast_;  // fast mode; runs in the other's stead while it fits
  std::string why_exact_;
  bool has_fault_ = false;
  double planning_seconds_ = 0;
  double shadow_seconds_ = 0;
  double execute_seconds_ = 0;
  std::vector<size_t> externals_;   // where each of the trace's externals stands among the tensors
  std::vector<size_t> parameters_;  // where each parameter and its gradient stand
  std::vector<size_t> gradients_;
  std::vector<std::string> parameter_keys_;
  std::vector<size_t> dropped_;     // parameters whose gradients the step throws away unread
  std::vector<size_t> may_change_;  // tensors for a full undo
  std::vector<size_t> undo_;        // tensors that are written while the replay may still turn back
  bool may_turn_back_ = false;
  std::vector<EventRun> events_;
};

}  // namespace stepc
