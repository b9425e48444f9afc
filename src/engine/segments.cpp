#include "engine/segments.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/observer.h"
#include "engine/run_difference.h"

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
  at::Tensor gradient_of(const std::string& key) const {
    for (const Parameter& one : parameters_)
      if (one.key == key) return one.tensor.grad();
    return {};
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

// What a pass leaves behind, as it is compared: bit by bit where recorded calls run, else within rounding.
class Left {
 public:
  explicit Left(const Plan& plan) : by_bits_(plan.graph() == nullptr) {}
  void add_outputs(const std::vector<at::Tensor>& outputs, const std::string& what) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const std::string name = str("{} {}", what, o);
      all_.push_back(named(name, name, outputs[o], by_bits_));
    }
  }
  void add_gradient(const std::string& key, const at::Tensor& gradient) {
    all_.push_back(named(str("gradient '{}'", key), "gradient", gradient, by_bits_));
  }
  void add(const StepResult& backward) {
    for (const Bound& bound : backward.rebindings)
      if (bound.owner == Owner::kGradient) add_gradient(bound.key, bound.tensor);
    add_outputs(backward.outputs, "the gradient of input");
  }
  const std::vector<Named>& all() const { return all_; }

 private:
  bool by_bits_;
  std::vector<Named> all_;
};

std::string difference(const Plan& plan, const Left& replayed, const Left& other) {
  if (replayed.all().size() != other.all().size()) return "how many tensors there are";
  if (plan.graph() == nullptr) return difference_in_bits(replayed.all(), other.all());
  return difference_in_values(replayed.all(), other.all(), plan.graph()->narrow);
}

}  // namespace

Segments::Segments(std::unique_ptr<Program> program, Config config)
    : program_(std::move(program)), config_(std::move(config)), plans_(*program_, config_, stats_, /*may_trace=*/false) {
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
    if (verifies) undo.emplace(owner_.program_.get(), plan->changed(tensors_), plan->generators(*owner_.program_));
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
        with_plain_ = plan->graph() != nullptr && !plan->ran_exact() && draws(plan->schedule());
        if (with_plain_) {
          difference_ = difference_from_plain(outcome.result->given);
          undo->restore();
        }
      }
      return std::move(outcome.result->given);
    }
    plan = owner_.plans_.other_branch(*entry_, plan, outcome);
  }
  return std::nullopt;
}

// Of the forward pass; the plain graph is paused then. A run that cannot be had is no proof.
std::string Segments::Call::difference_from_plain(const std::vector<at::Tensor>& replayed) {
  try {
    const Plan::Outcome plain = plan_->run_plain(*owner_.program_, tensors_);
    if (!plain.result) return "the plain graph, which decides otherwise";
    Left of_replay(*plan_), of_plain(*plan_);
    of_replay.add_outputs(replayed, "output");
    of_plain.add_outputs(plain.result->given, "output");
    return difference(*plan_, of_replay, of_plain);
  } catch (const std::exception& error) {
    return str("an error of the plain graph: {}", error.what());
  }
}

std::vector<at::Tensor> Segments::Call::verify_forward(const ForwardFn& eager, std::vector<at::Tensor> replayed) {
  ++owner_.stats_.eager_calls;
  const int64_t planned_structure = structure;
  std::vector<at::Tensor> outputs = eager();
  if (structure != planned_structure) {
    difference_ = "what the model's outputs are made into";
  } else if (!with_plain_) {
    Left of_replay(*plan_), of_eager(*plan_);
    of_replay.add_outputs(replayed, "output");
    of_eager.add_outputs(outputs, "output");
    difference_ = difference(*plan_, of_replay, of_eager);
  }
  if (!difference_.empty()) {
    plan_->abandon();
    plan_.reset();
    owner_.plans_.give_up(*entry_, different());
    mode_ = Mode::kEager;
  }
  return outputs;
}

std::string Segments::Call::different() const {
  return str("a replay differs from {} in {}", with_plain_ ? "the plain graph" : "eager", difference_);
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
  Undo undo(owner_.program_.get(), plan_->changed(tensors_), plan_->generators(*owner_.program_));
  Left replayed(*plan_);
  std::vector<std::string> keys;
  {
    const StepResult result = plan_->resume(gradients);
    replayed.add(result);
    for (const Bound& bound : result.rebindings)
      if (bound.owner == Owner::kGradient) keys.push_back(bound.key);
  }
  undo.restore();
  if (with_plain_) {
    Left plain(*plan_);
    plain.add(plan_->resume_plain(gradients));
    difference_ = difference(*plan_, replayed, plain);
    undo.restore();
  }
  std::vector<at::Tensor> outputs = eager(gradients);
  if (!with_plain_) {
    Left left(*plan_);
    for (const std::string& key : keys) left.add_gradient(key, aside.gradient_of(key));
    left.add_outputs(outputs, "the gradient of input");
    difference_ = difference(*plan_, replayed, left);
  }
  aside.accumulate();
  plan_->verified = true;
  ++owner_.stats_.verifications;
  if (with_plain_) ++owner_.stats_.plain_verifications;
  if (PlanEntry* entry = owner_.plans_.entry_of(signature_); entry != nullptr && !difference_.empty())
    owner_.plans_.give_up(*entry, different());
  plan_.reset();
  release_free_memory();
  return outputs;
}

std::string Segments::report() const { return report_text(stats_, name_of(config_.mode)); }

std::string Segments::graph_text() const {
  const Plan* plan = plans_.latest();
  return plan == nullptr ? std::string() : to_text(plan->trace());
}

std::string Segments::schedule_text() const {
  const Plan* plan = plans_.latest();
  return plan == nullptr ? std::string() : to_text(plan->schedule());
}

}  // namespace stepc
