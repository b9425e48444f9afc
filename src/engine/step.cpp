#include "engine/step.h"

#include <algorithm>
#include <chrono>

#include <ATen/Parallel.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/signature.h"
#include "engine/verify_replay.h"

namespace stepc {

std::string_view name_of(Mode mode) { return mode == Mode::kEager ? "eager" : "exact"; }

Step::Step(Program program, Config config) : program_(std::move(program)), config_(config) {
  USER_CHECK(config_.max_plans >= 1, "Config::max_plans is {}: at least one plan must be kept", config_.max_plans);
  USER_CHECK(config_.max_recordings >= 2, "Config::max_recordings is {}: a plan needs two recordings that agree",
             config_.max_recordings);
  if (config_.mode != Mode::kEager) install_recorder();
}

std::vector<at::Tensor> Step::run(const std::vector<at::Tensor>& batch, const EagerFn& eager) {
  if (config_.mode == Mode::kEager) return run_eagerly(eager);
  USER_CHECK(!is_recording(),
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  std::vector<OwnedTensor> owned = program_.list(batch);
  Plan& plan = find_plan(owned);
  if (plan.eager) return run_eagerly(eager);
  if (plan.compiled.executable != nullptr) return replay(plan, std::move(owned), batch, eager);
  owned.clear();  // no references to gradients while the step is recorded
  return record_once(plan, batch, eager);
}

std::vector<at::Tensor> Step::run_eagerly(const EagerFn& eager) {
  ++stats_.eager_calls;
  std::vector<at::Tensor> outputs = eager();
  for (at::Tensor& output : outputs)
    if (output.defined()) output = output.detach();
  return outputs;
}

Step::Plan& Step::find_plan(const std::vector<OwnedTensor>& owned) {
  std::string signature = signature_of(program_, owned);
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) { return plan.signature == signature; });
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
    return plans_.front();
  }
  Plan plan;
  plan.signature = std::move(signature);
  plan.description = describe_signature(owned);
  if (!plans_.empty() && stats_.plans > 0)
    log().info("recording again: {}", explain_change(plans_.front().description, plan.description));
  plans_.push_front(std::move(plan));
  if (plans_.size() > static_cast<size_t>(config_.max_plans)) plans_.pop_back();
  return plans_.front();
}

std::vector<at::Tensor> Step::record_once(Plan& plan, const std::vector<at::Tensor>& batch, const EagerFn& eager) {
  Recording recording = record([&] { return program_.list(batch); }, eager);
  ++stats_.recordings;
  ++plan.recordings;
  stats_.capture_seconds += recording.overhead_seconds;
  stats_.eager_peak_bytes = recording.peak_bytes;

  const bool replayable = recording.obstacles.empty();
  std::string reason = replayable ? std::string() : recording.obstacles.front();
  if (replayable && plan.previous.has_value()) {
    reason = first_difference(*plan.previous, recording.trace);
    if (reason.empty()) {
      compile(plan, recording.trace, program_.list(batch));
      plan.previous.reset();
      release_free_memory();
      return std::move(recording.outputs);
    }
  }
  plan.previous.reset();
  if (replayable) plan.previous = std::move(recording.trace);
  if (plan.recordings >= config_.max_recordings) {
    plan.eager = true;
    plan.previous.reset();
    log().warn("this step runs eagerly, {} recordings gave no plan: {}", plan.recordings, reason);
  }
  return std::move(recording.outputs);
}

void Step::compile(Plan& plan, const Trace& trace, const std::vector<OwnedTensor>& owned) {
  plan.compiled = compile_exact(trace, at::get_num_threads());
  plan.verified = config_.verify == Verify::kOff;
  plan.externals.clear();
  for (const External& external : trace.externals) {
    const auto found = std::find_if(owned.begin(), owned.end(), [&](const OwnedTensor& one) {
      return one.owner == external.owner && one.key == external.key;
    });
    INTERNAL_CHECK(found != owned.end(), "{} '{}' is gone", name_of(external.owner), external.key);
    plan.externals.push_back(static_cast<size_t>(found - owned.begin()));
  }
  for (const GradientOut& gradient : trace.gradients) {
    const bool read = std::any_of(trace.externals.begin(), trace.externals.end(), [&](const External& external) {
      return external.owner == Owner::kGradient && external.key == gradient.key;
    });
    if (!read) plan.dropped_gradients.push_back(gradient.key);
  }

  const Schedule& schedule = plan.compiled.executable->schedule();
  ++stats_.plans;
  stats_.nodes = trace.calls.size();
  stats_.instructions = schedule.instructions.size();
  stats_.arena_bytes = schedule.arena_bytes;
  stats_.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats_.planned_peak_bytes = schedule.planned_peak_bytes;
  stats_.layout_algorithm = schedule.layout_algorithm;
  stats_.planning_seconds += plan.compiled.seconds;
  stats_.state_bytes = 0;
  for (const OwnedTensor& one : owned)
    if (one.tensor.defined() && one.owner != Owner::kGradient && one.owner != Owner::kBatch)
      stats_.state_bytes += one.tensor.nbytes();
  log().info("captured {} calls, planned {} for {} instructions in {:.2f} s", stats_.nodes,
             human_bytes(schedule.planned_peak_bytes), stats_.instructions, plan.compiled.seconds);
}

std::vector<at::Tensor> Step::replay(Plan& plan, std::vector<OwnedTensor> owned, const std::vector<at::Tensor>& batch,
                                     const EagerFn& eager) {
  Executable& executable = *plan.compiled.executable;
  std::vector<at::Tensor> externals;
  externals.reserve(plan.externals.size());
  for (size_t e = 0; e < plan.externals.size(); ++e) {
    const bool there =
        plan.externals[e] < owned.size() && owned[plan.externals[e]].key == executable.trace().externals[e].key;
    externals.push_back(there ? owned[plan.externals[e]].tensor : at::Tensor());
  }
  owned.clear();
  if (const std::string change = executable.why_not(externals); !change.empty()) {
    log().info("recording again: {}", change);
    plan.compiled = {};
    plan.recordings = 0;
    plan.dropped_gradients.clear();
    externals.clear();
    return record_once(plan, batch, eager);
  }
  if (!plan.verified) return verify_first(plan, externals, batch, eager);

  // Gradients that the step throws away unread are memory that it may use.
  for (const std::string& key : plan.dropped_gradients) program_.set_gradient(key, {});
  StepResult result = executable.run(externals);
  for (auto& [key, gradient] : result.gradients) program_.set_gradient(key, gradient);
  ++stats_.replays;
  count(result.memory);
  return std::move(result.outputs);
}

std::vector<at::Tensor> Step::verify_first(Plan& plan, const std::vector<at::Tensor>& externals,
                                           const std::vector<at::Tensor>& batch, const EagerFn& eager) {
  const auto begin = std::chrono::steady_clock::now();
  Verification verification = verify_replay(
      *plan.compiled.executable, externals, [&] { return program_.list(batch); }, eager);
  plan.verified = true;
  release_free_memory();
  ++stats_.eager_calls;
  stats_.verification_bytes = std::max(stats_.verification_bytes, verification.snapshot_bytes);
  stats_.verify_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  count(verification.memory);
  if (!verification.difference.empty()) {
    plan.eager = true;
    plan.compiled = {};
    log().warn("this step runs eagerly: its first replay differs from eager in {}", verification.difference);
  }
  return std::move(verification.outputs);
}

void Step::count(const MemoryCounts& memory) {
  stats_.served_allocations = memory.served;
  stats_.unplanned_allocations += memory.unplanned;
  stats_.measured_peak_bytes = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
}

std::string Step::graph_text() const {
  for (const Plan& plan : plans_)
    if (plan.compiled.executable != nullptr) return to_text(plan.compiled.executable->trace());
  return {};
}

}  // namespace stepc
