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

  // One training step: `eager` is the user's function applied to `input`. Returned tensors own their storage and carry
  // no grad_fn. Whatever the step throws passes through.
  // `step_on`: with Config::parallel the user's function, applied to tensors of the whole batch in the places of the
  // input's, is what runs (engine/ranks/rank_step.h).
  using StepOnFn = std::function<StepOutput(const std::vector<at::Tensor>& tensors)>;
  StepOutput run(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on = {});
  // Whether it runs on several ranks; what else they do together then.
  bool is_on_ranks() const { return ranks_ != nullptr; }
  RankStep& on_ranks() { return *ranks_; }

  // With Config::capture "virtual": captures and plans the step for such an input, with no memory for it and none of
  // the program's values. Whether that could be.
  bool capture(const StepInput& input, const EagerFn& user_step);
  // That, and verifies it, without effect. Whether run() will replay it.
  bool prepare(const StepInput& input, const EagerFn& user_step);
  // Compiles the step for such an input: as prepare() does, or by running it until it is replayed, which is taken back.
  // Whether run() will replay it.
  bool compile(const StepInput& input, const EagerFn& user_step);
  // Whether the last run() was eager's for good, and so are all that look like it.
  bool is_left_to_eager() const { return is_left_to_eager_; }
  // The program has called its own function where another run() would have been like the last.
  void ran_eagerly() { ++stats_.eager_calls; }
  // Whether compile() and difference() may run the step: the last one did nothing that cannot be taken back.
  bool may_rehearse() const { return may_rehearse_; }
  // How two inputs differ in what the step returns and changes, within rounding; it runs on both and is taken back.
  std::string difference(const StepInput& one, const EagerFn& step_on_one, const StepInput& other,
                         const EagerFn& step_on_other);
  // Writes a checkpoint `output`/checkpoint-000200 of what the program holds, and returns it; on several ranks each
  // writes its slices.
  std::filesystem::path save(const std::filesystem::path& output, int64_t number, const Companions& companions = {});
  // Takes the values of a checkpoint, or of the newest whole one in a directory, which any mesh or one process saved.
  // `accept`, called with its directory before anything changes, may refuse it by a UserError.
  using AcceptFn = std::function<void(const std::filesystem::path& checkpoint)>;
  Checkpoint load(const std::filesystem::path& from, const AcceptFn& accept = {});
  // Plans made from now on are counted as late ones.
  void end_warm_up();

  const Stats& stats() const { return stats_; }
  std::string report() const;
  // What a replay of the plan that ran last should take on this machine; nothing before the first.
  std::optional<Prediction> prediction() const;
  // With memory budget "auto": what the plan that ran last was weighed with.
  std::optional<Target> weighed_with() const;
  // Fast mode: where every byte of the step that was captured last goes at its peak, and live bytes over time as the
  // text of an SVG file; empty before, and for recorded calls.
  std::string memory_text() const;
  std::string memory_svg() const;
  // From now on replays are timed, and those of a plan that was compared with eager once are not compared again.
  // Throws UserError in eager mode, which has no instructions.
  void start_profile();
  // Ends that. What the last of these replays took; nothing where no call was replayed.
  std::optional<Profile> finish_profile();
  // The trace of the plan that ran last; empty before the first.
  std::string graph_text() const;
  // And its Schedule.
  std::string schedule_text() const;
  // That step in the same mode as it would run on another machine (cost/named_target.h); nothing before the first plan.
  // UserError on ranks: such a plan is of one device.
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
  // `why`: said once.
  StepOutput run_eagerly(const EagerFn& eager, const std::string& why = {});

  std::unique_ptr<Program> program_;
  Config config_;
  Stats stats_;
  std::unique_ptr<RankStep> ranks_;  // runs in the plans' stead
  PlanCache plans_;
  bool may_rehearse_ = false;
  bool is_left_to_eager_ = false;
  std::optional<RunTimes> times_;   // while replays are timed,
  std::shared_ptr<Plan> profiled_;  // and the plan that ran last then
};

}  // namespace stepc
