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

// What was there before a step.
struct BeforeStep {
  std::vector<at::Tensor> tensors;  // by the program's keys, and the batch's after them
  std::shared_ptr<Undo> undo;       // of all of them
};

// For a step that leaves its plans.
struct WhatToRecord {
  RecordedProgram* program = nullptr;  // with the batch; nullptr: it is not recorded
  bool verifies = false;               // its plan runs from where the step began
};

struct TracedStep {
  StepOutput output;
  // The plan ran. Else everything was computed as the host code asked for it, and `departure` says why; or, with
  // `unfit`, nothing was done.
  bool is_replay = false;
  bool unfit = false;
  Departure departure;         // of a replay, too: the truth or integer that it was given in another plan's stead
  std::shared_ptr<Plan> plan;  // the last that it followed
  StepResult result;           // of the replay, without its tensors
  double execute_seconds = 0;  // that the plan took of it
  std::optional<Recording> recording;  // of a step that left its plan: all of it, and its output is there
  BeforeStep before;                   // then, if WhatToRecord asks for it
};

// The plans that a traced step may follow: which, is seen by the calls that it makes.
class TracedPlans {
 public:
  // `plans`: of one signature, the likeliest first. `may_follow`: whether one may run.
  TracedPlans(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor> tensors,
              std::function<bool(const Plan&)> may_follow);

  // Why the first one cannot run, empty if it can.
  [[nodiscard]] const std::string& unfit() const { return unfit_; }
  [[nodiscard]] const std::shared_ptr<Plan>& plan() const { return followed_; }
  // Without the gradients that no plan reads.
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // All of the program's and the batch's, as they were before the step.
  [[nodiscard]] std::vector<OwnedBefore> before() const;

  // Binds the first one's tracer, and for Tracer::Plan the next one's.
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

// What the host has given a traced step since the last time goes on to its plan.
class HostSupplies {
 public:
  // `has_begun`: the plan's run; data is there from the beginning of one.
  void pass_on(Plan& plan, bool has_begun);
  // Another plan is to get all of it.
  void clear();

 private:
  size_t numbers_ = 0;
  std::set<std::string> data_;
};

// A run of such a step in parts: what is between them, at the pause of a loop's model, is the program's own.
class TracedRun {
 public:
  TracedRun(TracedPlans plans, Program& program, const WhatToRecord& recorded, RunTimes* times);
  // Of one that is not finished: nothing is put back.
  ~TracedRun();
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

  // Runs a part of the step, which everything is computed of if it raises.
  void run(const std::function<void()>& part);
  // The part before the pause has made `outputs`, the tensors that the program holds. They have values afterwards.
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  void resume(const std::vector<at::Tensor>& incoming);
  TracedStep finish(StepOutput output);

  // Why it has left its plans, empty: it has not. Then everything is computed as the host code asks for it.
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
  const Tracer::Plan host_;
  Tracer* first_ = nullptr;        // of the plan that the step began with; nullptr: it is over
  std::vector<Undo> undo_;         // of what the host writes
  std::optional<Undo> undo_plan_;  // of what the plan does
  std::vector<std::optional<GeneratorSnapshot>> snapshots_;  // by generator, as the plan left them
  std::vector<std::optional<GeneratorSnapshot>> resumed_;    // and as they were after the pause
  std::vector<at::Tensor> incoming_;                         // after the pause
  HostSupplies supplies_;
  size_t stops_ = 0;  // that the plan has come to
  bool has_begun_ = false;
  bool is_at_pause_ = false;
  double execute_seconds_ = 0;
  std::string decided_otherwise_;
  std::optional<Recorder> recorder_;
  BeforeStep before_;
};

// `tensors` are the program's by its keys, and the batch's after them: they are let go. `step` runs the user's
// function. `may_follow`: of the plans beside the first, whether one may run.
TracedStep run_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<bool(const Plan&)>& may_follow, const std::function<StepOutput()>& step,
                      const WhatToRecord& recorded, RunTimes* times);

}  // namespace stepc
