#include "engine/step.h"

#include <algorithm>
#include <chrono>

#include <ATen/Parallel.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/log.h"
#include "capture/observer.h"
#include "engine/signature.h"
#include "engine/verify_replay.h"
#include "ir/agree.h"

namespace stepc {

namespace {
// The program and the batch of one step, as the recorder asks for them.
class RecordedStep final : public RecordedProgram {
 public:
  RecordedStep(Program& program, const StepInput& input) : program_(program), input_(input) {}

  std::vector<OwnedTensor> list() override {
    program_.refresh();
    std::vector<at::Tensor> tensors;
    program_.append_tensors(tensors);
    std::vector<OwnedTensor> out;
    for (size_t k = 0; k < tensors.size(); ++k)
      out.push_back({program_.keys()[k].owner, program_.keys()[k].key, tensors[k]});
    for (size_t b = 0; b < input_.tensors.size(); ++b) out.push_back({Owner::kBatch, str("{}", b), input_.tensors[b]});
    return out;
  }
  std::vector<std::pair<std::string, at::Generator>> generators() override { return program_.generators(); }
  bool can_rebind(Owner owner) override { return owner == Owner::kGradient || program_.can_rebind(owner); }
  void find_events(Trace& trace) override { program_.find_events(trace); }
  std::string source_line() override { return program_.source_line(); }
  void settle() override { program_.settle(); }

 private:
  Program& program_;
  const StepInput& input_;
};

// Recordings beyond the configured ones that may go into finding owners of tensors.
constexpr int kMaxExplanations = 6;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
}  // namespace

Step::Step(std::unique_ptr<Program> program, Config config) : program_(std::move(program)), config_(config) {
  USER_CHECK(config_.max_plans >= 1, "Config::max_plans is {}: at least one plan must be kept", config_.max_plans);
  USER_CHECK(config_.max_recordings >= 2, "Config::max_recordings is {}: a plan needs two recordings that agree",
             config_.max_recordings);
  if (config_.mode != Mode::kEager) install_recorder();
}
Step::~Step() = default;

void Step::warn(const std::string& text) {
  stats_.warnings.push_back(text);
  log().warn("{}", text);
}

void Step::list_tensors(const StepInput& input) {
  tensors_.clear();
  program_->append_tensors(tensors_);
  tensors_.insert(tensors_.end(), input.tensors.begin(), input.tensors.end());
}

StepOutput Step::run(const StepInput& input, const EagerFn& eager) {
  if (config_.mode == Mode::kEager) return run_eagerly(eager);
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  program_->refresh();
  list_tensors(input);
  Entry& entry = find_entry(input);
  if (!entry.eager && !entry.plans.empty())
    if (auto output = replay(entry, eager)) {
      tensors_.clear();
      return std::move(*output);
    }
  tensors_.clear();  // no references to gradients while the step runs as it is
  if (entry.eager) return run_eagerly(eager);
  return record_once(entry, input, eager);
}

StepOutput Step::run_eagerly(const EagerFn& eager) {
  ++stats_.eager_calls;
  StepOutput output = eager();
  for (at::Tensor& tensor : output.tensors)
    if (tensor.defined()) tensor = tensor.detach();
  return output;
}

Step::Entry& Step::find_entry(const StepInput& input) {
  const std::vector<at::Tensor>& tensors = tensors_;
  std::string signature = signature_of(*program_, tensors, input);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.signature == signature; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  Entry entry;
  entry.signature = std::move(signature);
  entry.description = describe_signature(*program_, tensors, input);
  if (!entries_.empty() && stats_.plans > 0)
    log().info("recording again: {}", explain_change(entries_.front().description, entry.description));
  entries_.push_front(std::move(entry));
  if (entries_.size() > static_cast<size_t>(config_.max_plans)) entries_.pop_back();
  return entries_.front();
}

// ---- recording

StepOutput Step::record_once(Entry& entry, const StepInput& input, const EagerFn& eager) {
  RecordedStep program(*program_, input);
  Recording recording = record(program, eager);
  ++stats_.recordings;
  ++entry.recordings;
  stats_.capture_seconds += recording.overhead_seconds;
  stats_.eager_peak_bytes = recording.peak_bytes;

  bool explained = false;
  for (const Stranger& stranger : recording.strangers) {
    if (program_->explain(stranger))
      explained = true;
    else
      recording.obstacles.push_back(stranger.obstacle);
  }
  recording.strangers.clear();
  if (explained && entry.explanations < kMaxExplanations) {
    // The next recording knows these tensors by owner; nothing agrees with this one.
    ++entry.explanations;
    --entry.recordings;
    entry.open.clear();
    return std::move(recording.output);
  }
  list_tensors(input);
  keep_recording(entry, recording);
  tensors_.clear();
  release_free_memory();
  return std::move(recording.output);
}

void Step::keep_recording(Entry& entry, Recording& recording) {
  std::string reason = recording.obstacles.empty() ? std::string() : recording.obstacles.front();
  if (recording.obstacles.empty()) {
    if (agree_with_any(entry, recording.trace, reason)) return;
    if (entry.open.size() == 3) entry.open.erase(entry.open.begin());
    entry.open.push_back(std::move(recording.trace));
  } else if (reason == entry.last_obstacle) {
    give_up(entry, reason);
    return;
  }
  entry.last_obstacle = recording.obstacles.empty() ? std::string() : reason;
  if (entry.recordings >= config_.max_recordings) give_up(entry, reason);
}

void Step::give_up(Entry& entry, const std::string& reason) {
  entry.eager = true;
  entry.open.clear();
  entry.plans.clear();
  warn(str("this step runs eagerly, {} recordings gave no plan: {}", entry.recordings, reason));
}

// Makes a plan with the first earlier recording that `trace` agrees with.
bool Step::agree_with_any(Entry& entry, Trace& trace, std::string& reason) {
  const auto good = [&](Agreement& agreement) {
    if (agreement.difference.empty() && agreement.obstacle.empty()) return true;
    reason = agreement.difference.empty() ? agreement.obstacle : agreement.difference;
    return false;
  };
  for (size_t o = entry.open.size(); o-- > 0;) {
    Agreement agreement = agree(entry.open[o], trace);
    if (!good(agreement)) continue;
    entry.open.erase(entry.open.begin() + static_cast<ssize_t>(o));
    add_plan(entry, std::move(trace), std::move(agreement.trace));
    return true;
  }
  // A plan whose guard was too narrow: what the guard held fixed is passed on now.
  for (auto plan = entry.plans.begin(); plan != entry.plans.end(); ++plan) {
    Agreement agreement = agree(plan->recorded(), trace);
    if (!good(agreement)) continue;
    entry.plans.erase(plan);
    add_plan(entry, std::move(trace), std::move(agreement.trace));
    return true;
  }
  return false;
}

void Step::add_plan(Entry& entry, Trace recorded, Trace agreed) {
  entry.plans.emplace_front(std::move(recorded), std::move(agreed), *program_, tensors_, at::get_num_threads());
  entry.recordings = 0;
  entry.explanations = 0;
  entry.last_obstacle.clear();
  if (entry.plans.size() > static_cast<size_t>(config_.max_plans)) entry.plans.pop_back();
  Plan& plan = entry.plans.front();
  plan.verified = config_.verify.kind == Verify::Kind::kOff;

  const Trace& trace = plan.trace();
  const Schedule& schedule = plan.schedule();
  ++stats_.plans;
  stats_.nodes = trace.calls.size();
  stats_.instructions = schedule.instructions.size();
  stats_.guards = static_cast<uint64_t>(
      std::count_if(trace.reads.begin(), trace.reads.end(), [](const HostRead& read) { return read.guard; }));
  stats_.arena_bytes = schedule.arena_bytes;
  stats_.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats_.planned_peak_bytes = schedule.planned_peak_bytes;
  stats_.layout_algorithm = schedule.layout_algorithm;
  stats_.planning_seconds += plan.planning_seconds();
  stats_.state_bytes = 0;
  for (size_t k = 0; k < program_->keys().size(); ++k)
    if (tensors_[k].defined() && program_->keys()[k].owner != Owner::kGradient)
      stats_.state_bytes += tensors_[k].nbytes();
  log().info("captured {} calls, planned {} for {} instructions in {:.2f} s", stats_.nodes,
             human_bytes(schedule.planned_peak_bytes), stats_.instructions, plan.planning_seconds());
  for (const HostEvent& event : trace.events)
    if (event.kind == HostEvent::Kind::kEager)
      log().info(
          "'{}' computes on the host with values that depend on data: its update runs eagerly, the rest is "
          "replayed",
          event.key);
}

// ---- replay

bool Step::must_verify(const Plan& plan) const {
  if (!plan.verified) return true;
  return config_.verify.kind == Verify::Kind::kEvery && plan.replays % config_.verify.interval == 0;
}

// The step's output, or nothing where no plan fits: then the program is as it was.
std::optional<StepOutput> Step::replay(Entry& entry, const EagerFn& eager) {
  auto plan = entry.plans.begin();
  for (size_t tried = 0; tried < entry.plans.size() + 1; ++tried) {
    Plan::Outcome outcome;
    if (must_verify(*plan)) {
      if (auto output = verify(entry, plan, eager, outcome)) return output;
    } else {
      const double shadow_before = plan->shadow_seconds();
      outcome = plan->run(*program_, tensors_);
      stats_.shadow_seconds += plan->shadow_seconds() - shadow_before;
      if (outcome.result.has_value()) {
        plan->apply(*program_, tensors_, *outcome.result);
        ++stats_.replays;
        count(*plan, outcome.result->memory);
        entry.plans.splice(entry.plans.begin(), entry.plans, plan);
        return StepOutput{std::move(outcome.result->outputs), std::move(outcome.result->numbers)};
      }
    }
    if (!outcome.missed_read.has_value()) {
      log().info("recording again: {}", outcome.change);
      entry.plans.erase(plan);
      return std::nullopt;
    }
    ++stats_.guard_misses;
    const auto next = std::find_if(entry.plans.begin(), entry.plans.end(), [&](const Plan& other) {
      return &other != &*plan && other.continues(*plan, *outcome.missed_read, outcome.read);
    });
    if (next == entry.plans.end()) {
      log().info("recording again: another branch is taken in '{}'",
                 plan->trace().calls[plan->trace().reads[*outcome.missed_read].call.index()].module);
      return std::nullopt;
    }
    plan = next;
  }
  return std::nullopt;
}

std::optional<StepOutput> Step::verify(Entry& entry, std::list<Plan>::iterator plan, const EagerFn& eager,
                                       Plan::Outcome& outcome) {
  const auto begin = std::chrono::steady_clock::now();
  Verification verification = verify_replay(*plan, *program_, tensors_, eager);
  stats_.verify_seconds += seconds_since(begin);
  outcome = std::move(verification.outcome);
  if (!outcome.result.has_value()) return std::nullopt;
  release_free_memory();
  plan->verified = true;
  ++stats_.verifications;
  ++stats_.eager_calls;
  stats_.verification_bytes = std::max(stats_.verification_bytes, verification.snapshot_bytes);
  count(*plan, outcome.result->memory);
  if (!verification.difference.empty()) {
    entry.eager = true;
    entry.plans.clear();
    warn(str("this step runs eagerly: a replay differs from eager in {}", verification.difference));
  }
  return std::move(verification.output);
}

void Step::count(const Plan&, const MemoryCounts& memory) {
  stats_.served_allocations = memory.served;
  stats_.unplanned_allocations += memory.unplanned;
  stats_.measured_peak_bytes = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
}

std::string Step::graph_text() const {
  for (const Entry& entry : entries_)
    if (!entry.plans.empty()) return to_text(entry.plans.front().trace());
  return {};
}

}  // namespace stepc
