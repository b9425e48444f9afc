// Step: the engine behind accelerate(). Decides for each call whether to record, verify, replay or run eagerly, and
// keeps the plans. Works on flat lists of tensors; the doors (engine/accelerate.h, python/) convert the user's types.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cost/profile.h"
#include "engine/config.h"
#include "engine/plan/plan_cache.h"
#include "engine/prediction.h"
#include "engine/program/program.h"
#include "engine/program/saved_program.h"
#include "engine/program/step_input.h"
#include "engine/stats.h"
#include "engine/verify/verify_replay.h"
#include "memory/report.h"
#include "plan/target_plan.h"

namespace stepc {

class RankStep;

class Step {
 public:
  using EagerFn = std::function<StepOutput()>;

  Step(std::unique_ptr<Program> program, Config config);
  ~Step();

  // One training step: `user_step` is the user's function applied to `input`. Returned tensors own their storage and
  // carry no grad_fn. Exceptions of the step pass through.
  // `step_on`: with Config::parallel, the user's function applied to given tensors of the whole batch instead of the
  // input's; the ranks run this one (engine/ranks/rank_step.h).
  using StepOnFn = std::function<StepOutput(const std::vector<at::Tensor>& tensors)>;
  StepOutput run(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on = {});
  // Whether the step runs on several ranks; on_ranks() has what the ranks then do together.
  bool is_on_ranks() const { return ranks_ != nullptr; }
  RankStep& on_ranks() { return *ranks_; }

  // With Config::capture "virtual", or with Config::parallel in one process: captures and plans the step for such an
  // input, without memory for the step and without the program's values. Returns whether that was possible.
  bool capture(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on = {});
  // The same, and verifies the plan without effect; a step with Config::parallel is verified when it first runs.
  // Returns whether run() will replay it.
  bool prepare(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on = {});
  // Compiles the step for such an input: as prepare() does, or by running the step until it is replayed, and undoing
  // the runs. Returns whether run() will replay it.
  bool compile(const StepInput& input, const EagerFn& user_step);
  // Whether the last run() left its signature to eager for good.
  bool is_left_to_eager() const { return is_left_to_eager_; }
  // The program has called its own function directly, because run() would have left it to eager again.
  void ran_eagerly() { ++stats_.eager_calls; }
  // Whether compile() and difference() may run the step: the last run did nothing that cannot be undone.
  bool may_rehearse() const { return may_rehearse_; }
  // The difference, beyond rounding, between what the step returns and changes on two inputs. Runs the step on both and
  // undoes the runs.
  std::string difference(const StepInput& one, const EagerFn& step_on_one, const StepInput& other,
                         const EagerFn& step_on_other);
  // Writes a checkpoint `output`/checkpoint-000200 of what the program holds, and returns it. On several ranks each
  // rank writes its slices.
  std::filesystem::path save(const std::filesystem::path& output, int64_t number, const Companions& companions = {});
  // Loads a checkpoint, or the newest complete one in a directory; any mesh or one process may have saved it. `accept`
  // is called with the checkpoint's directory before anything changes, and may refuse it by a UserError.
  using AcceptFn = std::function<void(const std::filesystem::path& checkpoint)>;
  Checkpoint load(const std::filesystem::path& from, const AcceptFn& accept = {});
  // Plans made after this call count as late plans.
  void end_warm_up();

  const Stats& stats() const { return stats_; }
  // `told`: the prediction to print in place of prediction().
  std::string report(const std::optional<Prediction>& told = {}) const;
  // The predicted time of a replay, on this machine, of the plan that ran last; nothing before the first.
  std::optional<Prediction> prediction() const;
  // With memory budget "auto": the Target that the plan that ran last was weighed with.
  std::optional<Target> weighed_with() const;
  // Fast mode: the use of every byte at the peak of the step captured last, and live bytes over time as the text of an
  // SVG file; empty before the first capture, and for recorded calls.
  std::string memory_text() const;
  std::string memory_svg() const;
  // Begins to time replays; meanwhile a plan that was once compared with eager is not compared again. Throws UserError
  // in eager mode, which has no instructions.
  void start_profile();
  // Ends the timing. Returns the times of the last timed replay; nothing if no call was replayed.
  std::optional<Profile> finish_profile();
  // The trace of the plan that ran last; empty before the first.
  std::string graph_text() const;
  // The Schedule of that plan.
  std::string schedule_text() const;
  // That step in the same mode as it would run on another machine (cost/named_target.h); nothing before the first plan.
  // Throws UserError on ranks: such a plan is for one device.
  std::optional<TargetPlan> plan_for(const Target& target) const;

 private:
  std::optional<StepOutput> replay(PlanEntry& entry, std::vector<at::Tensor>& tensors, const StepInput& input,
                                   const EagerFn& eager);
  std::optional<StepOutput> trace(PlanEntry& entry, std::vector<at::Tensor>& tensors, const StepInput& input,
                                  const EagerFn& eager);
  StepOutput keep(PlanEntry& entry, Recording& recording, const StepInput& input, const BeforeStep* before = nullptr);
  void verified_one(PlanEntry& entry) const;
  StepOutput conclude(PlanEntry& entry, Plan& plan, Verification verification);
  std::optional<StepOutput> verify(PlanEntry& entry, Plan& plan, std::vector<at::Tensor>& tensors, const EagerFn& eager,
                                   Plan::Outcome& outcome);
  bool prove(PlanEntry& entry, Plan& plan, const std::vector<at::Tensor>& tensors, const EagerFn& eager,
             Plan::Outcome& outcome);
  std::optional<MemoryReport> latest_memory() const;
  KnownTarget target_of(const Plan& plan) const;
  // Logs `why` once.
  StepOutput run_eagerly(const EagerFn& eager, const std::string& why = {});

  std::unique_ptr<Program> program_;
  Config config_;
  Stats stats_;
  std::unique_ptr<RankStep> ranks_;  // runs instead of the plans
  PlanCache plans_;
  bool may_rehearse_ = false;
  bool is_left_to_eager_ = false;
  std::optional<RunTimes> times_;   // set while replays are timed
  std::shared_ptr<Plan> profiled_;  // the plan that ran last while replays were timed
};

}  // namespace stepc
