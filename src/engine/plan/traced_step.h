// A step whose host code runs at every call, beside the plan: its calls are compared with the plan's as they come, and
// nothing is computed but what the plan computes. The plan runs up to each number that the host code reads, and the
// rest at the end. Where the host code makes another call than the plan's, or throws, the step is as if there were no
// plan.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  // The plan ran. Else everything was computed as the host code asked for it, and this says why; or, with `unfit`,
  // nothing was done.
  bool is_replay = false;
  bool unfit = false;
  std::string difference;
  bool raised = false;            // it left the plan at a call that raised: no recording holds that
  bool is_reseeded = false;       // or with a random generator in another state
  std::string decided;            // it left the plan after it had read another truth or integer than recorded: where
  std::string decided_otherwise;  // and went on with numbers that would not have led there: where
  std::shared_ptr<Plan> plan;     // the last that it followed
  StepResult result;              // of the replay, without its tensors
  double execute_seconds = 0;     // that the plan took of it
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

// `tensors` are the program's by its keys, and the batch's after them: they are let go. `step` runs the user's
// function. `may_follow`: of the plans beside the first, whether one may run.
TracedStep run_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<bool(const Plan&)>& may_follow, const std::function<StepOutput()>& step,
                      const WhatToRecord& recorded, RunTimes* times);

}  // namespace stepc
