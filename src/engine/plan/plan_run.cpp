// Runs of a plan: real runs, runs for comparison, runs without effect, and runs in parts.
#include <algorithm>
#include <map>

#include <ATen/Functions.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/compare/sketch.h"
#include "engine/plan/plan.h"

namespace stepc {

// Supplies the numbers of the event's host code. Runs the host code unless its numbers are known functions.
std::string Plan::update(size_t event, Program& program, const std::vector<at::Tensor>& tensors, Undo* undo) {
  const auto begin = Clock::now();
  EventUpdate& update = *events_[event].update;
  const auto hand_on = [&](const HostSupply& number, bool is_new) {
    if (is_new)
      supply(number);
    else if (exact_ == nullptr)
      supplied_.push_back(number);
  };
  const auto before_host_code = [&] {
    if (undo != nullptr) undo->add_host_state(program);
  };
  const bool is_own = instead_ == nullptr && !show_written_;
  const int64_t known_before = update.known_updates();
  std::string difference = update.run(program, tensors, is_own, before_host_code, hand_on);
  known_updates_ += update.known_updates() - known_before;
  shadow_seconds_ += seconds_since(begin);
  return difference;
}

StepResult Plan::begin(const Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times) {
  RunInputs inputs;
  inputs.times = times;
  inputs.tells_autograd = false;
  inputs.tensors = tensors_at(current().inputs, tensors);
  inputs.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };
  if (trace().generators.size() > 1) inputs.generators = generators(program);
  ran_exact_ = false;
  return current().executor->run(std::move(inputs));
}

std::string Plan::run_event(size_t event, Program& program, const std::vector<at::Tensor>& tensors,
                            const std::vector<at::Tensor>& gradients, Undo* undo) {
  if (is_traced()) return {};  // its numbers are there
  if (events_[event].update != nullptr)
    return events_[event].in_place ? update(event, program, tensors, undo) : std::string();
  const std::vector<Rebinding>& finds = trace().events[event].gradients;
  for (size_t g = 0; g < gradients.size(); ++g) {
    const InputMap::Parameter* parameter = inputs_.find_parameter(finds[g].key);
    if (parameter != nullptr && gradients[g].defined()) set_gradient(tensors[parameter->place], gradients[g]);
  }
  program.run_event(trace().events[event].key);
  return {};
}

// The inputs that a run of the variant borrows. `gathered`: the tensors for its executor.
RunInputs Plan::inputs_of(const Variant& variant, RunInputs inputs, std::vector<at::Tensor> gathered) const {
  inputs.tensors = std::move(gathered);
  if (show_written_)
    inputs.show_written = [&](size_t input, const at::Tensor& left, int64_t first) {
      show_written_(variant.inputs[input], left, first);
    };
  return inputs;
}

Plan::Outcome Plan::run_plain(Program& program, const std::vector<at::Tensor>& tensors) {
  plain_ = variant_of(compile_plain(trace_, *options_.kernels, compile_options()));
  for (const HostSupply& one : supplied_) plain_->executor->supply(one.call, one.arg, one.number);
  Outcome outcome = run_instead(*plain_, program, tensors);
  if (!plain_->executor->is_paused()) plain_.reset();
  return outcome;
}
Plan::Outcome Plan::run_recorded(Program& program, const std::vector<at::Tensor>& tensors) {
  return run_instead(exact(), program, tensors);
}

Plan::Outcome Plan::run_instead(Variant& variant, Program& program, const std::vector<at::Tensor>& tensors) {
  const int64_t before = replays;
  instead_ = &variant;
  Outcome outcome;
  try {
    outcome = run(program, tensors);
  } catch (...) {
    instead_ = nullptr;
    plain_.reset();
    throw;
  }
  instead_ = nullptr;
  replays = before;
  return outcome;
}

StepResult Plan::resume_plain(const std::vector<at::Tensor>& incoming) {
  INTERNAL_CHECK(plain_ != nullptr, "a run of the plain graph goes on that was not paused");
  const std::unique_ptr<Variant> plain = std::move(plain_);
  std::map<size_t, Arg> reads;
  return past_reads(
      plain->executor->resume(incoming), [&] { return plain->executor->resume({}); }, reads);
}

bool Plan::is_paused() const {
  const auto is_paused = [](const auto& variant) { return variant != nullptr && variant->executor->is_paused(); };
  return is_paused(fast_) || is_paused(exact_);
}
StepResult Plan::resume(const std::vector<at::Tensor>& incoming) {
  const bool is_fast = fast_ != nullptr && fast_->executor->is_paused();
  return (is_fast ? *fast_ : exact()).executor->resume(incoming);
}
StepResult Plan::resume(const std::vector<at::Tensor>& incoming, std::map<size_t, Arg>& reads) {
  return past_reads(
      resume(incoming), [&] { return resume({}); }, reads);
}

StepResult Plan::past_reads(StepResult result, const std::function<StepResult()>& resume,
                            std::map<size_t, Arg>& reads) const {
  while (result.paused && trace().events[result.event].kind == HostEvent::Kind::kRead) {
    if (trace().events[result.event].own_calls.empty()) reads[result.event] = number_at(result);
    result = resume();
  }
  return result;
}
void Plan::abandon() {
  for (const auto* variant : {&fast_, &exact_})
    if (*variant != nullptr) (*variant)->executor->abandon();
  plain_.reset();
}

uint64_t Plan::make_plain(uint64_t most_bytes) {
  const PlainLimit limit{most_bytes, fused_};
  plain_ = variant_of(compile_plain(trace_, *options_.kernels, compile_options(), &limit));
  instead_ = plain_.get();
  return plain_->executor->schedule().peak_bytes();
}

Plan::DryOutcome Plan::run_dry(Program& program, const std::vector<at::Tensor>& tensors) {
  struct {
    Plan& plan;
    Undo undo;
    int64_t replays;
    void restore() {
      plan.show_written_ = {};
      plan.replays = replays;
      undo.restore();
    }
  } before{*this, Undo(&program, tensors_at(undo_, tensors), generators(program)), replays};
  before.undo.add_gradients(program.keys(), tensors);
  std::vector<Sketch> left(tensors.size());
  show_written_ = [&](size_t place, const at::Tensor& tensor, int64_t first) {
    left[place].show(tensor, first, tensors[place].numel());
  };
  DryOutcome dry;
  run_and_restore(before, [&] {
    static_cast<Outcome&>(dry) = run(program, tensors);
    for (size_t place : undo_)  // host code has written there
      if (place < tensors.size() && !left[place].is_defined()) left[place] = Sketch(tensors[place]);
  });
  for (const Sketch& sketch : left) dry.left.push_back(sketch.values());
  if (!dry.result) return dry;
  for (at::Tensor& output : dry.result->outputs) output = Sketch(output).values();
  for (Bound& bound : dry.result->rebindings) bound.tensor = Sketch(bound.tensor).values();
  return dry;
}

Arg number_at(const StepResult& pause) {
  if (pause.given.empty()) return pause.read;
  const at::Tensor& value = pause.given.front();
  if (value.scalar_type() == at::kBool) return value.item<bool>();
  if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
  return value.item<double>();
}

Plan::Outcome Plan::run(Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times) {
  Outcome outcome;
  RunInputs inputs;
  if (!is_traced()) supplied_.clear();
  inputs.times = times;
  outcome.change = inputs_.changed_source(tensors);
  std::vector<at::Tensor> of_current;
  if (outcome.change.empty()) {
    of_current = tensors_at(current().inputs, tensors);
    outcome.change = current().executor->why_not(of_current);
  }
  if (!outcome.change.empty()) return outcome;
  if (trace().generators.size() > 1) inputs.generators = generators(program);

  std::optional<Undo> undo;
  if (may_turn_back_) {
    const auto begin = Clock::now();
    undo.emplace(nullptr, tensors_at(undo_, tensors), inputs.generators);
    // Host code that runs later would allocate from the plan's memory.
    if (!is_traced() && std::ranges::any_of(events_, &EventRun::in_place)) undo->add_host_state(program);
    undo->add_gradients(program.keys(), tensors);
    if (!events_.empty()) shadow_seconds_ += seconds_since(begin);
  }
  Undo* const taken = undo ? &*undo : nullptr;
  const auto turn_back = [&] {
    if (undo) undo->restore();
  };
  for (size_t e = 0; e < events_.size() && outcome.change.empty() && !is_traced(); ++e)
    if (!events_[e].in_place) outcome.change = update(e, program, tensors, taken);
  if (outcome.change.empty() && is_virtual() && is_unfit())
    outcome.change = "the program's host code passes another integer than the one that the plan was made for";
  if (!outcome.change.empty()) {
    turn_back();
    return outcome;
  }
  // The step may use the memory of gradients that it drops unread.
  if (!is_traced())
    for (size_t place : inputs_.dropped()) set_gradient(tensors[place], {});
  bool is_host_code = false;
  inputs.on_event = [&](size_t event, const std::vector<at::Tensor>& found) {
    is_host_code = true;
    std::string why = run_event(event, program, tensors, found, taken);
    is_host_code = false;
    return why;
  };
  // After an error of a call: restores everything that the run changed, so that the step can run eagerly.
  const auto is_undone = [&] {
    turn_back();
    const Variant& variant = ran_exact_ || fast_ == nullptr ? exact() : *fast_;
    return may_turn_back_ && !is_host_code && instead_ == nullptr && !is_traced() &&
           variant.executor->failed_at() < variant.raises_before;
  };
  StepResult result;
  try {
    const auto begin = Clock::now();
    Variant& first = instead_ != nullptr ? *instead_ : current();
    if (&first != &current()) of_current = tensors_at(first.inputs, tensors);
    const bool is_fast = instead_ == nullptr && &first == fast_.get();
    if (instead_ == nullptr) ran_exact_ = fast_ != nullptr && !is_fast;
    result = first.executor->run(inputs_of(first, inputs, std::move(of_current)));
    if (is_fast && result.missed_guard && !is_virtual()) {
      // The recorded calls miss the same guard again and name it.
      ran_exact_ = true;
      result = exact().executor->run(inputs_of(exact(), inputs, tensors_at(exact().inputs, tensors)));
    }
    const auto resume = [&] { return (instead_ != nullptr ? *instead_ : current()).executor->resume({}); };
    result = past_reads(std::move(result), resume, outcome.reads);
    execute_seconds_ += seconds_since(begin);
  } catch (const c10::Error& error) {
    if (!is_undone()) throw;
    outcome.error = error.what_without_backtrace();
    return outcome;
  } catch (const UserError& error) {  // of a result of another size
    if (!is_undone()) throw;
    outcome.error = error.what();
    return outcome;
  } catch (...) {
    turn_back();
    throw;
  }
  if (result.missed_guard || !result.stopped.empty()) {
    turn_back();
    if (is_virtual() && result.missed_guard) {
      outcome.change = "a value of the batch is not what the plan was made for";
      return outcome;
    }
    outcome.missed_read = result.missed_number;
    outcome.read = result.read;
    outcome.change = std::move(result.stopped);
    return outcome;
  }
  ++replays;
  outcome.result = std::move(result);
  return outcome;
}

void Plan::apply(Program& program, const std::vector<at::Tensor>& tensors, const StepResult& result) const {
  // Restores gradients that were set only for an eager event.
  for (const HostEvent& event : trace().events) {
    if (event.kind != HostEvent::Kind::kEager) continue;
    for (const Rebinding& gradient : event.gradients) {
      const InputMap::Parameter* parameter = inputs_.find_parameter(gradient.key);
      if (parameter != nullptr) set_gradient(tensors[parameter->place], tensors[parameter->gradient]);
    }
  }
  for (const Bound& bound : result.rebindings) {
    if (bound.owner != Owner::kGradient) {
      program.rebind(bound.owner, bound.key, bound.tensor);
      continue;
    }
    const InputMap::Parameter* parameter = inputs_.find_parameter(bound.key);
    INTERNAL_CHECK(parameter != nullptr, "no parameter '{}'", bound.key);
    set_gradient(tensors[parameter->place], bound.tensor);
  }
}

}  // namespace stepc
