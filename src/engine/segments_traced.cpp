// The passes of a loop's model whose own code runs beside its plan, and the verification of all of its plans.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/program/stashed_gradients.h"
#include "engine/segments.h"
#include "engine/verify/pass_remains.h"
#include "engine/verify/rule_check.h"

namespace stepc {

namespace {
// Every tensor that any of the plans may change, once.
std::vector<at::Tensor> changed_by_any(const std::list<std::shared_ptr<Plan>>& plans,
                                       const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  std::set<const void*> met;
  for (const std::shared_ptr<Plan>& plan : plans)
    for (at::Tensor& tensor : plan->changed(tensors))
      if (tensor.defined() && met.insert(tensor.unsafeGetTensorImpl()).second) out.push_back(std::move(tensor));
  return out;
}
}  // namespace

// An eager pass whose calls are compared with those of the plans. The plan that it follows then runs from the same
// state, and its results are compared with the pass.
struct Segments::Call::TracedCheck {
  explicit TracedCheck(TracedPlans plans) : followed(std::move(plans)), first(&followed.begin()) {
    callbacks.other = [this] { return followed.other(); };
    callbacks.took_over = [this] { followed.took_over(); };
    first->begin(callbacks, /*computes=*/true);
  }
  ~TracedCheck() {
    followed.plan()->tracer().release();
    first->release();
  }
  TracedCheck(const TracedCheck&) = delete;
  TracedCheck& operator=(const TracedCheck&) = delete;

  Tracer& tracer() { return followed.plan()->tracer(); }

  TracedPlans followed;
  Tracer* first;
  Tracer::Callbacks callbacks;
  HostSupplies supplies;
};

void Segments::Call::Deleter::operator()(TracedCheck* check) const { delete check; }

// Returns nullopt if no plan fits.
std::optional<std::vector<at::Tensor>> Segments::Call::trace_forward(const ForwardFn& eager) {
  PlanCache& plans = owner_.plans_;
  const bool verifies = plans.must_verify(*entry_->plans.front()) || entry_->to_verify > 0;
  const auto may_follow = [this, verifies](const Plan& plan) {
    return verifies || owner_.plans_.may_follow(signature_, plan);
  };
  TracedPlans followed(entry_->plans, *owner_.program_, tensors_, may_follow);
  if (!followed.unfit().empty()) {
    plans.drop(*entry_, followed.plan(), followed.unfit());
    return std::nullopt;
  }
  const auto generators = followed.plan()->generators(*owner_.program_);
  if (verifies || std::ranges::any_of(input_.tensors, [](const at::Tensor& one) { return one.requires_grad(); }))
    before_.emplace(nullptr, changed_by_any(entry_->plans, followed.tensors()), generators);
  const StashedGradients stash(*owner_.program_);
  if (verifies) {
    entry_->to_verify = std::max(entry_->to_verify - 1, 0);
    check_.reset(new TracedCheck(std::move(followed)));
    return check_forward(eager);
  }
  traced_ = std::make_unique<TracedRun>(std::move(followed), *owner_.program_, WhatToRecord(), nullptr);
  std::vector<at::Tensor> outputs;
  mode_ = Mode::kTrace;
  traced_->run([&] { outputs = eager(); });
  traced_->pause(outputs, structure);
  if (!traced_->difference().empty())
    end_traced({});
  else
    plan_ = traced_->plan_pointer();
  return outputs;
}

// Ends the traced run. If it has left its plans, the rest of the call is eager.
TracedStep Segments::Call::end_traced(StepOutput output) {
  const std::unique_ptr<TracedRun> run = std::move(traced_);
  TracedStep traced = run->finish(std::move(output));
  plan_.reset();
  if (!traced.is_replay) mode_ = Mode::kEager;
  owner_.plans_.ended(owner_.plans_.entry_of(signature_), traced);
  if (traced.is_replay) note_pace();
  return traced;
}

std::vector<at::Tensor> Segments::Call::trace_backward(const std::vector<at::Tensor>& gradients,
                                                       const BackwardFn& eager) {
  StashedGradients stash(*owner_.program_);
  traced_->resume(gradients);
  StepOutput output;
  traced_->run([&] { output.tensors = eager(gradients); });
  TracedStep traced = end_traced(std::move(output));
  return joined(std::move(traced.output.tensors), stash.take());
}

// ---- a plan's proof

// Code that runs beside its plan runs once, even if tensors are restored.
Program* Segments::Call::with_host_state() const { return check_ == nullptr ? owner_.program_.get() : nullptr; }

// The pass runs eagerly, and its results count. Then the plan runs from the same state, and its results are compared.
std::vector<at::Tensor> Segments::Call::check_forward(const ForwardFn& eager) {
  std::vector<at::Tensor> outputs;
  mode_ = Mode::kVerify;
  ++owner_.stats_.eager_calls;
  if (check_ != nullptr) {
    check_->first->run([&] { outputs = eager(); });
    check_->first->pause(outputs, structure);
    plan_ = check_->followed.plan();
    entry_->put_first(plan_);
    if (left_while_checked()) return outputs;
    if (!owner_.plans_.must_verify(*plan_)) {
      drop();
      mode_ = Mode::kEager;
      return outputs;
    }
    tensors_ = plan_->with_host_data(check_->followed.tensors(), check_->tracer().host_data());
  } else {
    plan_->abandon();  // it has run to see whether it fits
    --plan_->replays;
    before_->restore();
    outputs = eager();
    if (structure != plan_->pause_structure()) difference_ = "what the model's outputs are made into";
    // Eager's autograd graph counts writes to tensors that it has saved. The plan's writes must not count.
    for (at::Tensor& tensor : tensors_)
      if (tensor.defined()) tensor = tensor.variable_data();
  }
  owner_.stats_.verification_bytes = std::max(owner_.stats_.verification_bytes, before_->bytes());
  if (difference_.empty()) difference_ = difference_of_forward(outputs);
  if (difference_.empty()) return outputs;
  drop();
  owner_.plans_.give_up(*entry_, different());
  mode_ = Mode::kEager;
  return outputs;
}

std::string Segments::Call::difference_of_forward(const std::vector<at::Tensor>& outputs) {
  const StashedGradients stash(*owner_.program_);
  const std::vector<at::Tensor> written = plan_->written_before_pause(tensors_);
  PassRemains of_eager(*plan_);
  of_eager.add_outputs(outputs, "output");
  of_eager.add_written(written);
  Undo after(with_host_state(), plan_->changed(tensors_), plan_->generators(*owner_.program_));
  before_->restore();
  if (check_ != nullptr) check_->supplies.pass_on(*plan_, /*has_begun=*/false);
  const auto compare = [&](const Plan::Outcome& outcome) {
    if (!outcome.result) return std::string("what it decides");
    PassRemains of_replay(*plan_);
    of_replay.add_outputs(outcome.result->given, "output");
    of_replay.add_written(written);
    with_plain_ = plan_->graph() != nullptr && !plan_->ran_exact() && (plan_->has_fp8() || draws(plan_->schedule()));
    if (!with_plain_) return difference(*plan_, of_replay, of_eager);
    before_->restore();
    return difference_from_plain(outcome.result->given);
  };
  std::string found;
  try {
    const RuleCheck rules(plan_->trace());
    const Plan::Outcome outcome = plan_->run(*owner_.program_, tensors_);
    wrong_rule_ = rules.wrong();
    found = compare(outcome);
  } catch (const std::exception& error) {
    found = str("an error: {}", error.what());
  }
  after.restore();
  return found;
}

// Whether the pass has left the plan, or has changed to another plan, which another call verifies.
bool Segments::Call::left_while_checked() {
  const Tracer& tracer = check_->tracer();
  const bool has_left = !tracer.departure().difference.empty();
  if (!has_left && check_->followed.plan() == plan_) return false;
  PlanEntry* const entry = owner_.plans_.entry_of(signature_);
  if (entry != nullptr && has_left)
    owner_.plans_.left(*entry, tracer.departure(), /*records_next=*/!tracer.departure().raised);
  else if (entry != nullptr)
    entry->put_first(check_->followed.plan());
  drop();
  mode_ = Mode::kEager;
  return true;
}

std::vector<at::Tensor> Segments::Call::check_backward(const std::vector<at::Tensor>& gradients,
                                                       const BackwardFn& eager) {
  StashedGradients stash(*owner_.program_);
  Undo before(with_host_state(), plan_->changed(tensors_), plan_->generators(*owner_.program_));
  std::vector<at::Tensor> outputs;
  if (check_ != nullptr) {
    check_->first->resume(gradients);
    check_->first->run([&] { outputs = eager(gradients); });
    check_->first->end();
    if (left_while_checked()) return joined(std::move(outputs), stash.take());
  } else {
    outputs = eager(gradients);
  }
  const std::vector<at::Tensor> written = plan_->written(tensors_);
  Undo after(with_host_state(), plan_->changed(tensors_), plan_->generators(*owner_.program_));
  PassRemains of_eager(*plan_), of_replay(*plan_);
  of_eager.add_written(written);
  before.restore();
  if (check_ != nullptr) check_->supplies.pass_on(*plan_, /*has_begun=*/true);
  std::map<size_t, Arg> reads;
  try {
    const RuleCheck rules(plan_->trace());
    const StepResult result = plan_->resume(gradients, reads);
    if (wrong_rule_.empty()) wrong_rule_ = rules.wrong();
    of_replay.add_written(written);
    of_replay.add(result);
    if (with_plain_) {
      before.restore();
      PassRemains of_plain(*plan_);
      const StepResult plain = plan_->resume_plain(gradients);
      of_plain.add_written(written);
      of_plain.add(plain);
      difference_ = difference(*plan_, of_replay, of_plain);
    } else {
      for (const Bound& bound : result.rebindings)
        if (bound.owner == Owner::kGradient) of_eager.add_gradient(bound.key, stash.gradient_of(bound.key));
      of_eager.add_outputs(outputs, "the gradient of input");
      difference_ = difference(*plan_, of_replay, of_eager);
    }
  } catch (const std::exception& error) {
    difference_ = str("an error: {}", error.what());
  }
  after.restore();
  check_.reset();
  return end_check(std::move(outputs), stash);
}

}  // namespace stepc
