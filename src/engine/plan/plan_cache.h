// The plans of a step, by signature, and the recordings that have not become one yet.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/plan/pace.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/signature.h"
#include "engine/program/step_input.h"
#include "engine/stats.h"

namespace stepc {

// All that is known of one signature.
struct PlanEntry {
  std::string signature;
  std::map<std::string, std::string> description;
  std::list<std::shared_ptr<Plan>> plans;  // one a branch that the step takes; most recently used first
  std::vector<Trace> open;                 // recordings that nothing agreed with yet
  int recordings = 0;                      // since the last plan
  int calls = 0;                           // that no plan was there for
  int unpaid = 0;                          // recordings since a plan was last followed
  int64_t next_check = 2;                  // so many replays after which one is looked at
  int to_record = 0;                       // steps that are recorded although there are plans
  int choices = 0;                         // numbers other than a plan's that the host read and no plan knows
  double decisions = 0;                    // of traced steps that led to no plan, long ago ones count less
  int to_verify = 0;                       // steps that may follow a plan that is to be verified
  double departures = 0;  // of traced steps from their plans, and replays that failed; long ago ones count less
  Pace pace;              // of replays beside which Python runs
  std::string last_obstacle;
  bool eager = false;        // no plan can be made
  bool is_captured = false;  // virtually, or that cannot be: it is recorded while it runs
  bool is_seen = false;      // by the door of a loop, which looks at its first call before any is recorded
  bool exact = false;        // its plans replay the recorded calls, whatever the mode

  // A replay came to its end.
  void forget_departures();
  // The next steps may show the plan that is to be verified.
  void verify_others();
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

  // Another plan of the entry for the branch that `outcome` of `plan` took; nullptr, with a log line, without one. A
  // plan that does not fit any more is dropped.
  std::shared_ptr<Plan> other_branch(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const Plan::Outcome& outcome,
                                     const StepInput& input);

  // Whether the step is worth recording: where recordings do not pay, a signature has to be met again and again first.
  bool may_record(PlanEntry& entry, const StepInput& input);
  // A plan of the entry was followed: its recordings have paid.
  void paid(PlanEntry& entry);
  // A call was looked at, or recorded, which took longer than eager.
  void looked(PlanEntry& entry);

  // The signature runs eagerly from now on, with one warning.
  void give_up(PlanEntry& entry, const std::string& why);
  // To the log and the statistics, each text once.
  void warn_once(const std::string& warning);
  // A traced step left its plan, with a random generator in another state or not. `decided`: where it had read what it
  // decided that by, if it had; `records_next`: another may be made of the next steps' recordings.
  void left(PlanEntry& entry, const std::string& difference, bool is_reseeded, const std::string& decided,
            bool records_next);
  // What the step decides by the number that is read there hangs on rounding: from now on it runs as recorded calls.
  void decides_by_rounding(PlanEntry& entry, const std::string& where);
  bool is_traced() const { return is_traced_; }

  // Whether the plan's next replay is to be compared with other runs of the step, and whether eager may be one of them:
  // not where a memory budget is set that it exceeds, unless the plan needs as much.
  bool must_verify(const Plan& plan) const;
  bool eager_fits(const Plan& plan) const;

  // Takes a run of `plan` into the statistics.
  void count_run(const Plan& plan, const StepResult& result);
  // And what its replay took beside what memory budget "auto" expected, which is said once it is warm.
  void compare_with_expected(Plan& plan, double seconds);

  // The plan that ran last, nullptr before the first.
  const Plan* latest() const;

 private:
  std::map<std::string, std::string> description_of(const std::vector<at::Tensor>& tensors, const StepInput& input,
                                                    const std::string& shared) const;
  // Nullptr: `reason` says why not, and `obstacle` whether another recording would meet the same.
  std::shared_ptr<Plan> agree_with_any(PlanEntry& entry, Trace& trace, const std::vector<at::Tensor>& tensors,
                                       std::string& reason, bool& obstacle);
  void add(PlanEntry& entry, std::shared_ptr<Plan> plan, const std::vector<at::Tensor>& tensors);
  PlanOptions options_for(const PlanEntry& entry);
  KnownTarget target_to_weigh_with(const KernelSources* kernels) const;
  // Throws UserError where it cannot be.
  std::shared_ptr<Plan> plan_without_running(PlanEntry& entry, const StepInput& input,
                                             const std::function<StepOutput()>& step);
  KernelSources* kernels();
  // A replay ended with an error, and the step runs as it is: it raises the error, or catches it.
  void failed(PlanEntry& entry, const std::string& error);
  // Plans are made anew, of the recorded calls.
  void run_exactly(PlanEntry& entry, const std::string& why);
  // Whether plans are given up whose replays take longer than eager.
  bool weighs_pace() const;
  void trace(const std::string& why);
  void trace(const std::string& why, PlanEntry& entry, const StepInput& input);
  void warn_of(const Plan& plan);
  void warn_of_kernel_directory();
  void count(const Plan& plan, const std::vector<at::Tensor>& tensors);
  void count_memory(const Plan& plan);

  Program& program_;
  const Config& config_;
  Stats& stats_;
  const bool may_trace_;
  const bool is_loop_;
  const char* const what_runs_;               // for log lines
  bool is_traced_ = false;                    // every plan, from now on
  std::string last_effect_;                   // of the recording before
  std::map<std::string, int> constants_met_;  // by the signature without them: how many
  std::shared_ptr<KernelSources> kernels_;    // set when fast mode needs them
  std::string kernel_problem_;                // why there are none, or what was last said of their directory
  SharedMemory shared_;
  std::list<PlanEntry> entries_;    // most recently used first
  int owed_ = 0;                    // replays, by recordings that none has paid for yet
  bool says_what_changes_ = false;  // that it does has been said: once is enough
  std::string last_change_;         // between the signatures of two calls
  int explanations_ = 0;            // recordings since the last plan that found new owners of tensors
};

// The program's tensors by its keys, and the batch's after them.
std::vector<at::Tensor> list_tensors(const Program& program, const StepInput& input);

// Ends a step, recorded or not: what it returns owns its storage, apart from `program`'s, and carries no grad_fn.
void own_results(StepOutput& output, const std::vector<at::Tensor>& program);

// Finds the owners of what a recording says outlives the step, for the next recording to know. Returns whether any was
// found; what has none stays among the unowned.
bool explain_unowned(Program& program, Recording& recording);

// They are obstacles.
void refuse_unowned(Recording& recording);

// The program and the batch of one step, as the recorder asks for them.
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
