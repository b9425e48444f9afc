// A step whose host code runs at every call, beside the plan. Its calls are compared with the plan's as they come, and
// only the plan computes. The plan runs up to each number that the host code reads, and the rest at the end. If the
// host code makes another call than the plan, or throws, the step continues as if there were no plan.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "aten/generator_snapshot.h"
#include "capture/recorder.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/undo.h"

namespace stepc {

// What there was before a step.
struct BeforeStep {
  std::vector<at::Tensor> tensors;  // by the program's keys, then the batch's
  std::shared_ptr<Undo> undo;       // of all these tensors
};

// What to do with a step that leaves its plans.
struct WhatToRecord {
  RecordedProgram* program = nullptr;  // with the batch; nullptr: the step is not recorded
  bool verifies = false;               // the step's plan is verified: it runs from the state before the step
};

struct TracedStep {
  StepOutput output;
  // The plan ran. Otherwise everything was computed as the host code asked for it, and `departure` gives the reason;
  // with `unfit`, nothing was done.
  bool is_replay = false;
  bool unfit = false;
  Departure departure;                 // also of a replay: the boolean or integer that it got from another plan
  std::shared_ptr<Plan> plan;          // the last plan that it followed
  StepResult result;                   // of the replay, without its tensors
  double execute_seconds = 0;          // the part that the plan took
  std::optional<Recording> recording;  // of a step that left its plan: the whole step; its output has values
  BeforeStep before;                   // of such a step, if WhatToRecord asks for it
};

// The plans that a traced step may follow. The calls of the step select one.
class TracedPlans {
 public:
  // `plans`: of one signature, the likeliest first. `may_follow`: whether a plan may run.
  TracedPlans(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor> tensors,
              std::function<bool(const Plan&)> may_follow);

  // Why the first plan cannot run, empty if it can.
  [[nodiscard]] const std::string& unfit() const { return unfit_; }
  [[nodiscard]] const std::shared_ptr<Plan>& plan() const { return followed_; }
  // The tensors without the gradients that no plan reads.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // All tensors of the program and the batch, as they were before the step.
  [[nodiscard]] std::vector<OwnedBefore> before() const;

  // begin() binds the tracer of the first plan; other() the tracer of the next one, for Tracer::Callbacks.
  Tracer& begin();
  Tracer* other();
  void took_over() { followed_ = offered_; }

 private:
  std::vector<std::shared_ptr<Plan>> plans_;
  Program& program_;
  std::vector<at::Tensor> tensors_;
  std::map<size_t, OwnedBefore> dropped_;  // gradients that no plan reads
  std::function<bool(const Plan&)> may_follow_;
  size_t next_ = 1;
  std::shared_ptr<Plan> followed_, offered_;
  std::string unfit_;
};

// Passes on to the plan what the host has given a traced step since the last call.
class HostSupplies {
 public:
  // `has_begun`: the plan's run; data exists from the beginning of a run.
  void pass_on(Plan& plan, bool has_begun);
  // Another plan will get all supplies from the start.
  void clear();

 private:
  size_t numbers_ = 0;
  std::set<std::string> data_;
};

// A traced step's run in parts. What lies between the parts, at the pause of a loop's model, belongs to the program.
class TracedRun {
 public:
  TracedRun(TracedPlans plans, Program& program, const WhatToRecord& recorded, RunTimes* times);
  // Of an unfinished run: restores nothing.
  ~TracedRun();
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

  // Runs a part of the step. If the part raises, everything of it is computed.
  void run(const std::function<void()>& part);
  // The part before the pause has made `outputs`, the tensors that the program holds. pause() gives them values.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  void resume(const std::vector<at::Tensor>& incoming);
  TracedStep finish(StepOutput output);

  // Why the run has left its plans; empty: it has not. After that everything is computed as the host code asks for it.
  [[nodiscard]] const std::string& difference() { return plan().tracer().departure().difference; }
  void leave(const std::string& why, bool records);
  Plan& plan() { return *plans_.plan(); }
  [[nodiscard]] const std::shared_ptr<Plan>& plan_pointer() const { return plans_.plan(); }

 private:
  void release();
  void keep_undo();
  void took_over();
  void look_at_choice(CallId call, const Arg& number);
  void save_generators();
  void restore_generators() const;
  StepResult advance();
  StepResult reach(size_t event);
  StepResult begin();
  Recorder* record();
  void turn_back();
  void leave_if_held_beside(const std::vector<ValueId>& given);
  void replay_rest(TracedStep& traced);

  TracedPlans plans_;
  Program& program_;
  WhatToRecord recorded_;
  RunTimes* times_;
  std::vector<at::Generator> generators_;
  const Tracer::Callbacks callbacks_;
  Tracer* first_ = nullptr;        // tracer of the plan that the step began with; nullptr: the run is over
  std::vector<Undo> undo_;         // of what the host writes
  std::optional<Undo> undo_plan_;  // of what the plan does
  std::vector<std::optional<GeneratorSnapshot>> snapshots_;  // by generator, as the plan left them
  std::vector<std::optional<GeneratorSnapshot>> resumed_;    // the same after the pause
  std::vector<at::Tensor> incoming_;                         // after the pause
  HostSupplies supplies_;
  size_t stops_ = 0;  // the stops that the plan has come to
  bool has_begun_ = false;
  bool is_at_pause_ = false;
  double execute_seconds_ = 0;
  std::string decided_otherwise_;
  std::optional<Recorder> recorder_;
  BeforeStep before_;
};

// `tensors` are the program's by its keys, then the batch's; run_traced() releases them. `step` runs the user's
// function. `may_follow`: whether a plan other than the first may run.
TracedStep run_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<bool(const Plan&)>& may_follow, const std::function<StepOutput()>& step,
                      const WhatToRecord& recorded, RunTimes* times);

}  // namespace stepc
