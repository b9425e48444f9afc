#include "engine/verify/verify_replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "engine/compare/calls_in_float64.h"
#include "engine/verify/remains.h"
#include "engine/verify/rule_check.h"
#include "ir/agree.h"

namespace stepc {

namespace {

std::string numbers_difference(const std::vector<Arg>& replayed, const std::vector<Arg>& eager) {
  if (replayed.size() != eager.size()) return "the count of returned numbers";
  for (size_t i = 0; i < eager.size(); ++i)
    if (!same_number(replayed[i], eager[i]) && replayed[i] != eager[i]) return str("returned number {}", i);
  return {};
}

// Compares a replay with other runs of the same step from the same state, and undoes each of them.
class Comparison {
 public:
  Comparison(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors)
      : plan_(plan),
        program_(program),
        tensors_(tensors),
        remains_(plan, program, tensors),
        undo_(&program, plan.changed(tensors), plan.generators(program)) {
    undo_.add_gradients(program.keys(), tensors);
  }

  void undo() { undo_.restore(); }
  [[nodiscard]] uint64_t bytes() const { return undo_.bytes(); }

  // Runs the step in another way, passes the results to `look`, and undoes the run. A run that fails proves nothing.
  template <class Run, class Look>
  std::string of_run(std::string_view what, const Run& run, const Look& look) {
    std::string difference;
    try {
      Plan::Outcome outcome = run();
      difference = outcome.result ? look(*outcome.result) : str("{}, which decides otherwise", what);
    } catch (const std::exception& error) {
      difference = str("an error of {}: {}", what, first_line(error.what()));
    }
    undo();
    return difference;
  }

  std::string from_plain(const std::vector<Named>& replayed) {
    return of_run(
        "the plain graph", [&] { return plan_.run_plain(program_, tensors_); },
        [&](const StepResult& plain) {
          return difference_in_values(replayed, remains_.left_by(plain, tensors_, false), plan_.graph()->narrowest);
        });
  }

  // The bits of the recorded calls' results, to compare eager with.
  std::string bits_of_recorded(std::vector<Named>& bits) {
    return of_run(
        "the recorded calls", [&] { return plan_.run_recorded(program_, tensors_); },
        [&](const StepResult& recorded) {
          bits = remains_.left_by(recorded, tensors_, true);
          return std::string();
        });
  }
  // `errs`: the call that differs from float64, if there is one.
  std::string from_float64(const std::vector<Named>& replayed, std::string& errs) {
    const auto run = [&] {
      const CallsInFloat64 calls;
      Plan::Outcome outcome = plan_.run_recorded(program_, tensors_);
      const auto worst = std::ranges::max_element(calls.replaced(), {}, &CallsInFloat64::Replaced::error);
      if (worst != calls.replaced().end())
        errs = str("{} is {:.1e} away from float64 on the same operands", worst->op, worst->error);
      return outcome;
    };
    return of_run("the recorded calls", run, [&](const StepResult& right) {
      return difference_in_values(replayed, remains_.left_by(right, tensors_, false), plan_.graph()->narrowest);
    });
  }

 private:
  Plan& plan_;
  Program& program_;
  const std::vector<at::Tensor>& tensors_;
  Remains remains_;
  Undo undo_;
};

// The results of an eager step; `tensors`, the program's from before the step, become those after it. A tensor that the
// step puts into a slot in place of another one is compared, and so are those that it keeps elsewhere, `kept`, by key.
std::vector<Named> left_by_eager(const Plan& plan, const Remains& remains, const Program& program,
                                 std::vector<at::Tensor>& tensors, const StepOutput& output, bool by_bits,
                                 const std::map<std::string, at::Tensor>& kept = {}) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> now;
  program.append_tensors(now);
  std::set<std::pair<Owner, std::string>> rebinds;
  for (const Rebinding& rebinding : plan.trace().rebindings) rebinds.emplace(rebinding.owner, rebinding.key);
  for (size_t k = 0; k < now.size(); ++k) {
    const OwnedKey& key = program.keys()[k];
    const bool is_rebound = key.owner != Owner::kGradient && rebinds.contains({key.owner, key.key});
    if (key.owner != Owner::kCaptured && !is_rebound) tensors[k] = now[k];
  }
  const auto rebound = [&](const Rebinding& rebinding) {
    if (rebinding.owner == Owner::kHost) return kept.at(rebinding.key);
    for (size_t k = 0; k < now.size(); ++k)
      if (program.keys()[k].owner == rebinding.owner && program.keys()[k].key == rebinding.key) return now[k];
    return at::Tensor();
  };
  return remains.of(output, tensors, rebound, by_bits);
}

// Runs the step as the user wrote it and returns its results; `tensors` become the program's tensors after the step.
std::vector<Named> run_eagerly(const Plan& plan, const Remains& remains, Program& program,
                               std::vector<at::Tensor>& tensors, const std::function<StepOutput()>& step, bool by_bits,
                               StepOutput& output) {
  std::vector<at::Tensor> kept = std::move(tensors);
  tensors.clear();
  for (size_t k = 0; k < program.keys().size(); ++k)
    if (program.keys()[k].owner == Owner::kGradient) kept[k].reset();  // no references to gradients while eager runs
  output = step();
  std::vector<Named> left = left_by_eager(plan, remains, program, kept, output, by_bits);
  tensors = std::move(kept);
  return left;
}

// Copies the values, because the next run writes to the same tensors.
uint64_t keep_values(std::vector<Named>& all) {
  uint64_t bytes = 0;
  for (Named& one : all) {
    if (!one.values.defined()) continue;
    one.values = one.values.clone();
    bytes += one.values.nbytes();
  }
  return bytes;
}

// The first place at which the plan has read another bool or integer than the step, whose numbers are `read`, by call.
std::string other_choice(const Trace& trace, const std::map<size_t, Arg>& by_plan, const std::map<size_t, Arg>& read) {
  for (const auto& [event, number] : by_plan) {
    const CallId call(trace.events[event].begin.index() - 1);
    const auto found = read.find(call.index());
    if (found != read.end() && are_other_choices(number, found->second)) return place_of_read(trace, call);
  }
  return {};
}

// An eager step, to compare a plan with that runs from the same state.
struct EagerStep {
  std::vector<at::Tensor> inputs;    // of the plan
  std::vector<Named> left;           // by eager
  std::map<size_t, Arg> read;        // by call
  std::vector<HostSupply> supplied;  // by the host code
};

// Runs `plan` and the plain Graph from the state before the step, and compares them with eager's results and with the
// numbers that eager read.
void compare_traced(Plan& plan, Program& program, const EagerStep& eager, bool eager_fits, Verification& verification) {
  const std::vector<at::Tensor>& inputs = eager.inputs;
  verification.compared = true;
  for (const HostSupply& number : eager.supplied) plan.supply(number);
  const Remains remains(plan, program, inputs);
  const bool by_bits = plan.has_fixed_bits();
  std::string& difference = verification.difference;
  Comparison comparison(plan, program, inputs);
  std::vector<Named> replayed;
  difference = comparison.of_run(
      "the plan",
      [&] {
        const RuleCheck rules(plan.trace());
        Plan::Outcome outcome = plan.run(program, inputs);
        verification.wrong_rule = rules.wrong();
        verification.decided_otherwise = other_choice(plan.trace(), outcome.reads, eager.read);
        return outcome;
      },
      [&](const StepResult& run) {
        replayed = remains.left_by(run, inputs, by_bits);
        verification.snapshot_bytes += keep_values(replayed);
        return std::string();
      });
  if (difference.empty() && plan.graph() != nullptr && !plan.ran_exact()) {
    verification.with_plain = true;
    difference = comparison.from_plain(replayed);
    if (!difference.empty()) verification.from = "the plain graph";
  }
  verification.with_eager = difference.empty() && (!verification.with_plain || (eager_fits && !draws(plan.schedule())));
  if (!verification.with_eager) return;
  if (by_bits) {
    difference = difference_in_bits(replayed, eager.left);
    return;
  }
  difference = difference_in_values(replayed, eager.left, plan.narrowest());
  if (difference.empty() || !verification.with_plain) return;
  const bool is_right = comparison.from_float64(replayed, verification.eager_errs).empty();
  if (is_right && !verification.eager_errs.empty()) difference.clear();
}

}  // namespace

Verification verify_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program,
                           std::vector<at::Tensor>& tensors, const std::function<StepOutput()>& step,
                           RecordedProgram& recorded, const std::function<bool(const Plan&)>& is_due,
                           const std::function<bool(const Plan&)>& eager_fits) {
  Verification verification;
  verification.from = "eager";
  TracedPlans followed(plans, program, std::exchange(tensors, {}), [](const Plan&) { return true; });
  verification.plan = followed.plan();
  verification.outcome.change = followed.unfit();
  if (!verification.outcome.change.empty()) return verification;
  verification.outcome.result.emplace();
  verification.ran_eagerly = true;
  // It is not known yet which plan the step will follow.
  std::vector<std::pair<Plan*, Undo>> before;
  for (const std::shared_ptr<Plan>& plan : plans)
    if (is_due(*plan))
      before.emplace_back(plan.get(), Undo(nullptr, plan->changed(followed.tensors()), plan->generators(program)));
  for (const auto& [plan, undo] : before) verification.snapshot_bytes += undo.bytes();
  Tracer& first = followed.begin();
  Recorder recorder(recorded, followed.before());
  const Tracer::Callbacks callbacks = {
      {}, {}, {}, [&] { return followed.other(); }, [&] { followed.took_over(); }, [&] { return &recorder; }};
  first.begin(callbacks, /*computes=*/true);
  first.run([&] { verification.output = step(); });
  first.end();
  Plan& plan = *followed.plan();
  verification.plan = followed.plan();
  verification.departure = plan.tracer().departure();
  EagerStep eager{{}, {}, plan.tracer().numbers(), plan.tracer().supplied()};
  const bool has_left = !verification.departure.difference.empty();
  std::map<std::string, at::Tensor> kept;
  if (!has_left) {
    eager.inputs = plan.with_host_data(followed.tensors(), plan.tracer().host_data());
    for (const Rebinding& one : plan.trace().rebindings)
      if (one.owner == Owner::kHost) kept[one.key] = plan.tracer().held(one.value);
  }
  plan.tracer().release();
  first.release();
  if (has_left && !verification.departure.raised)
    verification.recording = recorder.finish(std::exchange(verification.output, {}));
  recorder.stop();
  const auto state = std::ranges::find(before, &plan, &std::pair<Plan*, Undo>::first);
  if (has_left || state == before.end()) return verification;

  std::vector<at::Tensor> now = eager.inputs;
  eager.left = left_by_eager(plan, Remains(plan, program, eager.inputs), program, now, verification.output,
                             /*by_bits=*/plan.has_fixed_bits(), kept);
  kept.clear();
  verification.snapshot_bytes += keep_values(eager.left);
  Undo after(nullptr, plan.changed(eager.inputs), plan.generators(program));
  state->second.restore();
  run_and_restore(after, [&] { compare_traced(plan, program, eager, eager_fits(plan), verification); });
  return verification;
}

Verification verify_recorded(Plan& plan, Program& program, const BeforeStep& before, const Trace& recorded,
                             StepOutput output, bool eager_fits) {
  Verification verification;
  verification.from = "eager";
  verification.output = std::move(output);
  const auto is_hosts = [](const auto& one) { return one.owner == Owner::kHost; };
  if (std::ranges::any_of(plan.trace().externals, is_hosts)) return verification;
  if (std::ranges::any_of(plan.trace().rebindings, is_hosts)) return verification;
  EagerStep eager{before.tensors, {}, {}, numbers_supplied(plan.trace(), recorded)};
  const std::vector<at::Tensor>& inputs = eager.inputs;
  if (before.undo == nullptr || !plan.why_not(inputs).empty()) return verification;
  std::vector<at::Tensor> now = inputs;
  eager.left = left_by_eager(plan, Remains(plan, program, inputs), program, now, verification.output,
                             /*by_bits=*/plan.has_fixed_bits());
  for (const HostRead& one : recorded.reads) eager.read[one.call.index()] = number_read(recorded, one);
  verification.snapshot_bytes = before.undo->bytes() + keep_values(eager.left);
  const std::vector<at::Tensor> by_host = plan.written_by_host(inputs);  // which ran once
  std::vector<at::Tensor> written;
  for (const at::Tensor& tensor : by_host) written.push_back(tensor.clone());
  std::vector<at::Tensor> all;
  std::ranges::copy_if(before.tensors, std::back_inserter(all), &at::Tensor::defined);
  Undo after(nullptr, std::move(all), plan.generators(program));
  before.undo->restore();
  {
    const c10::AutoGradMode no_grad(false);
    for (size_t t = 0; t < by_host.size(); ++t) by_host[t].copy_(written[t]);
  }
  verification.outcome.result.emplace();
  run_and_restore(after, [&] { compare_traced(plan, program, eager, eager_fits, verification); });
  return verification;
}

Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, bool eager_fits) {
  Verification verification;
  verification.from = "eager";
  std::string& difference = verification.difference;
  const Remains remains(plan, program, tensors);
  const bool by_bits = plan.has_fixed_bits();
  const bool is_disputed = !std::exchange(plan.dispute, {}).empty();
  std::vector<Named> replayed;
  std::vector<Named> recorded_bits;  // of a disputed plan
  std::vector<Arg> numbers;
  bool with_recorded = false;
  {
    Comparison comparison(plan, program, tensors);
    verification.snapshot_bytes = comparison.bytes();
    try {
      const RuleCheck rules(plan.trace());
      verification.outcome = plan.run(program, tensors);
      verification.wrong_rule = rules.wrong();
    } catch (const std::exception& error) {
      // A kernel may need something that a replay lacks. If eager throws too, eager's error is reported.
      verification.outcome.result.emplace();
      difference = str("an error: {}", first_line(error.what()));
    } catch (...) {
      comparison.undo();
      throw;
    }
    if (!verification.outcome.result.has_value()) return verification;
    if (!difference.empty()) {
      comparison.undo();
      tensors.clear();
      verification.ran_eagerly = true;
      verification.output = step();
      return verification;
    }
    StepResult& result = *verification.outcome.result;
    replayed = remains.left_by(result, tensors, by_bits);
    verification.snapshot_bytes += keep_values(replayed);
    numbers = std::move(result.numbers);
    result.outputs.clear();
    result.rebindings.clear();
    comparison.undo();
    if (plan.graph() != nullptr && !plan.ran_exact()) {
      verification.with_plain = true;
      difference = comparison.from_plain(replayed);
      if (!difference.empty()) verification.from = "the plain graph";
      verification.with_eager = difference.empty() && eager_fits && !draws(plan.schedule());
    } else {
      verification.with_eager = true;
    }
    if (is_disputed && verification.with_eager && verification.with_plain) {
      with_recorded = true;
      verification.from = "the recorded calls in float64";
      difference = comparison.bits_of_recorded(recorded_bits);
      if (difference.empty()) difference = comparison.from_float64(replayed, verification.eager_errs);
    }
    if (difference.empty() && !eager_fits && verification.with_plain) {
      verification.outcome = plan.run(program, tensors);
      if (!verification.outcome.result.has_value()) return verification;
      plan.apply(program, tensors, *verification.outcome.result);
      verification.output = {std::move(verification.outcome.result->outputs), std::move(numbers)};
      return verification;
    }
  }

  verification.ran_eagerly = true;
  const std::vector<Named> eager =
      run_eagerly(plan, remains, program, tensors, step, by_bits || with_recorded, verification.output);
  if (difference.empty() && eager.size() != (by_bits || !with_recorded ? replayed.size() : recorded_bits.size())) {
    verification.from = "eager";
    difference = "which tensors it leaves";
  }
  if (!difference.empty() || !verification.with_eager) return verification;
  if (with_recorded) {
    verification.from = "eager";
    difference = difference_in_bits(recorded_bits, eager);
    // Float64 found no error in eager, so the difference has another reason.
    if (difference.empty() && verification.eager_errs.empty()) difference = "what float64 does not explain";
    if (!difference.empty()) verification.eager_errs.clear();
  } else if (by_bits) {
    difference = difference_in_bits(replayed, eager);
    if (difference.empty()) difference = numbers_difference(numbers, verification.output.numbers);
  } else {
    difference = difference_in_values(replayed, eager, plan.narrowest());
    // The recorded calls leave nothing to decide.
    if (verification.with_plain) plan.dispute = std::exchange(difference, {});
  }
  return verification;
}

}  // namespace stepc
