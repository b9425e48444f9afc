#include "engine/plan/plan_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/plan/plan_stats.h"
#include "engine/plan/would_replay.h"
#include "engine/program/signature.h"
#include "engine/record/recorded_step.h"
#include "ir/agree.h"

namespace stepc {

namespace {
// Further recordings, beyond Config(max_recordings), that may be spent on finding owners of tensors.
constexpr int kMaxExplanations = 4;
// How many values of a step's other arguments get plans of their own while the shapes of its tensors stay the same.
constexpr int kMostConstants = 3;
// How many shapes the values of other arguments are counted for.
constexpr size_t kMostShapesCounted = 1000;

int64_t replays_of(const PlanEntry& entry) {
  int64_t replays = 0;
  for (const std::shared_ptr<Plan>& plan : entry.plans) replays += plan->replays;
  return replays;
}

// The description of a step's constants without the number that tells equal descriptions apart.
std::string_view said_of(const std::string& constants) {
  const size_t end = constants.find(": ");
  return std::string_view(constants).substr(end == std::string::npos ? 0 : end + 2);
}

StepInput without_constants(const StepInput& input) { return {input.tensors, input.names, {}}; }
}  // namespace

void PlanEntry::put_first(const std::shared_ptr<Plan>& plan) {
  const auto place = std::ranges::find(plans, plan);
  if (place != plans.end()) plans.splice(plans.begin(), plans, place);
}

PlanCache::PlanCache(Program& program, const Config& config, Stats& stats, bool is_loop)
    : program_(program),
      config_(config),
      stats_(stats),
      may_trace_(config.python != PythonMode::kWatch),
      is_loop_(is_loop),
      what_runs_(is_loop ? "model" : "step"),
      is_traced_(may_trace_ && config.python == PythonMode::kTrace),
      maker_(program, config, stats) {
  if (is_traced_) {
    stats_.traced = "Config(python=\"trace\")";
    program_.trace(stats_.traced);
  } else if (may_trace_ && config.python == PythonMode::kAuto && config.mode != Mode::kEager && !config.parallel) {
    if (const std::string why = program_.why_unwatched(); !why.empty()) trace(why);
  }
}

std::map<std::string, std::string> PlanCache::description_of(const std::vector<at::Tensor>& tensors,
                                                             const StepInput& input, const std::string& shared) const {
  std::map<std::string, std::string> description = describe_signature(program_, tensors, input);
  description["setting: tensors that share memory"] = shared.empty() ? "none" : shared;
  return description;
}

PlanEntry& PlanCache::find(const std::vector<at::Tensor>& tensors, const StepInput& input) {
  const std::string& shared = shared_.among(program_, tensors);
  std::string signature = signature_of(program_, tensors, is_traced_ ? without_constants(input) : input) + shared;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const PlanEntry& entry) { return entry.signature == signature; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  PlanEntry entry;
  if (may_trace_ && !is_traced_) {
    // The step becomes traced: its own code reads the arguments that change at every call.
    const std::string shapes = signature_of(program_, tensors, without_constants(input)) + shared;
    if (constants_met_.size() > kMostShapesCounted) constants_met_.clear();
    if (++constants_met_[shapes] > kMostConstants) {
      trace(str("what it is given changes from call to call: {}", said_of(input.constants)));
      entries_.clear();
      return find(tensors, input);
    }
  }
  entry.signature = std::move(signature);
  entry.description = description_of(tensors, input, shared);
  if (!entries_.empty()) {
    last_change_ = explain_change(entries_.front().description, entry.description);
    if (stats_.plans > 0 && do_recordings_pay(debt_)) log().info("recording again: {}", last_change_);
  }
  entries_.push_front(std::move(entry));
  if (entries_.size() > static_cast<size_t>(config_.max_plans)) entries_.pop_back();
  return entries_.front();
}

bool PlanCache::may_record(PlanEntry& entry, const StepInput& input) {
  const RecordNext next = record_next(entry, debt_);
  if (next == RecordNext::kYes) return true;
  if (next == RecordNext::kGiveUp) {
    give_up(entry,
            str("{} recordings in a row without a replay: {}", entry.unreplayed,
                entry.open.last_obstacle().empty() ? "each of its plans stopped fitting" : entry.open.last_obstacle()));
    return false;
  }
  if (std::exchange(says_what_changes_, true)) return false;
  const bool has_tensors = !input.tensors.empty();
  warn_once(str("this {} runs eagerly for new signatures: recordings do not pay ({}); {}", what_runs_, last_change_,
                has_tensors ? "pad tensors to a few shapes and pass what else changes as a tensor"
                            : "pass what changes as a tensor"));
  return false;
}

PlanEntry* PlanCache::entry_of(const std::string& signature) {
  for (PlanEntry& entry : entries_)
    if (entry.signature == signature) return &entry;
  return nullptr;
}

std::shared_ptr<Plan> PlanCache::keep(PlanEntry& entry, Recording& recording, const StepInput& input) {
  ++stats_.recordings;
  ++entry.recordings;
  recorded(entry);
  stats_.capture_seconds += recording.overhead_seconds;
  stats_.settle_seconds += recording.settle_seconds;
  stats_.eager_peak_bytes = recording.peak_bytes;
  entry.to_record = std::max(entry.to_record - 1, 0);

  if (!may_trace_) {
    std::ranges::move(recording.effects, std::back_inserter(recording.obstacles));
  } else if (!is_traced_) {
    const std::string why = recording.effects.empty() ? program_.python_reason() : recording.effects.front();
    // The first steps of a program set things up. An effect in two recordings in a row will occur again.
    const bool again = !std::exchange(last_effect_, why).empty() && !why.empty();
    if (again) {
      trace(why, entry, input);
      if (is_loop_) return nullptr;  // what a traced pass leaves with the program is recorded otherwise
    } else if (!why.empty()) {
      recording.obstacles.push_back(why);
    }
  }
  // A tensor that a traced step only reads is data, which is another tensor at the next call: no owner is looked for.
  if (is_traced_) leave_out_data(recording);
  // A tensor that a traced pass of a loop made belongs to the program, like the tensors that its forward pass keeps.
  if (is_traced_ && is_loop_) leave_to_host(recording);
  const bool looks = explanations_ < kMaxExplanations;
  if (looks && explain_unowned(program_, recording)) {
    // The next recording knows the owners of these tensors, so no trace agrees with this one.
    ++explanations_;
    --entry.recordings;
    entry.open.clear();
    return nullptr;
  }
  if (is_traced_) leave_to_host(recording);
  // The search for owners ends here: every recording found tensors in another structure.
  if (!looks && !recording.unowned.empty())
    recording.unowned.front().obstacle.insert(0, "every recording finds other tensors that outlive the step: ");
  refuse_unowned(recording);
  if (!may_trace_ && recording.obstacles.empty())  // no Python runs beside the replays
    if (std::string reason = program_.python_reason(); !reason.empty())
      recording.obstacles.push_back(std::move(reason));
  Refusal refusal = refusal_of(recording);
  if (!refusal.is_obstacle) {
    program_.refresh();
    const std::vector<at::Tensor> tensors = list_tensors(program_, input);
    if (auto plan = agree_with_any(entry, recording.trace, tensors, refusal)) return plan;
    if (may_trace_ && !is_loop_ && !is_traced_ && std::ranges::any_of(entry.open.traces(), [&](const Trace& before) {
          if (agree(before, recording.trace).obstacle.empty()) return false;
          const Agreement agreement = agree_on_calls(before, recording.trace);
          return agreement.difference.empty() && agreement.obstacle.empty();
        })) {
      // Both recordings have the same calls and differ only in what the step's own code sees, so both serve a traced
      // step.
      OpenRecordings open = std::move(entry.open);
      open.set_obstacle({});
      trace(refusal.reason, entry, input);
      entry.open = std::move(open);
      if (auto plan = agree_with_any(entry, recording.trace, list_tensors(program_, input), refusal)) return plan;
    }
    entry.open.keep(std::move(recording.trace));
  }
  const bool again = entry.open.meets_again(refusal);
  if (!stops_recording(entry, !entry.plans.empty(), again, config_.max_recordings)) return nullptr;
  if (may_trace_ && !is_traced_ && !recording.is_left)
    trace(refusal.reason, entry, input);
  else
    give_up(entry, str("{} recordings gave no plan: {}", entry.recordings, refusal.reason));
  return nullptr;
}

void PlanCache::give_up(PlanEntry& entry, const std::string& why) {
  entry.eager = true;
  entry.open.clear();
  entry.plans.clear();
  const bool others_replay = std::ranges::any_of(entries_, [](const PlanEntry& one) { return !one.plans.empty(); });
  warn_once(str("this {} runs eagerly{}: {}", what_runs_, others_replay ? " for calls of this signature" : "", why));
}

void PlanCache::warn_once(const std::string& warning) {
  if (std::ranges::find(stats_.warnings, warning) != stats_.warnings.end()) return;
  stats_.warnings.push_back(warning);
  log().warn("{}", warning);
}

bool PlanCache::must_check(const PlanEntry& entry, const std::vector<at::Tensor>& tensors) const {
  const bool is_pure = config_.python == PythonMode::kPure;
  const bool looks = !is_traced_ && (is_pure || (config_.python != PythonMode::kWatch && program_.is_watched()));
  if (!looks || are_timed_ || config_.verify.kind != Verify::Kind::kFirst || !is_check_due(entry, replays_of(entry)))
    return false;
  Plan& plan = *entry.plans.front();
  return plan.is_verified() && !plan.is_virtual() && eager_fits(plan) && plan.why_not(tensors).empty();
}

int64_t PlanCache::compared_with_eager(const PlanEntry& entry) const {
  if (!weighs_pace() || are_timed_ || entry.to_record != 0 || entry.plans.empty()) return 0;
  const Plan& plan = *entry.plans.front();
  return !plan.is_virtual() && eager_fits(plan) ? entry.pace.wanted_eager() : 0;
}

bool PlanCache::weighs_pace() const {
  return config_.weighs_pace && (config_.python == PythonMode::kAuto || config_.python == PythonMode::kPure);
}

void PlanCache::check(PlanEntry& entry, Recording& recording, const StepInput& input) {
  ++stats_.checks;
  // A model is recorded beside a replay, which is therefore not counted.
  count_check(entry, replays_of(entry) - (is_loop_ ? 1 : 0));
  if (recording.raised) {  // as a replay would have, and then have let the step run
    ++stats_.recordings;
    return;
  }
  std::string unseen;
  if (!recording.effects.empty())
    unseen = recording.effects.front();
  else if (unseen = program_.python_reason(); unseen.empty() && !recording.obstacles.empty())
    unseen = recording.obstacles.front();
  else if (unseen.empty() && !recording.unowned.empty())
    unseen = recording.unowned.front().obstacle;
  if (unseen.empty()) {
    for (const std::shared_ptr<Plan>& plan : entry.plans) {
      const Agreement agreement = agree(plan->recorded(), recording.trace);
      const std::string& why = agreement.difference.empty() ? agreement.obstacle : agreement.difference;
      if (why.empty()) {
        ++stats_.recordings;
        plan->doubt_updates();
        return;
      }
      if (unseen.empty() && would_replay(plan->trace(), recording.trace)) unseen = why;
    }
  }
  ++stats_.recordings;
  if (unseen.empty()) return;  // another branch: the guard of a replay finds it, too
  ++stats_.failed_checks;
  warn_once(str("replays of this {} were not what it does by now: {}", what_runs_, unseen));
  if (may_trace_)
    trace(unseen, entry, input);
  else
    give_up(entry, unseen);
}

// The step's host code runs at every call: what it did, or read, cannot be known. Plans and recordings begin anew, with
// the signature of `entry`.
void PlanCache::trace(const std::string& why, PlanEntry& entry, const StepInput& input) {
  trace(why);
  entries_.remove_if([&](const PlanEntry& other) { return &other != &entry; });
  program_.refresh();  // what the step's code reads is no part of its signature any more
  const std::vector<at::Tensor> tensors = list_tensors(program_, input);
  const std::string& shared = shared_.among(program_, tensors);
  entry.signature = signature_of(program_, tensors, without_constants(input)) + shared;
  entry.description = description_of(tensors, input, shared);
  entry.plans.clear();
  entry.open.clear();
  entry.recordings = 0;
  entry.open.set_obstacle({});
}

void PlanCache::trace(const std::string& why) {
  is_traced_ = true;
  stats_.traced = why;
  if (config_.python == PythonMode::kPure)
    warn_once(str("python=\"pure\" ends here, the {}'s own code runs beside every replay: {}", what_runs_, why));
  else
    log().info("the {}'s own code runs beside every replay: {}", what_runs_, why);
  program_.trace(why);
}

void PlanCache::replayed(PlanEntry* entry, const Plan& plan, const StepResult& result) {
  ++stats_.replays;
  stats_.is_warm = true;
  count_run(stats_, plan, result);
  if (entry == nullptr) return;
  followed(*entry);
  forget_departures(*entry);
}

void PlanCache::ended(PlanEntry* entry, const TracedStep& traced) {
  const Departure& departure = traced.departure;
  if (entry != nullptr) entry->put_first(traced.plan);
  if (entry != nullptr && !departure.decided_otherwise.empty())
    decides_by_rounding(*entry, departure.decided_otherwise);
  if (traced.is_replay) {
    ++traced.plan->replays;
    stats_.execute_seconds += traced.execute_seconds;
    return replayed(entry, *traced.plan, traced.result);
  }
  if (!traced.recording) ++stats_.eager_calls;
  if (entry != nullptr && entry->to_verify == 0) left(*entry, departure, !traced.recording && !departure.raised);
}

void PlanCache::left(PlanEntry& entry, const Departure& departure, bool records_next) {
  ++stats_.departures;
  log().info("a step left its plan: {}", departure.difference);
  const AfterDeparture after = count_departure(entry, departure.is_reseeded, !departure.decided.empty(), records_next);
  if (after.runs_exactly)
    run_exactly(entry, str("what the step does is decided by numbers, last by one that is read {}", departure.decided));
  if (after.gives_up) give_up(entry, str("steps keep leaving their plans; the last: {}", departure.difference));
}

void PlanCache::decides_by_rounding(PlanEntry& entry, const std::string& where) {
  run_exactly(entry, str("a number that is read {} decides what the step does, and hangs on rounding", where));
}

void PlanCache::run_exactly(PlanEntry& entry, const std::string& why) {
  if (entry.exact || config_.mode != Mode::kFast) return;
  log().info("recorded calls run from now on: {}", why);
  entry.exact = true;
  entry.plans.clear();
  entry.recordings = 0;
}

void PlanCache::failed(PlanEntry& entry, const std::string& error) {
  log().info("a replay ends with an error, the step runs as it is: {}", error.substr(0, error.find('\n')));
  if (count_failure(entry)) give_up(entry, str("replays keep ending with errors; the last: {}", error));
}

// Makes a plan from `trace` and the first earlier recording that agrees with it.
std::shared_ptr<Plan> PlanCache::agree_with_any(PlanEntry& entry, Trace& trace, const std::vector<at::Tensor>& tensors,
                                                Refusal& refusal) {
  const auto made_of = [&](Trace& agreed) {
    return add(entry, maker_.make({is_traced_, entry.exact}, std::move(trace), std::move(agreed), tensors));
  };
  if (is_traced_)
    for (const std::shared_ptr<Plan>& plan : entry.plans)
      if (plan->has_same_calls(trace)) return plan;
  if (std::optional<Trace> agreed = entry.open.agree_with_one(trace, is_traced_, refusal)) return made_of(*agreed);
  // A plan with a guard that was too narrow: the plan now passes on the value that the guard fixed.
  for (auto plan = entry.plans.begin(); plan != entry.plans.end(); ++plan) {
    std::optional<Trace> agreed =
        agreed_trace(is_traced_ ? (*plan)->trace() : (*plan)->recorded(), trace, is_traced_, refusal);
    if (!agreed) continue;
    entry.plans.erase(plan);
    return made_of(*agreed);
  }
  // Another path of a traced step. Every replay compares its calls, so one recording is enough; only the first path
  // needs two, to show which numbers change.
  if (!is_traced_ || !is_path_a_plan(entry, !entry.plans.empty(), refusal.is_obstacle)) return nullptr;
  std::optional<Trace> agreed = agreed_trace(trace, trace, true, refusal);
  return agreed ? made_of(*agreed) : nullptr;
}

void PlanCache::capture(PlanEntry& entry, const StepInput& input, const std::function<StepOutput()>& step) {
  if (config_.capture == Capture::kRun || entry.is_captured || entry.eager) return;
  entry.is_captured = true;
  try {
    add(entry, maker_.make_virtually({is_traced_, entry.exact}, input, step));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const std::string why = str("the step is captured by running it: {}", what.substr(0, what.find('\n')));
    if (config_.mode == Mode::kFast)
      warn_once(why + "; its first calls take eager's memory and round as eager does, also after load()");
    else
      log().info("{}", why);
  }
}

std::shared_ptr<Plan> PlanCache::add(PlanEntry& entry, std::shared_ptr<Plan> made) {
  entry.plans.push_front(std::move(made));
  if (entry.plans.size() > static_cast<size_t>(config_.max_plans)) entry.plans.pop_back();
  count_new_plan(entry);
  entry.open.set_obstacle({});
  explanations_ = 0;
  return entry.plans.front();
}

void PlanCache::drop(PlanEntry& entry, const std::shared_ptr<Plan>& plan, const std::string& why) {
  log().info("recording again: {}", why);
  entry.exact = entry.exact || plan->is_unfit();
  entry.plans.remove(plan);
}

std::shared_ptr<Plan> PlanCache::other_branch(PlanEntry& entry, const std::shared_ptr<Plan>& plan,
                                              const Plan::Outcome& outcome, const StepInput& input) {
  if (!outcome.error.empty()) {
    failed(entry, outcome.error);
    return nullptr;
  }
  if (!outcome.missed_read.has_value()) {
    drop(entry, plan, outcome.change);
    return nullptr;
  }
  ++stats_.guard_misses;
  for (const std::shared_ptr<Plan>& other : entry.plans)
    if (other != plan && other->continues(*plan, *outcome.missed_read, outcome.read)) return other;
  const HostRead& read = plan->trace().reads[*outcome.missed_read];
  const Call& call = plan->trace().calls[read.call.index()];
  const std::string& module = call.module;
  const bool is_shape = std::holds_alternative<ValueId>(call.results.front());
  if (may_trace_ && !is_traced_ && !std::holds_alternative<bool>(outcome.read) && count_unseen_value(entry))
    trace(
        str("{} {}", read.source,
            is_shape ? "makes a tensor whose shape depends on data" : "reads a number that changes from step to step"),
        entry, input);
  else
    log().info("recording again: another branch is taken {} {}", module, read.source);
  return nullptr;
}

bool PlanCache::must_verify(const Plan& plan) const {
  return stepc::must_verify(config_.verify, plan.is_verified(), plan.replays, are_timed_);
}

bool PlanCache::may_follow(const std::string& signature, const Plan& plan) {
  if (!must_verify(plan)) return true;
  if (PlanEntry* entry = entry_of(signature)) verify_others(*entry);
  return false;
}

bool PlanCache::eager_fits(const Plan& plan) const {
  const MemoryBudget& budget = config_.memory_budget;
  if (plan.has_fp8()) return false;
  if (budget.kind != MemoryBudget::Kind::kBytes || plan.graph() == nullptr) return true;
  const Schedule& schedule = plan.schedule();
  return stats_.eager_peak_bytes <= schedule.peak_bytes() ||
         stats_.eager_peak_bytes + schedule.input_bytes() <= budget.bytes;
}

const Plan* PlanCache::latest() const {
  for (const PlanEntry& entry : entries_)
    if (!entry.plans.empty()) return entry.plans.front().get();
  return nullptr;
}

std::string PlanCache::graph_text() const { return latest() == nullptr ? std::string() : to_text(latest()->trace()); }
std::string PlanCache::schedule_text() const {
  return latest() == nullptr ? std::string() : to_text(latest()->schedule());
}

}  // namespace stepc
