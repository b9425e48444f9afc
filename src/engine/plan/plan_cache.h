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
#include "engine/record/recorded_step.h"
#include "engine/stats.h"

namespace stepc {

// All that is known of one signature.
struct PlanEntry : CallHistory {
  std::string signature;
  std::map<std::string, std::string> description;
  std::list<std::shared_ptr<Plan>> plans;  // one a branch that the step takes; most recently used first
  std::vector<Trace> open;                 // recordings that nothing agreed with yet
  Pace pace;                               // of replays beside which Python runs
  std::string last_obstacle;
  bool eager = false;        // no plan can be made
  bool is_captured = false;  // virtually, or that cannot be: it is recorded while it runs
  bool is_seen = false;      // by the door of a loop, which looks at its first call before any is recorded
  bool exact = false;        // its plans replay the recorded calls, whatever the mode

  // This one of its plans was used last.
  void put_first(const std::shared_ptr<Plan>& plan);
};

class PlanCache {
 public:
  // All three must outlive this. `is_loop`: the plans are of a loop's model, not of a step.
  PlanCache(Program& program, const Config& config, Stats& stats, bool is_loop);

  // The entry of the step's signature, a new one with a log line that says why. `tensors` are the program's, by its
  // keys, and the batch's after them.
  PlanEntry& find(const std::vector<at::Tensor>& tensors, const StepInput& input);

  // The entry of a signature that was found earlier; nullptr when it has gone since.
  PlanEntry* entry_of(const std::string& signature);

  // Makes a plan of a recording that agrees with an earlier one, keeps it, or gives the signature up.
  // Returns the plan of such a step, if there is one by then; the recording's trace is gone if it is the plan's.
  std::shared_ptr<Plan> keep(PlanEntry& entry, Recording& recording, const StepInput& input);

  // Whether the next step is to run as it is and be recorded, to be compared with the plans of the entry: after their
  // replays 2, 4, 8, and so on. Only of steps whose host code does not run beside the plan: watched and pure ones.
  bool must_check(const PlanEntry& entry, const std::vector<at::Tensor>& tensors) const;
  // What it did. The step goes on as traced, with a warning, if the plans would have done something else.
  void check(PlanEntry& entry, Recording& recording, const StepInput& input);

  // So many steps, or passes of a loop's model, that come next are to run as they are to see whether replays pay. Who
  // asked for tracing or watching, or for no such comparison, has that; what was captured virtually may need the plan's
  // memory to run at all.
  int64_t compared_with_eager(const PlanEntry& entry) const;

  // Makes a plan of a step that was captured without executing it (engine/plan/virtual_plan.h), where Config::capture
  // asks for that and nothing stands against it; else says why not in a log line, and the step is recorded while it
  // runs.
  void capture(PlanEntry& entry, const StepInput& input, const std::function<StepOutput()>& step);

  // Gives the plans of the entry to `run`, the one used last first, until one has run: `run(plan, outcome)` returns
  // what came of it, or nothing, and why not in `outcome`. The next is the one of the branch that the step takes.
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
  // The plan does not fit the program any more.
  static void drop(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const std::string& why);

  // Whether the step is worth recording: where recordings do not pay, a signature has to be met again and again first.
  bool may_record(PlanEntry& entry, const StepInput& input);
  // A plan of the entry was followed, or somebody asked for it: its recordings pay.
  void followed(PlanEntry& entry) { count_followed(entry, debt_); }
  // A call was looked at, or recorded, which took longer than eager.
  void recorded(PlanEntry& entry) { count_recording(entry, debt_); }

  // The signature runs eagerly from now on, with one warning.
  void give_up(PlanEntry& entry, const std::string& why);
  // To the log and the statistics, each text once.
  void warn_once(const std::string& warning);
  // A replay came to its end; the entry may have gone meanwhile.
  void replayed(PlanEntry* entry, const Plan& plan, const StepResult& result);
  // A traced step, which has followed the plan to its end or left it.
  void ended(PlanEntry* entry, const TracedStep& traced);
  // A traced step left its plan. `records_next`: another may be made of the next steps' recordings.
  void left(PlanEntry& entry, const Departure& departure, bool records_next);
  // What the step decides by the number that is read there hangs on rounding: from now on it runs as recorded calls.
  void decides_by_rounding(PlanEntry& entry, const std::string& where);
  bool is_traced() const { return is_traced_; }

  // Whether the plan's next replay is to be compared with other runs of the step, and whether eager may be one of them:
  // not where a memory budget is set that it exceeds, unless the plan needs as much.
  bool must_verify(const Plan& plan) const;
  // Whether a traced step of this signature may go on with another plan: one that is to be verified waits for a step
  // that does so.
  bool may_follow(const std::string& signature, const Plan& plan);
  // While replays are timed a plan is not compared again, neither with eager nor with what the step does by now.
  void time_replays(bool are_timed) { are_timed_ = are_timed; }
  bool eager_fits(const Plan& plan) const;

  // The plan that ran last, nullptr before the first.
  const Plan* latest() const;
  // Its trace and its Schedule, empty before the first.
  std::string graph_text() const;
  std::string schedule_text() const;

 private:
  // Another plan of the entry for the branch that `outcome` of `plan` took; nullptr, with a log line, without one. A
  // plan that does not fit any more is dropped.
  std::shared_ptr<Plan> other_branch(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const Plan::Outcome& outcome,
                                     const StepInput& input);
  std::map<std::string, std::string> description_of(const std::vector<at::Tensor>& tensors, const StepInput& input,
                                                    const std::string& shared) const;
  // Nullptr: `reason` says why not, and `obstacle` whether another recording would meet the same.
  std::shared_ptr<Plan> agree_with_any(PlanEntry& entry, Trace& trace, const std::vector<at::Tensor>& tensors,
                                       std::string& reason, bool& obstacle);
  std::shared_ptr<Plan> add(PlanEntry& entry, std::shared_ptr<Plan> made);
  // A replay ended with an error, and the step runs as it is: it raises the error, or catches it.
  void failed(PlanEntry& entry, const std::string& error);
  // Plans are made anew, of the recorded calls.
  void run_exactly(PlanEntry& entry, const std::string& why);
  // Whether plans are given up whose replays take longer than eager.
  bool weighs_pace() const;
  void trace(const std::string& why);
  void trace(const std::string& why, PlanEntry& entry, const StepInput& input);

  Program& program_;
  const Config& config_;
  Stats& stats_;
  const bool may_trace_;
  const bool is_loop_;
  const char* const what_runs_;               // for log lines
  bool is_traced_ = false;                    // every plan, from now on
  bool are_timed_ = false;                    // replays
  std::string last_effect_;                   // of the recording before
  std::map<std::string, int> constants_met_;  // by the signature without them: how many
  PlanMaker maker_;
  SharedMemory shared_;
  std::list<PlanEntry> entries_;  // most recently used first
  RecordingDebt debt_;
  bool says_what_changes_ = false;  // that it does has been said: once is enough
  std::string last_change_;         // between the signatures of two calls
  int explanations_ = 0;            // recordings since the last plan that found new owners of tensors
};

}  // namespace stepc
