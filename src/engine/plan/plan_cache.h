// PlanCache: the plans of a step, by signature, and the recordings that are not a plan yet. engine/plan/plan_policy.h
// decides about them, engine/plan/plan_maker.h makes them; this class holds them and carries out the decisions.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/config.h"
#include "engine/plan/pace.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_maker.h"
#include "engine/plan/plan_policy.h"
#include "engine/plan/traced_step.h"
#include "engine/program/program.h"
#include "engine/program/signature.h"
#include "engine/program/step_input.h"
#include "engine/record/open_recordings.h"
#include "engine/record/recorded_step.h"
#include "engine/stats.h"

namespace stepc {

// Everything that is known of one signature.
struct PlanEntry : CallHistory {
  std::string signature;
  std::map<std::string, std::string> description;
  std::list<std::shared_ptr<Plan>> plans;  // one for each branch that the step takes; most recently used first
  OpenRecordings open;
  Pace pace;                 // of replays beside which Python runs
  bool eager = false;        // no plan can be made
  bool is_captured = false;  // virtually, or virtual capture is impossible: then the step is recorded while it runs
  bool is_seen = false;      // by the door of a loop, which inspects its first call before any call is recorded
  bool exact = false;        // its plans replay the recorded calls in every mode

  // Marks one of its plans as the most recently used.
  void put_first(const std::shared_ptr<Plan>& plan);
};

class PlanCache {
 public:
  // The three must outlive this object. `is_loop`: the plans are of a loop's model, not of a step.
  PlanCache(Program& program, const Config& config, Stats& stats, bool is_loop);

  // The entry of the step's signature. Makes a new one if there is none, with a log line that gives the reason.
  // `tensors` are the program's by its keys, then the batch's.
  PlanEntry& find(const std::vector<at::Tensor>& tensors, const StepInput& input);

  // The entry of a signature that was found earlier; nullptr if it is gone.
  PlanEntry* entry_of(const std::string& signature);

  // Makes a plan of a recording that agrees with an earlier one, keeps the recording, or gives the signature up.
  // Returns the step's plan if there is one now; a plan takes the recording's trace.
  std::shared_ptr<Plan> keep(PlanEntry& entry, Recording& recording, const StepInput& input);

  // Whether the next step must run eagerly under the recorder, to be compared with the plans of the entry: after their
  // replays 2, 4, 8, and so on. Only for watched and pure steps, whose host code does not run beside the plan.
  bool must_check(const PlanEntry& entry, const std::vector<at::Tensor>& tensors) const;
  // Compares that recording with the plans. If the plans would have done something else, the step switches to traced
  // mode, with a warning.
  void check(PlanEntry& entry, Recording& recording, const StepInput& input);

  // The number of next steps, or passes of a loop's model, that must run eagerly to see whether replays pay. 0 if the
  // user asked for tracing, for watching or for no such comparison, and for a virtually captured plan, whose step may
  // need the plan's memory to run at all.
  int64_t compared_with_eager(const PlanEntry& entry) const;

  // Makes a plan of a step that was captured without executing it (engine/plan/virtual_plan.h), if Config::capture asks
  // for that and nothing prevents it. Otherwise logs the reason, and the step is recorded while it runs.
  void capture(PlanEntry& entry, const StepInput& input, const std::function<StepOutput()>& step);

  // Gives the plans of the entry to `run`, the most recently used first, until one has run. `run(plan, outcome)`
  // returns its result, or nothing and the reason in `outcome`. The next plan is the one of the branch that the step
  // takes.
  template <class Run>
  auto first_that_fits(PlanEntry& entry, const StepInput& input, const Run& run) {
    std::shared_ptr<Plan> plan = entry.plans.front();
    for (size_t tried = entry.plans.size(); plan != nullptr && tried > 0; --tried) {
      Plan::Outcome outcome;
      if (auto found = run(plan, outcome)) return found;
      plan = entry.eager ? nullptr : other_branch(entry, plan, outcome, input);
    }
    return decltype(run(plan, std::declval<Plan::Outcome&>()))();
  }
  // Removes a plan that no longer fits the program.
  static void drop(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const std::string& why);

  // Whether the step is worth recording: if recordings do not pay, a signature must first be met again and again.
  bool may_record(PlanEntry& entry, const StepInput& input);
  // A plan of the entry was followed, or the user asked for it: its recordings pay.
  void followed(PlanEntry& entry) { count_followed(entry, debt_); }
  // A call was inspected or recorded, which took longer than eager.
  void recorded(PlanEntry& entry) { count_recording(entry, debt_); }

  // The signature runs eagerly from this call on, with one warning.
  void give_up(PlanEntry& entry, const std::string& why);
  // Logs each warning once and adds it to the statistics.
  void warn_once(const std::string& warning);
  // A replay came to its end; the entry may be gone by then.
  void replayed(PlanEntry* entry, const Plan& plan, const StepResult& result);
  // A traced step has followed the plan to its end or has left it.
  void ended(PlanEntry* entry, const TracedStep& traced);
  // A traced step left its plan. `records_next`: the next steps are recorded and may give another plan.
  void left(PlanEntry& entry, const Departure& departure, bool records_next);
  // The number read at `where` decides what the step does, and rounding decides the number: the step runs as recorded
  // calls from this call on.
  void decides_by_rounding(PlanEntry& entry, const std::string& where);
  bool is_traced() const { return is_traced_; }

  // Whether the plan's next replay must be compared with other runs of the step. eager_fits() says whether eager may be
  // one of them: not if it exceeds a memory budget, unless the plan takes as much memory.
  bool must_verify(const Plan& plan) const;
  // Whether a traced step of this signature may switch to another plan. A plan that must be verified waits for a step
  // that verifies it.
  bool may_follow(const std::string& signature, const Plan& plan);
  // While replays are timed, a plan is not compared again, neither with eager nor with a new recording.
  void time_replays(bool are_timed) { are_timed_ = are_timed; }
  bool eager_fits(const Plan& plan) const;

  // The plan that ran last; nullptr before the first run.
  const Plan* latest() const;
  // The trace and the Schedule of that plan; empty before the first run.
  std::string graph_text() const;
  std::string schedule_text() const;

 private:
  // Another plan of the entry for the branch that `outcome` of `plan` took; nullptr, with a log line, if there is none.
  // Drops a plan that no longer fits.
  std::shared_ptr<Plan> other_branch(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const Plan::Outcome& outcome,
                                     const StepInput& input);
  std::map<std::string, std::string> description_of(const std::vector<at::Tensor>& tensors, const StepInput& input,
                                                    const std::string& shared) const;
  // nullptr if none agrees: `refusal` says why.
  std::shared_ptr<Plan> agree_with_any(PlanEntry& entry, Trace& trace, const std::vector<at::Tensor>& tensors,
                                       Refusal& refusal);
  std::shared_ptr<Plan> add(PlanEntry& entry, std::shared_ptr<Plan> made);
  // A replay ended with an error. The step then runs eagerly and raises the error itself, or catches it.
  void failed(PlanEntry& entry, const std::string& error);
  // Plans are made again, from the recorded calls.
  void run_exactly(PlanEntry& entry, const std::string& why);
  // Whether plans whose replays take longer than eager are given up.
  bool weighs_pace() const;
  void trace(const std::string& why);
  void trace(const std::string& why, PlanEntry& entry, const StepInput& input);

  Program& program_;
  const Config& config_;
  Stats& stats_;
  const bool may_trace_;
  const bool is_loop_;
  const char* const what_runs_;               // "step" or "model", for log lines
  bool is_traced_ = false;                    // every plan, from now on, is traced
  bool are_timed_ = false;                    // replays are timed
  std::string last_effect_;                   // of the recording before
  std::map<std::string, int> constants_met_;  // the number of constants met, by the signature without them
  PlanMaker maker_;
  SharedMemory shared_;
  std::list<PlanEntry> entries_;  // most recently used first
  RecordingDebt debt_;
  bool says_what_changes_ = false;  // the log has said that signatures change; once is enough
  std::string last_change_;         // between the signatures of two calls
  int explanations_ = 0;            // recordings since the last plan that found new owners of tensors
};

}  // namespace stepc
