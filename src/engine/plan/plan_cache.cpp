#include "engine/plan/plan_cache.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <ATen/Parallel.h>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/profile.h"
#include "engine/plan/virtual_plan.h"
#include "engine/program/signature.h"
#include "ir/agree.h"

namespace stepc {

namespace {
// Recordings beyond the configured ones that may go into finding owners of tensors.
constexpr int kMaxExplanations = 4;
constexpr size_t kMaxOpen = 3;
// Values among a step's arguments, the shapes of its tensors being the same, that get plans of their own.
constexpr int kMostConstants = 3;
// Recordings of as many paths of a traced step, before one of them becomes a plan by itself.
constexpr int kPathsBeforeFirst = 3;
// A traced step that took a path without a plan may take it again soon. Where most do so, none is worth it.
constexpr int kRecordAfterLeaving = 8;
constexpr int kMaxDepartures = 12;
constexpr double kForgetDepartures = 0.9;
constexpr int kVerifyOthers = 8;
// So many departures is one by a seed, which will be yet another one next time.
constexpr int kOfSeeds = 4;
// New paths that numbers lead to: a Graph for each costs more than it saves, and what it computes otherwise than eager,
// if only by rounding, may lead elsewhere.
constexpr double kMostDecisions = 3;
// Branches that an integer read on the host decides, before it is a number like any other and not a choice.
constexpr int kMostChoices = 2;

// How many replays pay for a recording, and the replays that may be owed before a signature is recorded only if it is
// met again.
constexpr int kPayment = 8;
constexpr int kMaxOwed = 16 * kPayment;
// Recordings of one signature, and no replay.
constexpr int kMaxUnpaidOfOne = 40;
// Shapes whose other arguments are counted.
constexpr size_t kMostShapesCounted = 1000;

// Whether `unowned` is a constant of the trace that no call writes to.
bool is_data(const Trace& trace, const Unowned& unowned) {
  if (!unowned.tensor.defined()) return false;
  const size_t size = unowned.tensor.nbytes();
  const std::string bytes = size <= kMaxConstantBytes ? bytes_of(unowned.tensor.storage()) : std::string();
  return std::ranges::any_of(trace.externals, [&](const External& external) {
    if (external.owner != Owner::kConstant) return false;
    const StorageId storage = trace.values[external.value.index()].storage;
    const auto found = std::ranges::find(trace.constants, external.key, &Constant::key);
    const bool has_size = trace.storages[storage.index()].bytes == size;
    if (found == trace.constants.end() || !has_size || (!found->bytes.empty() && found->bytes != bytes)) return false;
    return std::ranges::none_of(trace.calls, [&](const Call& call) {
      return std::ranges::any_of(call.writes,
                                 [&](ValueId value) { return trace.values[value.index()].storage == storage; });
    });
  });
}

// Of a traced step: what it made and keeps where only its own code finds it again is a result without an owner.
void leave_to_host(Recording& recording) {
  Trace& trace = recording.trace;
  size_t kept = 0;
  std::erase_if(recording.unowned, [&](const Unowned& unowned) {
    if (!unowned.made.valid()) return false;
    const StorageId storage = trace.values[unowned.made.index()].storage;
    trace.storages[storage.index()].escapes = true;
    for (Allocation& allocation : trace.allocations) {
      if (allocation.storage != storage) continue;
      allocation.kept = true;
      allocation.last = trace.ticks;
    }
    trace.rebindings.push_back({Owner::kHost, str("kept {}", kept++), unowned.made});
    return true;
  });
}

int64_t replays_of(const PlanEntry& entry) {
  int64_t replays = 0;
  for (const std::shared_ptr<Plan>& plan : entry.plans) replays += plan->replays;
  return replays;
}

const std::string* bytes_of_constant(const Trace& trace, const Arg& arg) {
  const auto* value = std::get_if<ValueId>(&arg);
  if (value == nullptr) return nullptr;
  for (const External& external : trace.externals) {
    if (external.owner != Owner::kConstant || external.value != *value) continue;
    const auto found = std::ranges::find(trace.constants, external.key, &Constant::key);
    return found == trace.constants.end() ? nullptr : &found->bytes;
  }
  return nullptr;
}

// With the same data of the host's in them.
bool have_same_calls(const Trace& a, const HostEvent& in_a, const Trace& b, const HostEvent& in_b) {
  const size_t calls = in_a.end.index() - in_a.begin.index();
  if (in_b.end.index() - in_b.begin.index() != calls) return false;
  for (size_t c = 0; c < calls; ++c) {
    const Call &one = a.calls[in_a.begin.index() + c], &other = b.calls[in_b.begin.index() + c];
    if (one.op != other.op || one.args.size() != other.args.size()) return false;
    for (size_t i = 0; i < one.args.size(); ++i) {
      if (one.args[i].index() != other.args[i].index() && !std::holds_alternative<ReadNumber>(one.args[i]))
        return false;
      const std::string* then = bytes_of_constant(a, one.args[i]);
      const std::string* now = bytes_of_constant(b, other.args[i]);
      if (then != nullptr && now != nullptr && *then != *now) return false;
    }
  }
  return true;
}

// Whether a replay would have gone on, where `now` is what the step did: would have read the numbers that it is held
// to, and its optimizers would have made the recorded calls.
bool would_replay(const Plan& plan, const Trace& now) {
  const Trace& then = plan.trace();
  for (size_t e = 0; e < std::min(then.events.size(), now.events.size()); ++e) {
    const HostEvent &a = then.events[e], &b = now.events[e];
    if (a.key != b.key || a.kind != b.kind) break;
    if (a.kind == HostEvent::Kind::kShadow && !have_same_calls(then, a, now, b)) return false;
  }
  const std::vector<HostRead>& reads = then.reads;
  for (size_t r = 0; r < reads.size() && r < now.reads.size(); ++r)
    if (reads[r].guard && !same_number(number_read(then, reads[r]), number_read(now, now.reads[r]))) return false;
  return true;
}

// Of a step's, without the number that tells it from others of which the same is said.
std::string_view said_of(const std::string& constants) {
  const size_t end = constants.find(": ");
  return std::string_view(constants).substr(end == std::string::npos ? 0 : end + 2);
}

StepInput without_constants(const StepInput& input) { return {input.tensors, input.names, {}}; }
}  // namespace

std::vector<at::Tensor> list_tensors(const Program& program, const StepInput& input) {
  std::vector<at::Tensor> out;
  program.append_tensors(out);
  out.insert(out.end(), input.tensors.begin(), input.tensors.end());
  return out;
}

void own_results(StepOutput& output, const std::vector<at::Tensor>& program) {
  std::set<const void*> storages;
  for (const at::Tensor& tensor : program)
    if (tensor.defined() && tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  for (at::Tensor& tensor : output.tensors) {
    if (!tensor.defined()) continue;
    tensor = tensor.detach();
    if (tensor.has_storage() && storages.count(tensor.storage().unsafeGetStorageImpl()) != 0) tensor = tensor.clone();
  }
}

bool explain_unowned(Program& program, Recording& recording) {
  if (recording.unowned.empty()) return false;
  // What the program lists by now (state that an optimizer has just made) needs no search.
  program.refresh();
  std::set<const void*> listed;
  for (const at::Tensor& tensor : list_tensors(program, {}))
    if (tensor.defined() && tensor.has_storage()) listed.insert(tensor.storage().unsafeGetStorageImpl());
  const size_t before = recording.unowned.size();
  std::erase_if(recording.unowned, [&](const Unowned& unowned) {
    return unowned.tensor.defined() && listed.count(unowned.tensor.storage().unsafeGetStorageImpl()) != 0;
  });
  if (recording.unowned.empty()) return true;
  const std::vector<bool> found = program.explain(recording.unowned);
  std::erase_if(recording.unowned, [&, u = size_t{0}](const Unowned&) mutable { return found[u++]; });
  return recording.unowned.size() != before;
}

void refuse_unowned(Recording& recording) {
  for (const Unowned& unowned : recording.unowned) recording.obstacles.push_back(unowned.obstacle);
  recording.unowned.clear();
}

std::vector<OwnedTensor> RecordedStep::list() {
  program_.refresh();
  std::vector<at::Tensor> tensors;
  program_.append_tensors(tensors);
  std::vector<OwnedTensor> out;
  for (size_t k = 0; k < tensors.size(); ++k)
    out.push_back({program_.keys()[k].owner, program_.keys()[k].key, tensors[k]});
  for (size_t b = 0; b < input_.tensors.size(); ++b) out.push_back({Owner::kBatch, str("{}", b), input_.tensors[b]});
  return out;
}

void PlanEntry::forget_departures() {
  departures *= kForgetDepartures;
  decisions *= kForgetDepartures;
}

void PlanEntry::verify_others() { to_verify = std::max(to_verify, kVerifyOthers); }

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
      is_traced_(may_trace_ && config.python == PythonMode::kTrace) {
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
    // What changes from call to call is read by the step's own code, or by nobody.
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
    if (stats_.plans > 0 && owed_ < kMaxOwed) log().info("recording again: {}", last_change_);
  }
  entries_.push_front(std::move(entry));
  if (entries_.size() > static_cast<size_t>(config_.max_plans)) entries_.pop_back();
  return entries_.front();
}

bool PlanCache::may_record(PlanEntry& entry, const StepInput& input) {
  ++entry.calls;
  if (entry.unpaid >= kMaxUnpaidOfOne) {
    give_up(entry, str("{} recordings in a row and no replay: {}", entry.unpaid,
                       entry.last_obstacle.empty() ? "its plans keep not fitting" : entry.last_obstacle));
    return false;
  }
  if (owed_ < kMaxOwed || entry.calls > owed_ / kMaxOwed) return true;
  if (std::exchange(says_what_changes_, true)) return false;
  const bool has_tensors = !input.tensors.empty();
  warn_once(str("this {} runs eagerly where it is called as never before: recordings do not pay ({}); {}", what_runs_,
                last_change_,
                has_tensors ? "pad tensors to a few shapes and pass what else changes as a tensor"
                            : "pass what changes as a tensor"));
  return false;
}

void PlanCache::looked(PlanEntry& entry) {
  ++entry.unpaid;
  owed_ += kPayment;
}

void PlanCache::paid(PlanEntry& entry) {
  entry.unpaid = 0;
  owed_ = std::max(owed_ - 1, 0);
}

PlanEntry* PlanCache::entry_of(const std::string& signature) {
  for (PlanEntry& entry : entries_)
    if (entry.signature == signature) return &entry;
  return nullptr;
}

std::shared_ptr<Plan> PlanCache::keep(PlanEntry& entry, Recording& recording, const StepInput& input) {
  ++stats_.recordings;
  ++entry.recordings;
  looked(entry);
  stats_.capture_seconds += recording.overhead_seconds;
  stats_.settle_seconds += recording.settle_seconds;
  stats_.eager_peak_bytes = recording.peak_bytes;
  entry.to_record = std::max(entry.to_record - 1, 0);

  if (!may_trace_) {
    std::ranges::move(recording.effects, std::back_inserter(recording.obstacles));
  } else if (!is_traced_) {
    const std::string why = recording.effects.empty() ? program_.python_reason() : recording.effects.front();
    // The first steps of a program set things up; what happens twice will happen again.
    const bool again = !std::exchange(last_effect_, why).empty() && !why.empty();
    if (again) {
      trace(why, entry, input);
      if (is_loop_) return nullptr;  // what a traced pass leaves with the program is recorded otherwise
    } else if (!why.empty()) {
      recording.obstacles.push_back(why);
    }
  }
  // What a traced step only reads is data, wherever its code finds it, and is another tensor next time: not looked for.
  if (is_traced_) std::erase_if(recording.unowned, [&](const Unowned& one) { return is_data(recording.trace, one); });
  // What a traced pass of a loop made is the program's, as what it keeps in its forward pass is.
  if (is_traced_ && is_loop_) leave_to_host(recording);
  const bool looks = explanations_ < kMaxExplanations;
  if (looks && explain_unowned(program_, recording)) {
    // The next recording knows these tensors by owner; nothing agrees with this one.
    ++explanations_;
    --entry.recordings;
    entry.open.clear();
    return nullptr;
  }
  if (is_traced_) leave_to_host(recording);
  // Not looked for for ever: every find is another structure.
  if (!looks && !recording.unowned.empty())
    recording.unowned.front().obstacle.insert(0, "every recording finds other tensors that outlive the step: ");
  refuse_unowned(recording);
  if (!may_trace_ && recording.obstacles.empty())  // no Python runs beside the replays
    if (std::string reason = program_.python_reason(); !reason.empty())
      recording.obstacles.push_back(std::move(reason));
  bool obstacle = !recording.obstacles.empty();
  std::string reason = obstacle ? recording.obstacles.front() : std::string();
  if (!obstacle) {
    program_.refresh();
    const std::vector<at::Tensor> tensors = list_tensors(program_, input);
    if (auto plan = agree_with_any(entry, recording.trace, tensors, reason, obstacle)) return plan;
    if (may_trace_ && !is_loop_ && !is_traced_ && std::ranges::any_of(entry.open, [&](const Trace& before) {
          if (agree(before, recording.trace).obstacle.empty()) return false;
          const Agreement agreement = agree_on_calls(before, recording.trace);
          return agreement.difference.empty() && agreement.obstacle.empty();
        })) {
      // The same calls, and between them what only the step's own code sees: both recordings are a traced step's.
      std::vector<Trace> open = std::move(entry.open);
      trace(reason, entry, input);
      entry.open = std::move(open);
      if (auto plan = agree_with_any(entry, recording.trace, list_tensors(program_, input), reason, obstacle))
        return plan;
    }
    if (entry.open.size() == kMaxOpen) entry.open.erase(entry.open.begin());
    entry.open.push_back(std::move(recording.trace));
  }
  // The same obstacle twice in a row will be there the next time too; another branch may not.
  const bool again = obstacle && reason == entry.last_obstacle;
  entry.last_obstacle = obstacle ? reason : std::string();
  if (!entry.plans.empty() || (!again && entry.recordings < config_.max_recordings)) return nullptr;
  if (may_trace_ && !is_traced_ && !recording.is_left)
    trace(reason, entry, input);
  else
    give_up(entry, str("{} recordings gave no plan: {}", entry.recordings, reason));
  return nullptr;
}

void PlanCache::give_up(PlanEntry& entry, const std::string& why) {
  entry.eager = true;
  entry.open.clear();
  entry.plans.clear();
  const bool others_replay = std::ranges::any_of(entries_, [](const PlanEntry& one) { return !one.plans.empty(); });
  warn_once(str("this {} runs eagerly{}: {}", what_runs_, others_replay ? " where it is called like this" : "", why));
}

void PlanCache::warn_once(const std::string& warning) {
  if (std::ranges::find(stats_.warnings, warning) != stats_.warnings.end()) return;
  stats_.warnings.push_back(warning);
  log().warn("{}", warning);
}

bool PlanCache::must_check(const PlanEntry& entry, const std::vector<at::Tensor>& tensors) const {
  const bool is_pure = config_.python == PythonMode::kPure;
  const bool looks = !is_traced_ && (is_pure || (config_.python != PythonMode::kWatch && program_.is_watched()));
  if (!looks || config_.verify.kind != Verify::Kind::kFirst || replays_of(entry) < entry.next_check) return false;
  Plan& plan = *entry.plans.front();
  return plan.is_verified() && !plan.is_virtual() && eager_fits(plan) && plan.why_not(tensors).empty();
}

int64_t PlanCache::compared_with_eager(const PlanEntry& entry) const {
  if (!weighs_pace() || entry.to_record != 0 || entry.plans.empty()) return 0;
  const Plan& plan = *entry.plans.front();
  return !plan.is_virtual() && eager_fits(plan) ? entry.pace.wanted_eager() : 0;
}

bool PlanCache::weighs_pace() const {
  return config_.weighs_pace && (config_.python == PythonMode::kAuto || config_.python == PythonMode::kPure);
}

void PlanCache::check(PlanEntry& entry, Recording& recording, const StepInput& input) {
  ++stats_.checks;
  const int64_t replays = replays_of(entry) - (is_loop_ ? 1 : 0);  // a model's look is beside one
  entry.next_check = std::max(entry.next_check, 2 * replays);
  if (recording.raised) {  // as a replay would have, and then have let the step run
    ++stats_.recordings;
    return;
  }
  std::string slip;
  if (!recording.effects.empty())
    slip = recording.effects.front();
  else if (slip = program_.python_reason(); slip.empty() && !recording.obstacles.empty())
    slip = recording.obstacles.front();
  else if (slip.empty() && !recording.unowned.empty())
    slip = recording.unowned.front().obstacle;
  if (slip.empty()) {
    for (const std::shared_ptr<Plan>& plan : entry.plans) {
      const Agreement agreement = agree(plan->recorded(), recording.trace);
      const std::string& why = agreement.difference.empty() ? agreement.obstacle : agreement.difference;
      if (why.empty()) {
        ++stats_.recordings;
        plan->doubt_updates();
        return;
      }
      if (slip.empty() && would_replay(*plan, recording.trace)) slip = why;
    }
  }
  ++stats_.recordings;
  if (slip.empty()) return;  // another branch: the guard of a replay finds it, too
  ++stats_.slips;
  warn_once(str("replays of this {} were not what it does by now: {}", what_runs_, slip));
  if (may_trace_)
    trace(slip, entry, input);
  else
    give_up(entry, slip);
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
  entry.last_obstacle.clear();
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

void PlanCache::left(PlanEntry& entry, const std::string& difference, bool is_reseeded, const std::string& decided,
                     bool records_next) {
  ++stats_.departures;
  entry.departures += is_reseeded ? kOfSeeds : 1;
  log().info("a step left its plan: {}", difference);
  entry.to_verify = 0;
  if (!is_reseeded && !decided.empty() && ++entry.decisions > kMostDecisions)
    run_exactly(entry, str("what the step does is decided by numbers, last by one that is read {}", decided));
  if (entry.departures > kMaxDepartures)
    give_up(entry, str("steps keep leaving their plans; the last: {}", difference));
  else if (records_next)
    entry.to_record = kRecordAfterLeaving;
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
  ++entry.departures;
  log().info("a replay ends with an error, the step runs as it is: {}", error.substr(0, error.find('\n')));
  if (entry.departures > kMaxDepartures) give_up(entry, str("replays keep ending with errors; the last: {}", error));
}

// Makes a plan with the first earlier recording that `trace` agrees with.
std::shared_ptr<Plan> PlanCache::agree_with_any(PlanEntry& entry, Trace& trace, const std::vector<at::Tensor>& tensors,
                                                std::string& reason, bool& obstacle) {
  const auto good = [&](Agreement& agreement) {
    if (agreement.difference.empty() && agreement.obstacle.empty()) return true;
    obstacle = agreement.difference.empty();
    reason = agreement.difference.empty() ? agreement.obstacle : agreement.difference;
    return false;
  };
  const auto compare = [&](const Trace& before) {
    return is_traced_ ? agree_on_calls(before, trace) : agree(before, trace);
  };
  if (is_traced_)
    for (const std::shared_ptr<Plan>& plan : entry.plans)
      if (plan->has_same_calls(trace)) return plan;
  for (size_t o = entry.open.size(); o-- > 0;) {
    Agreement agreement = compare(entry.open[o]);
    if (!good(agreement)) continue;
    entry.open.erase(entry.open.begin() + static_cast<ssize_t>(o));
    add(entry,
        std::make_shared<Plan>(std::move(trace), std::move(agreement.trace), program_, tensors, options_for(entry)),
        tensors);
    return entry.plans.front();
  }
  // A plan whose guard was too narrow: what the guard held fixed is passed on now.
  for (auto plan = entry.plans.begin(); plan != entry.plans.end(); ++plan) {
    Agreement agreement = compare(is_traced_ ? (*plan)->trace() : (*plan)->recorded());
    if (!good(agreement)) continue;
    entry.plans.erase(plan);
    add(entry,
        std::make_shared<Plan>(std::move(trace), std::move(agreement.trace), program_, tensors, options_for(entry)),
        tensors);
    return entry.plans.front();
  }
  // Another path of a traced step: its calls are compared at every replay, so that one recording will do. The first one
  // is to show which numbers change.
  if (!is_traced_ || (entry.plans.empty() && (obstacle || entry.recordings < kPathsBeforeFirst))) return nullptr;
  Agreement agreement = agree_on_calls(trace, trace);
  if (!good(agreement)) return nullptr;
  add(entry,
      std::make_shared<Plan>(std::move(trace), std::move(agreement.trace), program_, tensors, options_for(entry)),
      tensors);
  return entry.plans.front();
}

PlanOptions PlanCache::options_for(const PlanEntry& entry) {
  KernelSources* const from = config_.mode == Mode::kFast && !entry.exact ? kernels() : nullptr;
  return {at::get_num_threads(),     config_.device_graphs, from, config_.memory_budget, Capture::kRun, is_traced_,
          target_to_weigh_with(from)};
}

// Measured rates count for what runs only where that was asked for.
KnownTarget PlanCache::target_to_weigh_with(const KernelSources* kernels) const {
  const int threads = at::get_num_threads();
  if (config_.memory_budget.kind != MemoryBudget::Kind::kAuto || kernels == nullptr) return {};
  if (!config_.target) return known_target(config_.kernel_directory, features_of(kernels->micro_kernels), threads);
  USER_CHECK(config_.target->threads == threads, "Config::target is one of {} threads, and this process runs with {}",
             config_.target->threads, threads);
  return {*config_.target, !(config_.target->rates == Rates())};
}

// After the first replays, which bring memory and caches up.
void PlanCache::compare_with_expected(Plan& plan, double seconds) {
  constexpr size_t kWarmUp = 3, kMeasured = 5;
  if (!plan.weighed() || plan.ran_exact() || plan.first_seconds.size() == kWarmUp + kMeasured) return;
  plan.first_seconds.push_back(seconds);
  if (plan.first_seconds.size() < kWarmUp + kMeasured) return;
  std::vector<double> warm(plan.first_seconds.begin() + kWarmUp, plan.first_seconds.end());
  std::ranges::sort(warm);
  const std::string measured = str("measured {} and {} a step, the median of {} replays",
                                   time_text(warm[kMeasured / 2]), human_bytes(stats_.measured_peak_bytes), kMeasured);
  stats_.auto_budget = str("{}; {}", to_text(*plan.weighed(), plan.known().is_calibrated), measured);
  log().info("memory budget auto: expected {} and {} a step, {}", time_text(plan.weighed()->chosen.seconds),
             human_bytes(plan.weighed()->chosen.peak_bytes), measured);
}

void PlanCache::capture(PlanEntry& entry, const StepInput& input, const std::function<StepOutput()>& step) {
  if (config_.capture == Capture::kRun || entry.is_captured || entry.eager) return;
  entry.is_captured = true;
  try {
    const std::shared_ptr<Plan> plan = plan_without_running(entry, input, step);
    add(entry, plan, list_tensors(program_, input));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const std::string why = str("the step is captured by running it: {}", what.substr(0, what.find('\n')));
    if (config_.mode == Mode::kFast)
      warn_once(why + "; its first calls take eager's memory and round as eager does, after load() too");
    else
      log().info("{}", why);
  }
}

std::shared_ptr<Plan> PlanCache::plan_without_running(PlanEntry& entry, const StepInput& input,
                                                      const std::function<StepOutput()>& step) {
  USER_CHECK(config_.mode == Mode::kFast, "mode \"{}\" replays recorded calls, whose memory only a run shows",
             name_of(config_.mode));
  PlanOptions options = options_for(entry);
  options.capture = Capture::kVirtual;
  USER_CHECK(options.kernels != nullptr, "there are no kernels for its Graph");
  VirtualPlan captured = plan_virtually(program_, input, step, config_.op_rules);
  stats_.capture_seconds += captured.seconds;
  stats_.eager_peak_bytes = captured.step_bytes_lower_bound;
  USER_CHECK(captured.obstacle.empty(), "{}", captured.obstacle);
  const std::vector<at::Tensor> tensors = list_tensors(program_, input);
  std::set<std::pair<Owner, std::string>> there;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    if (program_.keys()[k].owner == Owner::kGradient || tensors[k].defined())
      there.emplace(program_.keys()[k].owner, program_.keys()[k].key);
  for (const External& external : captured.trace.externals) {
    const bool is_slot = external.owner != Owner::kConstant && external.owner != Owner::kBatch;
    USER_CHECK(!is_slot || there.contains({external.owner, external.key}), "{} '{}' is made in it",
               name_of(external.owner), external.key);
  }
  for (const HostEvent& event : captured.trace.events)
    USER_CHECK(event.kind == HostEvent::Kind::kShadow, "'{}' computes on the host with values that depend on data",
               event.key);
  Trace recorded = captured.trace;
  auto plan = std::make_shared<Plan>(std::move(recorded), std::move(captured.trace), program_, tensors, options);
  plan->eager_peak_bytes = captured.step_bytes_lower_bound;
  return plan;
}

void PlanCache::add(PlanEntry& entry, std::shared_ptr<Plan> made, const std::vector<at::Tensor>& tensors) {
  entry.plans.push_front(std::move(made));
  entry.recordings = 0;
  entry.next_check = 2;
  entry.to_record = 0;
  explanations_ = 0;
  entry.last_obstacle.clear();
  if (entry.plans.size() > static_cast<size_t>(config_.max_plans)) entry.plans.pop_back();
  Plan& plan = *entry.plans.front();
  if (config_.verify.kind == Verify::Kind::kOff) plan.trust();
  count(plan, tensors);
  log().info("captured {} calls, planned {} for {} instructions in {:.2f} s", stats_.nodes,
             human_bytes(stats_.planned_peak_bytes), stats_.instructions, plan.planning_seconds());
  if (plan.weighed()) {
    stats_.auto_budget = to_text(*plan.weighed(), plan.known().is_calibrated);
    log().info("memory budget auto: {}", stats_.auto_budget);
  }
  warn_of(plan);
  for (const HostEvent& event : plan.trace().events)
    if (event.kind == HostEvent::Kind::kEager)
      log().info(
          "'{}' computes on the host with values that depend on data: its update runs eagerly, the rest is "
          "replayed",
          event.key);
}

// Nullptr, with a warning: there are none on this machine.
KernelSources* PlanCache::kernels() {
  if (kernels_ == nullptr) kernels_ = config_.kernels;
  if (kernels_ != nullptr || !kernel_problem_.empty()) return kernels_.get();
  try {
    kernels_ = std::make_shared<KernelSources>(config_.kernel_directory);
  } catch (const std::exception& error) {
    kernel_problem_ = error.what();
    log().warn("no kernels can be generated, the recorded calls are replayed: {}", kernel_problem_);
  }
  return kernels_.get();
}

// What a plan does without, and still is right.
void PlanCache::warn_of(const Plan& plan) {
  if (!plan.why_exact().empty())
    log().log(plan.has_fault() ? spdlog::level::warn : spdlog::level::info, "the plan replays the recorded calls: {}",
              plan.why_exact());
  if (!plan.unordered().empty())
    log().info("replays are compared with eager within rounding: {} comes to other bits at every run on {}",
               plan.unordered(), plan.trace().device);
  if (plan.graph() == nullptr) return;
  const std::vector<std::string>& one_by_one = plan.graph()->one_by_one;
  if (!one_by_one.empty())
    log().warn("{} of the step's kernels could not be generated and run as ATen calls; the first: {}",
               one_by_one.size(), one_by_one.front());
  warn_of_kernel_directory();
  const MemoryBudget& budget = config_.memory_budget;
  const Schedule& schedule = plan.schedule();
  if (budget.kind == MemoryBudget::Kind::kBytes && schedule.needed_bytes() > budget.bytes)
    log().warn("the memory budget is {}, and the step needs {}, {} of them the program's own: no plan needs less",
               human_bytes(budget.bytes), human_bytes(schedule.needed_bytes()), human_bytes(schedule.input_bytes()));
}

// Once: it is the same for every kernel.
void PlanCache::warn_of_kernel_directory() {
  const CompilerStatistics statistics = kernels_->compiler.statistics();
  std::string problem;
  if (!statistics.cache_problem.empty())
    problem = str("generated kernels are not kept for the next run: {}", statistics.cache_problem);
  else if (statistics.damaged != 0)
    problem = "some kept kernels were damaged and have been made again";
  if (problem.empty() || !kernel_problem_.empty()) return;
  kernel_problem_ = problem;
  log().warn("{}", problem);
}

void PlanCache::count(const Plan& plan, const std::vector<at::Tensor>& tensors) {
  const Trace& trace = plan.trace();
  ++stats_.plans;
  if (stats_.is_warm) ++stats_.late_plans;
  stats_.nodes = trace.calls.size();
  stats_.instructions = plan.schedule().instructions.size();
  stats_.graph_nodes = stats_.kernels = 0;
  stats_.opaque_calls.clear();
  if (const GraphSchedule* graph = plan.graph()) {
    stats_.graph_nodes = graph->nodes;
    stats_.kernels =
        static_cast<uint64_t>(std::ranges::count_if(plan.schedule().instructions, [](const Instruction& instruction) {
          return instruction.kind == Instruction::Kind::kGenerated ||
                 (instruction.matmul && !instruction.matmul->epilogue_programs.empty());
        }));
    stats_.opaque_calls = graph->opaque;
    std::ranges::sort(stats_.opaque_calls);
  }
  stats_.guards = static_cast<uint64_t>(
      std::count_if(trace.reads.begin(), trace.reads.end(), [](const HostRead& read) { return read.guard; }));
  count_memory(plan);
  stats_.planning_seconds += plan.planning_seconds();
  stats_.state_bytes = 0;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    if (tensors[k].defined() && program_.keys()[k].owner != Owner::kGradient) stats_.state_bytes += tensors[k].nbytes();
}

void PlanCache::count_memory(const Plan& plan) {
  const Schedule& schedule = plan.schedule();
  stats_.arena_bytes = schedule.arena_bytes;
  stats_.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats_.planned_peak_bytes = schedule.peak_bytes();
  stats_.layout_algorithm = schedule.layout_algorithm;
}

void PlanCache::count_run(const Plan& plan, const StepResult& result) {
  const MemoryCounts& memory = result.memory;
  if (plan.ran_exact()) ++stats_.recorded_replays;
  stats_.served_allocations = memory.served;
  stats_.unplanned_allocations += memory.unplanned;
  stats_.device_graphs = memory.device_graphs;
  const uint64_t measured = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
  // What a graph runs asks for nothing: what it uses was seen when it was recorded.
  stats_.measured_peak_bytes = memory.device_graphs > 0 ? std::max(stats_.measured_peak_bytes, measured) : measured;
}

std::shared_ptr<Plan> PlanCache::other_branch(PlanEntry& entry, const std::shared_ptr<Plan>& plan,
                                              const Plan::Outcome& outcome, const StepInput& input) {
  if (!outcome.error.empty()) {
    failed(entry, outcome.error);
    return nullptr;
  }
  if (!outcome.missed_read.has_value()) {
    log().info("recording again: {}", outcome.change);
    entry.exact = entry.exact || plan->is_unfit();
    entry.plans.remove(plan);
    return nullptr;
  }
  ++stats_.guard_misses;
  for (const std::shared_ptr<Plan>& other : entry.plans)
    if (other != plan && other->continues(*plan, *outcome.missed_read, outcome.read)) return other;
  const HostRead& read = plan->trace().reads[*outcome.missed_read];
  const Call& call = plan->trace().calls[read.call.index()];
  const std::string& module = call.module;
  const bool is_shape = std::holds_alternative<ValueId>(call.results.front());
  if (may_trace_ && !is_traced_ && !std::holds_alternative<bool>(outcome.read) && ++entry.choices > kMostChoices)
    trace(
        str("{} {}", read.source,
            is_shape ? "makes a tensor whose shape depends on data" : "reads a number that changes from step to step"),
        entry, input);
  else
    log().info("recording again: another branch is taken {} {}", module, read.source);
  return nullptr;
}

bool PlanCache::must_verify(const Plan& plan) const {
  if (!plan.is_verified()) return true;
  return config_.verify.kind == Verify::Kind::kEvery && plan.replays % config_.verify.interval == 0;
}

bool PlanCache::eager_fits(const Plan& plan) const {
  const MemoryBudget& budget = config_.memory_budget;
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

}  // namespace stepc
