#include "engine/segments.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/observer.h"
#include "engine/tensor_hash.h"

namespace stepc {

namespace {

// Takes the parameters' gradients aside for the length of a backward pass, which so begins without any, and adds what
// it leaves to them as autograd does.
class GradientsAside {
 public:
  explicit GradientsAside(const Program& program) {
    std::vector<at::Tensor> tensors;
    program.append_tensors(tensors);
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (program.keys()[k].owner != Owner::kParameter || !tensors[k].defined()) continue;
      parameters_.push_back({program.keys()[k].key, tensors[k], tensors[k].grad()});
      if (parameters_.back().before.defined()) tensors[k].mutable_grad().reset();
    }
  }
  ~GradientsAside() {
    for (Parameter& one : parameters_)
      if (one.before.defined() && !one.done) one.tensor.mutable_grad() = one.before;
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // What the backward pass left.
  void accumulate() {
    for (Parameter& one : parameters_) add(one, one.tensor.grad());
  }
  void accumulate(const std::vector<Bound>& gradients) {
    for (const Bound& gradient : gradients)
      for (Parameter& one : parameters_)
        if (gradient.owner == Owner::kGradient && one.key == gradient.key) add(one, gradient.tensor);
  }
  uint64_t hash_of(const std::string& key) const {
    for (const Parameter& one : parameters_)
      if (one.key == key) return stepc::hash_of(one.tensor.grad());
    return 0;
  }
  void drop() {
    for (Parameter& one : parameters_) one.tensor.mutable_grad().reset();
  }

 private:
  struct Parameter {
    std::string key;
    at::Tensor tensor;
    at::Tensor before;
    bool done = false;
  };

  static void add(Parameter& one, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    const c10::AutoGradMode no_grad(false);
    if (one.before.defined()) {
      one.before.add_(gradient);
      one.tensor.mutable_grad() = one.before;
    } else {
      one.tensor.mutable_grad() = gradient;
    }
    one.done = true;
  }

  std::vector<Parameter> parameters_;
};

}  // namespace

Segments::Segments(std::unique_ptr<Program> program, Config config)
    : program_(std::move(program)), config_(std::move(config)), plans_(*program_, config_, stats_) {
  check(config_);
  if (config_.mode != Mode::kEager) install_recorder();
}
Segments::~Segments() = default;

std::unique_ptr<Segments::Call> Segments::begin(StepInput input) {
  if (config_.mode == Mode::kEager || open_recordings_ != 0 || current_observer() != nullptr) {
    ++stats_.eager_calls;
    return nullptr;
  }
  program_->refresh();
  std::unique_ptr<Call> call(new Call(*this, std::move(input)));
  const GradientsAside aside(*program_);  // they separate no plans
  call->tensors_ = list_tensors(*program_, call->input_);
  PlanEntry& entry = plans_.find(call->tensors_, call->input_);
  const bool busy =
      std::any_of(entry.plans.begin(), entry.plans.end(), [](const auto& plan) { return plan->is_paused(); });
  if (entry.eager || busy) {
    ++stats_.eager_calls;
    return nullptr;
  }
  call->entry_ = &entry;
  call->signature_ = entry.signature;
  return call;
}

Segments::Call::~Call() {
  if (plan_ != nullptr && plan_->is_paused()) plan_->abandon();
  if (recorder_ != nullptr) --owner_.open_recordings_;
}

std::vector<at::Tensor> Segments::Call::forward(const ForwardFn& eager) {
  if (!entry_->plans.empty())
    if (auto given = replay()) return mode_ == Mode::kVerify ? verify_forward(eager, std::move(*given)) : *given;
  return record(eager);
}

std::vector<at::Tensor> Segments::Call::record(const ForwardFn& eager) {
  tensors_.clear();
  program_ = std::make_unique<RecordedStep>(*owner_.program_, input_);
  const GradientsAside aside(*owner_.program_);
  auto recorder = std::make_unique<Recorder>(*program_);
  std::vector<at::Tensor> outputs;
  recorder->run([&] { outputs = eager(); });
  recorder->pause(outputs, structure);
  recorder_ = std::move(recorder);
  ++owner_.open_recordings_;
  mode_ = Mode::kRecord;
  return outputs;
}

// The outputs of a replayed forward pass, or nothing where no plan fits.
std::optional<std::vector<at::Tensor>> Segments::Call::replay() {
  std::shared_ptr<Plan> plan = entry_->plans.front();
  for (size_t tried = entry_->plans.size(); plan != nullptr && tried > 0; --tried) {
    const bool verifies = owner_.plans_.must_verify(*plan);
    std::optional<Undo> undo;
    if (verifies) undo.emplace(*owner_.program_, plan->changed(tensors_), plan->generators(*owner_.program_));
    const GradientsAside aside(*owner_.program_);
    Plan::Outcome outcome = plan->run(*owner_.program_, tensors_);
    if (outcome.result.has_value()) {
      INTERNAL_CHECK(outcome.result->paused, "a plan of a model has no pause");
      plan_ = plan;
      structure = plan->pause_structure();
      mode_ = verifies ? Mode::kVerify : Mode::kReplay;
      if (verifies) {
        owner_.stats_.verification_bytes = std::max(owner_.stats_.verification_bytes, undo->bytes());
        undo->restore();
      }
      return std::move(outcome.result->given);
    }
    plan = owner_.plans_.other_branch(*entry_, plan, outcome);
  }
  return std::nullopt;
}

std::vector<at::Tensor> Segments::Call::verify_forward(const ForwardFn& eager, std::vector<at::Tensor> replayed) {
  ++owner_.stats_.eager_calls;
  const int64_t planned_structure = structure;
  std::vector<at::Tensor> outputs = eager();
  bool same = structure == planned_structure && outputs.size() == replayed.size();
  for (size_t o = 0; same && o < outputs.size(); ++o) same = hash_of(outputs[o]) == hash_of(replayed[o]);
  if (!same) {
    plan_->abandon();
    plan_.reset();
    owner_.plans_.give_up(*entry_, "a replay differs from eager in an output of the model");
    mode_ = Mode::kEager;
  }
  return outputs;
}

std::vector<at::Tensor> Segments::Call::backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager) {
  switch (mode_) {
    case Mode::kRecord:
      USER_CHECK(recorder_ != nullptr, "a second backward pass through an accelerated model: it keeps no graph");
      return finish_recording(gradients, eager);
    case Mode::kVerify:
      return verify_backward(gradients, eager);
    case Mode::kReplay: {
      USER_CHECK(plan_ != nullptr && plan_->is_paused(),
                 "a second backward pass through an accelerated model: it keeps no graph");
      GradientsAside aside(*owner_.program_);
      const std::shared_ptr<Plan> plan = std::move(plan_);  // another call may run it from here on
      StepResult result = plan->resume(gradients);
      aside.accumulate(result.rebindings);
      ++owner_.stats_.replays;
      owner_.plans_.count_run(*plan, result);
      return std::move(result.outputs);
    }
    case Mode::kEager:
      break;
  }
  return eager(gradients);
}

std::vector<at::Tensor> Segments::Call::finish_recording(const std::vector<at::Tensor>& gradients,
                                                         const BackwardFn& eager) {
  GradientsAside aside(*owner_.program_);
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  --owner_.open_recordings_;
  recorder->resume(gradients);
  StepOutput output;
  recorder->run([&] { output.tensors = eager(gradients); });
  Recording recording = recorder->finish(std::move(output));
  aside.accumulate();
  {
    const GradientsAside again(*owner_.program_);
    if (PlanEntry* entry = owner_.plans_.entry_of(signature_)) owner_.plans_.keep(*entry, recording, input_);
  }
  release_free_memory();
  return std::move(recording.output.tensors);
}

std::vector<at::Tensor> Segments::Call::verify_backward(const std::vector<at::Tensor>& gradients,
                                                        const BackwardFn& eager) {
  USER_CHECK(plan_ != nullptr && plan_->is_paused(),
             "a second backward pass through an accelerated model: it keeps no graph");
  GradientsAside aside(*owner_.program_);
  Undo undo(*owner_.program_, plan_->changed(tensors_), plan_->generators(*owner_.program_));
  std::vector<std::pair<std::string, uint64_t>> replayed;
  std::vector<uint64_t> inputs;
  {
    const StepResult result = plan_->resume(gradients);
    for (const Bound& bound : result.rebindings)
      if (bound.owner == Owner::kGradient) replayed.emplace_back(bound.key, hash_of(bound.tensor));
    for (const at::Tensor& output : result.outputs) inputs.push_back(hash_of(output));
  }
  undo.restore();
  std::vector<at::Tensor> outputs = eager(gradients);
  std::string difference;
  for (const auto& [key, hash] : replayed)
    if (difference.empty() && aside.hash_of(key) != hash) difference = str("gradient '{}'", key);
  for (size_t i = 0; i < outputs.size() && difference.empty(); ++i)
    if (i >= inputs.size() || hash_of(outputs[i]) != inputs[i]) difference = str("the gradient of input {}", i);
  aside.accumulate();
  plan_->verified = true;
  ++owner_.stats_.verifications;
  if (PlanEntry* entry = owner_.plans_.entry_of(signature_); entry != nullptr && !difference.empty())
    owner_.plans_.give_up(*entry, str("a replay differs from eager in {}", difference));
  plan_.reset();
  release_free_memory();
  return outputs;
}

std::string Segments::report() const { return report_text(stats_, name_of(config_.mode)); }

std::string Segments::graph_text() const {
  const Plan* plan = plans_.latest();
  return plan == nullptr ? std::string() : to_text(plan->trace());
}

}  // namespace stepc
