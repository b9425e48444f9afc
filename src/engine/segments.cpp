#include "engine/segments.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <ATen/Functions.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/observer.h"
#include "engine/program/stashed_gradients.h"
#include "engine/verify/pass_remains.h"

namespace stepc {

namespace {

// The autograd engine must process a parameter's gradient once, not in stepc's backward pass and again in the loop's.
std::string why_eager(const Program& program, const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.is_leaf()) return "the program computes a parameter, which is no leaf of its autograd graph then";
    if (program.is_hooked(parameter)) return "a parameter has hooks on its gradient";
  }
  return {};
}

}  // namespace

Segments::Segments(std::unique_ptr<Program> program, Config config)
    : program_(std::move(program)), config_(std::move(config)), plans_(*program_, config_, stats_, /*is_loop=*/true) {
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
  if (const std::string kind = program_->unfit(); !kind.empty()) {
    run_eagerly(str("it has a {}", kind));
    return nullptr;
  }
  std::unique_ptr<Call> call(new Call(*this, std::move(input)));
  call->tensors_ = list_without_gradients(call->input_);
  for (size_t k = 0; k < program_->keys().size(); ++k) {
    if (!call->tensors_[k].defined() || !call->tensors_[k].requires_grad()) continue;
    const Owner owner = program_->keys()[k].owner;
    if (owner == Owner::kParameter) call->parameters_.push_back(call->tensors_[k]);
    if (is_traced() || (owner != Owner::kBuffer && owner != Owner::kCaptured))
      continue;  // recordings look at its graph
    run_eagerly(str("'{}' requires a gradient and is no parameter or argument", program_->keys()[k].key));
    return nullptr;
  }
  if (const std::string why = why_eager(*program_, call->parameters_); !why.empty()) {
    run_eagerly(why);
    return nullptr;
  }
  PlanEntry& entry = plans_.find(call->tensors_, call->input_);
  call->signature_ = entry.signature;
  const bool runs = call->find_entry() != nullptr && (!entry.plans.empty() || plans_.may_record(entry, call->input_));
  if (!runs) {
    ++stats_.eager_calls;
    return nullptr;
  }
  call->is_first_ = !std::exchange(entry.is_seen, true);
  if (call->is_first_)
    plans_.recorded(entry);
  else if (!entry.pace.is_long())  // what the door costs is no fifth of that
    call->compared_ = plans_.compared_with_eager(entry);
  entry.pace.run_eagerly(call->compared_);
  if (call->is_first_ || call->compared_ > 0) {
    ++stats_.eager_calls;
    call->tensors_.clear();  // it is kept as long as its graph
    call->parameters_.clear();
    call->input_.tensors.clear();
  }
  return call;
}

void Segments::run_eagerly(const std::string& why) {
  ++stats_.eager_calls;
  plans_.warn_once(str("this model runs eagerly: {}", why));
}

void Segments::leave(const std::string& signature, const std::string& why) {
  if (PlanEntry* entry = plans_.entry_of(signature); entry != nullptr && !entry->eager) plans_.give_up(*entry, why);
}

void Segments::took(const std::string& signature, bool as_it_is, double seconds) {
  PlanEntry* const entry = plans_.entry_of(signature);
  if (entry == nullptr || entry->eager) return;
  if (as_it_is)
    entry->pace.ran_eagerly(seconds);
  else if (const auto slower = entry->pace.replayed(seconds, Pace::kMostSlowerInLoops))
    plans_.give_up(*entry, str("the loop takes {:.2f} times as long with its replays: its kernels are small", *slower));
}

// Gradients do not affect the signature of a loop's model.
std::vector<at::Tensor> Segments::list_without_gradients(const StepInput& input) {
  const StashedGradients stash(*program_);
  return list_tensors(*program_, input);
}

std::vector<at::Tensor> Segments::buffers() {
  std::vector<at::Tensor> tensors = list_without_gradients({});
  for (size_t k = 0; k < tensors.size(); ++k) {
    const Owner owner = program_->keys()[k].owner;
    if (owner != Owner::kBuffer && owner != Owner::kCaptured) tensors[k].reset();
  }
  return tensors;
}

std::vector<at::Generator> Segments::generators() const {
  std::vector<at::Generator> out;
  for (const auto& [key, generator] : program_->all_generators()) out.push_back(generator);
  return out;
}

Segments::Call::~Call() {
  const bool waits = recorder_ != nullptr && mode_ == Mode::kRecord;
  drop();
  PlanEntry* const entry = waits ? owner_.plans_.entry_of(signature_) : nullptr;
  if (entry == nullptr) return;
  owner_.plans_.recorded(*entry);
  entry->open.set_obstacle("no backward pass came");
}

// Drops everything that waits for a backward pass.
void Segments::Call::drop() {
  traced_.reset();
  check_.reset();
  if (plan_ != nullptr && plan_->is_paused()) plan_->abandon();
  plan_.reset();
  if (recorder_ == nullptr) return;
  recorder_.reset();
  --owner_.open_recordings_;
}

// Returns nullptr if this call runs eagerly: because its signature does, or because another call is between its passes.
PlanEntry* Segments::Call::find_entry() const {
  PlanEntry* entry = owner_.plans_.entry_of(signature_);
  if (entry == nullptr || entry->eager || owner_.open_recordings_ != 0) return nullptr;
  const auto is_paused = [](const std::shared_ptr<Plan>& plan) { return plan->is_paused(); };
  return std::ranges::any_of(entry->plans, is_paused) ? nullptr : entry;
}

std::vector<at::Tensor> Segments::Call::forward(const ForwardFn& eager) {
  std::optional<std::vector<at::Tensor>> outputs;
  entry_ = find_entry();  // since begin() another thread may have had its turn
  const bool has_plan = entry_ != nullptr && !entry_->plans.empty() && entry_->to_record == 0;
  if (has_plan && owner_.is_traced()) {
    outputs = trace_forward(eager);
  } else if (has_plan) {
    const bool looks = owner_.plans_.must_check(*entry_, tensors_);
    outputs = replay();
    if (outputs && mode_ == Mode::kVerify)
      outputs = check_forward(eager);
    else if (outputs && looks)
      look_at_forward(eager);
  }
  if (entry_ == nullptr) {
    mode_ = Mode::kEager;
    ++owner_.stats_.eager_calls;
    outputs = eager();
  } else if (!outputs) {
    outputs = record(eager);
  }
  note_versions(*outputs);
  return std::move(*outputs);
}

void Segments::Call::note_versions(const std::vector<at::Tensor>& outputs) {
  const auto note = [](std::vector<Version>& into, const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      Version& version = into.emplace_back();
      if (!tensor.defined() || tensor.is_inference()) continue;
      version.counter = tensor.unsafeGetTensorImpl()->version_counter();
      version.then = version.counter.current_version();
    }
  };
  note(read_, parameters_);
  note(read_, input_.tensors);
  note(given_, outputs);
}

bool Segments::Call::is_changed(size_t output) const { return !given_.at(output).is_same(); }

std::vector<at::Tensor> Segments::Call::record(const ForwardFn& eager) {
  tensors_.clear();
  if (std::ranges::any_of(input_.tensors, [](const at::Tensor& tensor) { return tensor.requires_grad(); }))
    before_.emplace(owner_.program_.get(), owner_.buffers(), std::vector<at::Generator>());
  std::vector<at::Tensor> outputs = run_recorded(eager);
  mode_ = Mode::kRecord;
  return outputs;
}

std::vector<at::Tensor> Segments::Call::run_recorded(const ForwardFn& eager) {
  program_ = std::make_unique<RecordedStep>(*owner_.program_, input_, owner_.config_.op_rules);
  const StashedGradients stash(*owner_.program_);
  auto recorder = std::make_unique<Recorder>(*program_);
  if (owner_.is_traced()) recorder->note_made();
  std::vector<at::Tensor> outputs;
  recorder->run([&] { outputs = eager(); });
  recorder->pause(outputs, structure);
  recorder_ = std::move(recorder);
  ++owner_.open_recordings_;
  return outputs;
}

// The outputs of a replayed forward pass; nullopt if no plan fits.
std::optional<std::vector<at::Tensor>> Segments::Call::replay() {
  using Outputs = std::optional<std::vector<at::Tensor>>;
  const auto run = [&](const std::shared_ptr<Plan>& plan, Plan::Outcome& outcome) -> Outputs {
    const bool verifies = owner_.plans_.must_verify(*plan);
    before_.emplace(owner_.program_.get(), verifies ? plan->changed(tensors_) : plan->written_before_pause(tensors_),
                    plan->generators(*owner_.program_));
    const StashedGradients stash(*owner_.program_);
    outcome = plan->run(*owner_.program_, tensors_);
    if (!outcome.result) return std::nullopt;
    INTERNAL_CHECK(outcome.result->paused, "a plan of a model has no pause");
    plan_ = plan;
    structure = plan->pause_structure();
    mode_ = verifies ? Mode::kVerify : Mode::kReplay;
    return std::move(outcome.result->given);
  };
  return owner_.plans_.first_that_fits(*entry_, input_, run);
}

void Segments::Call::run_as_before(const std::function<void()>& part) {
  INTERNAL_CHECK(before_.has_value(), "nothing is known of the program before the forward pass");
  Undo now(owner_.program_.get(), owner_.buffers(), owner_.generators());
  before_->restore();
  run_and_restore(now, part);
}

// Compares the forward pass with the plain graph, which stays paused. A run that fails proves nothing.
std::string Segments::Call::difference_from_plain(const std::vector<at::Tensor>& replayed) {
  try {
    const Plan::Outcome plain = plan_->run_plain(*owner_.program_, tensors_);
    if (!plain.result) return "the plain graph, which decides otherwise";
    PassRemains of_replay(*plan_), of_plain(*plan_);
    of_replay.add_outputs(replayed, "output");
    of_plain.add_outputs(plain.result->given, "output");
    return difference(*plan_, of_replay, of_plain);
  } catch (const std::exception& error) {
    return str("an error of the plain graph: {}", error.what());
  }
}

// The passes also run eagerly, only to record their calls. The replay's results and draws count.
void Segments::Call::look_at_forward(const ForwardFn& eager) {
  const int64_t planned_structure = structure;
  Undo after(owner_.program_.get(), plan_->written_before_pause(tensors_), plan_->generators(*owner_.program_));
  before_->restore();
  run_recorded(eager);
  looked_at_.emplace(nullptr, std::vector<at::Tensor>(), plan_->generators(*owner_.program_));
  after.restore();
  structure = planned_structure;
  mode_ = Mode::kLook;
  entry_->next_check *= 2;  // although its backward pass may never come
}

void Segments::Call::look_at_backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager) {
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  --owner_.open_recordings_;
  Recording recording;
  {
    const StashedGradients stash(*owner_.program_);
    Undo undo(owner_.program_.get(), plan_->changed(tensors_), plan_->generators(*owner_.program_));
    looked_at_->restore();  // a Graph's draws leave generators in other states
    recorder->resume(gradients);
    StepOutput output;
    recorder->run([&] { output.tensors = eager(gradients); });
    recording = recorder->finish(std::move(output));
    undo.restore();
  }
  recording.output = {};
  if (PlanEntry* entry = owner_.plans_.entry_of(signature_); entry != nullptr && !entry->plans.empty())
    owner_.plans_.check(*entry, recording, input_);
  release_free_memory();
}

std::string Segments::Call::different() const {
  return str("a replay differs from {} in {}", with_plain_ ? "the plain graph" : "eager", difference_);
}

std::string Segments::Call::why_not_backward(const std::vector<at::Tensor>& gradients) const {
  const bool has_plan = mode_ != Mode::kRecord && mode_ != Mode::kEager;
  const auto is_same = [](const Version& version) { return version.is_same(); };
  if (!std::ranges::all_of(read_, is_same)) {
    // After an eager forward pass, autograd itself knows whether the change matters.
    USER_CHECK(
        mode_ != Mode::kReplay && mode_ != Mode::kTrace,
        "a parameter or an argument of an accelerated model has been modified by an inplace operation between its "
        "forward and its backward pass: clone it, or call the model again");
    return "a parameter or an argument is changed in place between the forward and the backward pass";
  }
  const bool is_replay = has_plan && mode_ != Mode::kVerify;
  for (size_t output = 0; is_replay && output < given_.size(); ++output)
    if (!given_[output].is_same() && plan_->reads_after_pause(output))
      return "an output is changed in place that the backward pass reads";
  const bool is_beside = traced_ != nullptr || check_ != nullptr;  // its calls say so
  return has_plan && !is_beside ? plan_->why_not_resume(gradients) : std::string();
}

void Segments::Call::leave(const std::string& why) {
  if (traced_ != nullptr) traced_->leave(why, /*records=*/false);
  drop();
  mode_ = Mode::kEager;
  ++owner_.stats_.eager_calls;
  owner_.leave(signature_, why);
}

void Segments::Call::leave_recording(const std::string& why, bool is_of_python) {
  const bool looks = mode_ == Mode::kLook;
  drop();
  mode_ = Mode::kEager;
  Recording recording;
  (is_of_python ? recording.effects : recording.obstacles).push_back(why);
  recording.is_left = !is_of_python;
  PlanEntry* const entry = owner_.plans_.entry_of(signature_);
  if (entry == nullptr) return;
  entry->is_seen = !is_first_;  // it is looked at again, as long as there is something to see
  if (looks)
    owner_.plans_.check(*entry, recording, input_);
  else
    owner_.plans_.keep(*entry, recording, input_);
}

std::vector<at::Tensor> Segments::Call::joined(std::vector<at::Tensor> of_inputs,
                                               std::vector<at::Tensor> of_parameters) const {
  INTERNAL_CHECK(of_parameters.size() == parameters_.size(), "{} gradients of {} parameters", of_parameters.size(),
                 parameters_.size());
  std::ranges::move(of_parameters, std::back_inserter(of_inputs));
  return of_inputs;
}

std::vector<at::Tensor> Segments::Call::eager_backward(const std::vector<at::Tensor>& gradients,
                                                       const BackwardFn& eager) {
  StashedGradients stash(*owner_.program_);
  std::vector<at::Tensor> found = eager(gradients);
  return joined(std::move(found), stash.take());
}

std::vector<at::Tensor> Segments::Call::backward(const std::vector<at::Tensor>& gradients, const BackwardFn& eager) {
  switch (mode_) {
    case Mode::kRecord:
      return finish_recording(gradients, eager);
    case Mode::kVerify:
      return check_backward(gradients, eager);
    case Mode::kTrace:
      return trace_backward(gradients, eager);
    case Mode::kLook:
      look_at_backward(gradients, eager);
      return replay_backward(gradients);
    case Mode::kReplay:
      return replay_backward(gradients);
    case Mode::kEager:
      break;
  }
  return eager_backward(gradients, eager);
}

std::vector<at::Tensor> Segments::Call::replay_backward(const std::vector<at::Tensor>& gradients) {
  StashedGradients stash(*owner_.program_);
  const std::shared_ptr<Plan> plan = std::move(plan_);  // another call may run it from here on
  StepResult result = plan->resume(gradients);
  owner_.plans_.replayed(owner_.plans_.entry_of(signature_), *plan, result);
  if (mode_ != Mode::kLook) note_pace();
  return joined(std::move(result.outputs), stash.take(result.rebindings));
}

// Counts a replay whose time is not measured.
void Segments::Call::note_pace() {
  PlanEntry* const entry = owner_.plans_.entry_of(signature_);
  if (entry != nullptr && !entry->pace.times_replay()) entry->pace.replayed(0);
}

bool Segments::Call::is_timed() const {
  const PlanEntry* entry =
      mode_ == Mode::kReplay || mode_ == Mode::kTrace ? owner_.plans_.entry_of(signature_) : nullptr;
  return entry != nullptr && entry->pace.times_replay();
}

std::vector<at::Tensor> Segments::Call::finish_recording(const std::vector<at::Tensor>& gradients,
                                                         const BackwardFn& eager) {
  StashedGradients stash(*owner_.program_);
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  --owner_.open_recordings_;
  recorder->resume(gradients);
  StepOutput output;
  recorder->run([&] { output.tensors = eager(gradients); });
  Recording recording = recorder->finish(std::move(output));
  std::vector<at::Tensor> found = stash.take();
  if (PlanEntry* entry = owner_.plans_.entry_of(signature_)) owner_.plans_.keep(*entry, recording, input_);
  release_free_memory();
  return joined(std::move(recording.output.tensors), std::move(found));
}

std::vector<at::Tensor> Segments::Call::end_check(std::vector<at::Tensor> outputs, StashedGradients& stash) {
  plan_->set_verified(wrong_rule_.empty());
  ++owner_.stats_.verifications;
  if (with_plain_) ++owner_.stats_.plain_verifications;
  if (PlanEntry* entry = owner_.plans_.entry_of(signature_); entry != nullptr && !difference_.empty())
    owner_.plans_.give_up(*entry, different());
  plan_.reset();
  release_free_memory();
  std::vector<at::Tensor> found = joined(std::move(outputs), stash.take());
  USER_CHECK(wrong_rule_.empty(), "{}", wrong_rule_);
  return found;
}

std::string Segments::report() const { return report_text(stats_, name_of(config_.mode)); }

}  // namespace stepc
