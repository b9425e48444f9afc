#include "engine/step.h"

#include <algorithm>
#include <utility>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "capture/observer.h"
#include "engine/plan/plan_profile.h"
#include "engine/plan/plan_stats.h"
#include "engine/ranks/rank_step.h"
#include "engine/record/fixed_draws.h"
#include "engine/record/rehearsal.h"
#include "engine/verify/verify_dry.h"
#include "engine/verify/verify_replay.h"
#include "memory/report.h"
#include "runtime/machine_rates.h"

namespace stepc {

namespace {
// The kind of a batch tensor for which no plan can be made; empty if there is none.
std::string kind_that_no_plan_holds(const StepInput& input) {
  for (size_t t = 0; t < input.tensors.size(); ++t) {
    const at::Tensor& tensor = input.tensors[t];
    if (!tensor.defined()) continue;
    const std::string_view kind = tensor.is_nested()                        ? "nested"
                                  : tensor.layout() != c10::Layout::Strided ? "sparse"
                                  : tensor.is_quantized()                   ? "quantized"
                                                                            : "";
    if (!kind.empty()) return str("{} tensor ('{}')", kind, t < input.names.size() ? input.names[t] : "");
  }
  return {};
}

std::optional<MemoryReport> memory_of(const Plan* plan) {
  if (plan == nullptr || plan->graph() == nullptr) return std::nullopt;
  return plan->graph()->memory;
}
}  // namespace

Step::Step(std::unique_ptr<Program> program, Config config)
    : program_(std::move(program)), config_(std::move(config)), plans_(*program_, config_, stats_, /*is_loop=*/false) {
  check(config_);
  if (config_.mode != Mode::kEager) install_recorder();
  if (!config_.parallel) return;
  auto on_ranks = std::make_unique<RankStep>(*program_, config_, stats_);
  if (on_ranks->ranks() > 1 || config_.parallel->micro_batches > 1) ranks_ = std::move(on_ranks);
}
Step::~Step() = default;

std::filesystem::path Step::save(const std::filesystem::path& output, int64_t number, const Companions& companions) {
  return ranks_ != nullptr && ranks_->ranks() > 1 ? ranks_->save(output, number, companions)
                                                  : save_program(*program_, output, number, companions);
}

Checkpoint Step::load(const std::filesystem::path& from, const AcceptFn& accept) {
  if (ranks_ != nullptr && ranks_->ranks() > 1) return ranks_->load(from, accept);
  Checkpoint checkpoint = find_checkpoint(from);
  program_->refresh();
  if (accept) accept(checkpoint.directory);
  load_program(*program_, SavedProgram(checkpoint.directory));
  return checkpoint;
}

StepOutput Step::run(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on) {
  if (ranks_ != nullptr && step_on) return ranks_->run(input, step_on);
  const EagerFn eager = [&] {
    StepOutput output = user_step();
    own_results(output, list_tensors(*program_, input));
    return output;
  };
  is_left_to_eager_ = config_.mode == Mode::kEager;
  if (is_left_to_eager_) return run_eagerly(eager);
  if (const std::string kind = kind_that_no_plan_holds(input); !kind.empty())
    return run_eagerly(user_step, str("a {} is among its tensors", kind));
  program_->refresh();
  if (const std::string kind = program_->unfit(); !kind.empty())
    return run_eagerly(user_step, str("it has a {}", kind));
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  std::vector<at::Tensor> tensors = list_tensors(*program_, input);
  PlanEntry& entry = plans_.find(tensors, input);
  if (entry.plans.empty() && config_.capture == Capture::kVirtual) {
    tensors.clear();
    plans_.capture(entry, input, user_step);
    tensors = list_tensors(*program_, input);
  }
  if (plans_.is_traced() && plans_.compared_with_eager(entry) > 0) {
    tensors.clear();
    entry.pace.run_eagerly(1);
    const auto begin = Clock::now();
    StepOutput output = run_eagerly(eager);
    entry.pace.ran_eagerly(output.own_seconds > 0 ? output.own_seconds : seconds_since(begin));
    return output;
  }
  const bool checks = !entry.plans.empty() && entry.to_record == 0 && plans_.must_check(entry, tensors);
  if (!entry.plans.empty() && entry.to_record == 0 && !checks)
    if (auto output = plans_.is_traced() ? trace(entry, tensors, input, eager) : replay(entry, tensors, input, eager))
      return std::move(*output);
  tensors.clear();  // no references to gradients while the step runs as it is
  is_left_to_eager_ = entry.eager;
  if (entry.eager || (!checks && !plans_.may_record(entry, input))) return run_eagerly(eager);

  RecordedStep program(*program_, input, config_.op_rules);
  Recording recording = record(program, eager);
  if (!checks) return keep(entry, recording, input);
  plans_.check(entry, recording, input);
  release_free_memory();
  return std::move(recording.output);
}

StepOutput Step::keep(PlanEntry& entry, Recording& recording, const StepInput& input, const BeforeStep* before) {
  std::vector<std::string> strange;
  for (const Unowned& unowned : recording.unowned) strange.push_back(unowned.obstacle);
  // The step may have left its plans too often by now.
  const std::shared_ptr<Plan> plan = entry.eager ? nullptr : plans_.keep(entry, recording, input);
  // Tensors without a known owner could not be restored. Optimizer state that this step has made is known by the next
  // step.
  const bool knows_all = recording.unowned.empty() && std::ranges::none_of(strange, [&](const std::string& one) {
                           return std::ranges::find(recording.obstacles, one) != recording.obstacles.end();
                         });
  may_rehearse_ = knows_all && recording.effects.empty() && program_->python_reason().empty() && !entry.eager &&
                  !plans_.is_traced();
  if (plan != nullptr && before != nullptr && plans_.must_verify(*plan)) {
    const auto begin = Clock::now();
    const Trace& recorded = recording.trace.calls.empty() ? plan->recorded() : recording.trace;
    Verification verification =
        verify_recorded(*plan, *program_, *before, recorded, std::move(recording.output), plans_.eager_fits(*plan));
    stats_.verify_seconds += seconds_since(begin);
    if (verification.compared) {
      StepOutput output = conclude(entry, *plan, std::move(verification));
      verified_one(entry);
      return output;
    }
    recording.output = std::move(verification.output);
  }
  if (plan != nullptr) release_free_memory();  // what eager steps left free lies beside its arena from now on
  return std::move(recording.output);
}

bool Step::capture(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on) {
  if (ranks_ != nullptr && step_on) return ranks_->plan(input, step_on);
  if (config_.mode == Mode::kEager || config_.capture != Capture::kVirtual) return false;
  program_->refresh();
  PlanEntry& entry = plans_.find(list_tensors(*program_, input), input);
  if (entry.plans.empty()) plans_.capture(entry, input, user_step);
  return !entry.plans.empty();
}

bool Step::prepare(const StepInput& input, const EagerFn& user_step, const StepOnFn& step_on) {
  if (!capture(input, user_step, step_on)) return false;
  if (ranks_ != nullptr && step_on) return true;
  const std::vector<at::Tensor> tensors = list_tensors(*program_, input);
  PlanEntry& entry = plans_.find(tensors, input);
  Plan::Outcome outcome;
  return !plans_.must_verify(*entry.plans.front()) || prove(entry, *entry.plans.front(), tensors, user_step, outcome);
}

bool Step::compile(const StepInput& input, const EagerFn& user_step) {
  if (config_.mode == Mode::kEager) return false;
  if (prepare(input, user_step)) return true;
  program_->refresh();
  SavedState before(*program_, input);
  const Stats then = stats_;
  const auto runs_eagerly = [&] {
    return stats_.eager_calls + then.verifications > then.eager_calls + stats_.verifications;
  };
  run_and_restore(before, [&] {
    do run(input, user_step);
    while (stats_.replays == then.replays && may_rehearse_ && !runs_eagerly());
  });
  if (stats_.replays == then.replays) return false;
  for (uint64_t recorded = then.recordings; recorded < stats_.recordings; ++recorded)
    plans_.followed(plans_.find(list_tensors(*program_, input), input));  // it was asked for
  return true;
}

std::string Step::difference(const StepInput& one, const EagerFn& step_on_one, const StepInput& other,
                             const EagerFn& step_on_other) {
  const auto rehearsed = [&](const StepInput& input, const EagerFn& step) {
    return rehearse(*program_, input, config_.op_rules, [&] { return with_fixed_draws(step); });
  };
  const Rehearsal on_one = rehearsed(one, step_on_one);
  if (!on_one.problem.empty()) return on_one.problem;
  return difference_of(on_one, rehearsed(other, step_on_other));
}

void Step::end_warm_up() {
  stats_.is_warm = true;
  stats_.late_plans = 0;
}

StepOutput Step::run_eagerly(const EagerFn& eager, const std::string& why) {
  may_rehearse_ = false;
  if (!why.empty()) plans_.warn_once(str("this step runs eagerly: {}", why));
  ++stats_.eager_calls;
  return eager();
}

// Returns nullopt if no plan fits; then the program is unchanged.
std::optional<StepOutput> Step::replay(PlanEntry& entry, std::vector<at::Tensor>& tensors, const StepInput& input,
                                       const EagerFn& eager) {
  using Output = std::optional<StepOutput>;
  return plans_.first_that_fits(entry, input, [&](const std::shared_ptr<Plan>& plan, Plan::Outcome& outcome) -> Output {
    const bool verifies = plans_.must_verify(*plan);
    if (verifies && !plan->is_virtual()) return verify(entry, *plan, tensors, eager, outcome);
    if (verifies && !prove(entry, *plan, tensors, eager, outcome)) return std::nullopt;
    const double shadow_before = plan->shadow_seconds();
    const double execute_before = plan->execute_seconds();
    const int64_t known_before = plan->known_updates();
    outcome = plan->run(*program_, tensors, times_ ? &*times_ : nullptr);
    stats_.shadow_seconds += plan->shadow_seconds() - shadow_before;
    stats_.execute_seconds += plan->execute_seconds() - execute_before;
    stats_.known_updates += static_cast<uint64_t>(plan->known_updates() - known_before);
    if (!outcome.result) return std::nullopt;
    plan->apply(*program_, tensors, *outcome.result);
    if (times_) profiled_ = plan;
    may_rehearse_ = true;
    plans_.replayed(&entry, *plan, *outcome.result);
    compare_with_expected(stats_, *plan, plan->execute_seconds() - execute_before);
    entry.put_first(plan);
    return StepOutput{std::move(outcome.result->outputs), std::move(outcome.result->numbers)};
  });
}

// The same for a traced step, whose host code runs beside the plan, exactly once.
std::optional<StepOutput> Step::trace(PlanEntry& entry, std::vector<at::Tensor>& tensors, const StepInput& input,
                                      const EagerFn& eager) {
  const auto is_due = [&](const Plan& plan) { return plans_.must_verify(plan); };
  RecordedStep recorded(*program_, input, config_.op_rules);
  if (is_due(*entry.plans.front()) || entry.to_verify > 0) {
    entry.to_verify = std::max(entry.to_verify - 1, 0);
    const auto begin = Clock::now();
    Verification verification = verify_traced(entry.plans, *program_, tensors, eager, recorded, is_due,
                                              [&](const Plan& plan) { return plans_.eager_fits(plan); });
    stats_.verify_seconds += seconds_since(begin);
    if (!verification.outcome.change.empty()) {
      plans_.drop(entry, verification.plan, verification.outcome.change);
      return std::nullopt;
    }
    const std::shared_ptr<Plan> plan = verification.plan;
    entry.put_first(plan);
    if (verification.compared) {
      StepOutput output = conclude(entry, *plan, std::move(verification));
      verified_one(entry);
      return output;
    }
    if (!verification.departure.difference.empty()) plans_.left(entry, verification.departure, /*records_next=*/false);
    if (verification.recording) return keep(entry, *verification.recording, input);
    ++stats_.eager_calls;
    return std::move(verification.output);
  }
  const auto may_follow = [&](const Plan& plan) { return plans_.may_follow(entry.signature, plan); };
  const auto begin = Clock::now();
  TracedStep traced = run_traced(entry.plans, *program_, tensors, may_follow, eager,
                                 {&recorded, config_.verify.kind != Verify::Kind::kOff}, times_ ? &*times_ : nullptr);
  if (traced.unfit) {
    plans_.drop(entry, traced.plan, traced.departure.difference);
    return std::nullopt;
  }
  plans_.ended(&entry, traced);
  if (traced.is_replay) {
    if (times_) profiled_ = traced.plan;
    compare_with_expected(stats_, *traced.plan, seconds_since(begin));  // with its Python, which runs beside it
    const auto called = input.began == Clock::time_point() ? begin : input.began;
    if (const auto slower = entry.pace.replayed(seconds_since(called)); slower && !times_)
      plans_.give_up(entry,
                     str("its replays take {:.1f} times as long, for its Python runs beside the plan ({}) and its "
                         "kernels are small",
                         *slower, stats_.traced));
  } else if (traced.recording) {
    return keep(entry, *traced.recording, input, &traced.before);
  }
  return std::move(traced.output);
}

// Other plans may still wait for their verification.
void Step::verified_one(PlanEntry& entry) const {
  const auto waits = [&](const std::shared_ptr<Plan>& plan) { return plans_.must_verify(*plan); };
  if (std::ranges::none_of(entry.plans, waits)) entry.to_verify = 0;
}

std::optional<StepOutput> Step::verify(PlanEntry& entry, Plan& plan, std::vector<at::Tensor>& tensors,
                                       const EagerFn& eager, Plan::Outcome& outcome) {
  const auto begin = Clock::now();
  Verification verification = verify_replay(plan, *program_, tensors, eager, plans_.eager_fits(plan));
  stats_.verify_seconds += seconds_since(begin);
  outcome = std::move(verification.outcome);
  if (!outcome.result.has_value()) return std::nullopt;
  return conclude(entry, plan, std::move(verification));
}

// Counts the verification's outcome and returns the step's output.
StepOutput Step::conclude(PlanEntry& entry, Plan& plan, Verification verification) {
  release_free_memory();
  plan.set_verified(plan.dispute.empty() && verification.wrong_rule.empty());
  ++stats_.verifications;
  if (verification.with_plain) ++stats_.plain_verifications;
  if (verification.with_eager) ++stats_.eager_verifications;
  if (verification.ran_eagerly) ++stats_.eager_calls;
  stats_.verification_bytes = std::max(stats_.verification_bytes, verification.snapshot_bytes);
  count_run(stats_, plan, *verification.outcome.result);
  if (!verification.eager_errs.empty()) {
    ++stats_.float64_verifications;
    stats_.eager_errs = verification.eager_errs;
    log().info("eager differs from the plan, and float64 confirms the plan: {}", verification.eager_errs);
  }
  if (!verification.decided_otherwise.empty() && plan.graph() != nullptr) {
    plans_.decides_by_rounding(entry, verification.decided_otherwise);
    verification.difference.clear();  // it may follow from that
  }
  if (!verification.difference.empty())
    plans_.give_up(entry, str("a replay differs from {} in {}", verification.from, verification.difference));
  // The step has run; the plan is compared again if the step continues.
  USER_CHECK(verification.wrong_rule.empty(), "{}", verification.wrong_rule);
  return std::move(verification.output);
}

// Whether the plan may run: it fits the program, and its results are right.
bool Step::prove(PlanEntry& entry, Plan& plan, const std::vector<at::Tensor>& tensors, const EagerFn& eager,
                 Plan::Outcome& outcome) {
  const auto begin = Clock::now();
  DryVerification verification = verify_dry(plan, *program_, tensors, eager, config_.memory_budget);
  stats_.verify_seconds += seconds_since(begin);
  outcome = std::move(verification.outcome);
  if (!outcome.result) return false;
  release_free_memory();
  USER_CHECK(verification.wrong_rule.empty(), "{}", verification.wrong_rule);
  plan.set_verified(true);
  ++stats_.verifications;
  if (verification.with_plain) ++stats_.plain_verifications;
  if (verification.with_eager) ++stats_.eager_calls;
  stats_.verified_with = to_text(verification);
  if (verification.difference.empty()) return true;
  plans_.give_up(entry, str("a replay differs from {} in {}", verification.with, verification.difference));
  return false;
}

std::optional<Prediction> Step::prediction() const {
  if (ranks_ != nullptr) return ranks_->prediction();
  const Plan* plan = plans_.latest();
  if (plan == nullptr) return std::nullopt;
  const KnownTarget known = target_of(*plan);
  return is_priced(plan->schedule(), known) ? std::optional(predict(plan->schedule(), known)) : std::nullopt;
}

std::optional<Target> Step::weighed_with() const {
  if (ranks_ != nullptr) return ranks_->weighed_with();
  const Plan* plan = plans_.latest();
  return plan != nullptr && plan->weighed() ? std::optional(plan->known().target) : std::nullopt;
}

// A plan is predicted with the Target that it was weighed with, on a device with its card's if that is known.
KnownTarget Step::target_of(const Plan& plan) const {
  if (const std::string& device = plan.schedule().device; !device.empty()) {
    const auto card = target_of_card(c10::Device(device));
    return card ? KnownTarget{.target = *card} : KnownTarget();
  }
  if (plan.weighed()) return plan.known();
  return known_target(config_.kernel_directory, plan.schedule().features, plan.schedule().threads);
}

std::string Step::report(const std::optional<Prediction>& told) const {
  if (ranks_ != nullptr) return ranks_->report();
  return report_text(stats_, name_of(config_.mode), told ? told : prediction());
}

std::optional<MemoryReport> Step::latest_memory() const {
  if (ranks_ == nullptr) return memory_of(plans_.latest());
  return ranks_->latest() == nullptr ? std::nullopt : std::optional(ranks_->latest()->memory());
}

std::string Step::memory_text() const {
  const std::optional<MemoryReport> report = latest_memory();
  return report ? to_text(*report) : std::string();
}
std::string Step::memory_svg() const {
  const std::optional<MemoryReport> report = latest_memory();
  return report ? timeline_svg(*report, "live bytes of a training step") : std::string();
}

void Step::start_profile() {
  if (ranks_ != nullptr) return ranks_->start_profile();
  USER_CHECK(config_.mode != Mode::kEager,
             "mode is \"eager\": a profile times the instructions of a plan; choose \"exact\" or \"fast\"");
  times_.emplace();
  plans_.time_replays(true);
  profiled_.reset();
}

std::optional<Profile> Step::finish_profile() {
  if (ranks_ != nullptr) return ranks_->finish_profile();
  const std::optional<RunTimes> times = std::exchange(times_, std::nullopt);
  plans_.time_replays(false);
  const std::shared_ptr<Plan> plan = std::exchange(profiled_, nullptr);
  if (plan == nullptr) return std::nullopt;
  const Mode mode = plan->graph() != nullptr ? Mode::kFast : Mode::kExact;
  return profile_of(plan->schedule(), mode, *times, target_of(*plan));
}

std::string Step::schedule_text() const {
  if (ranks_ == nullptr) return plans_.schedule_text();
  return ranks_->latest() == nullptr ? std::string() : to_text(ranks_->latest()->schedule());
}

std::optional<TargetPlan> Step::plan_for(const Target& target) const {
  USER_CHECK(ranks_ == nullptr, "a plan for another machine is of one device; this step runs on ranks");
  const Plan* plan = plans_.latest();
  if (plan == nullptr) return std::nullopt;
  const bool as_recorded = plan->graph() == nullptr;
  return plan_for_target(plan->trace(), target, as_recorded, as_recorded ? MemoryBudget() : config_.memory_budget, {},
                         config_.fp8);
}

std::string Step::graph_text() const {
  if (ranks_ == nullptr) return plans_.graph_text();
  return ranks_->latest_trace() == nullptr ? std::string() : to_text(*ranks_->latest_trace());
}

}  // namespace stepc
