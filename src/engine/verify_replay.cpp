#include "engine/verify_replay.h"

#include <algorithm>
#include <optional>
#include <span>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "engine/calls_in_float64.h"
#include "engine/remains.h"
#include "ir/agree.h"

namespace stepc {

namespace {

std::string numbers_difference(const std::vector<Arg>& replayed, const std::vector<Arg>& eager) {
  if (replayed.size() != eager.size()) return "the count of returned numbers";
  for (size_t i = 0; i < eager.size(); ++i)
    if (!same_number(replayed[i], eager[i]) && replayed[i] != eager[i]) return str("returned number {}", i);
  return {};
}

// A replay that is compared with other runs of the same step from the same state, each of them undone.
class Comparison {
 public:
  Comparison(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors)
      : plan_(plan),
        program_(program),
        tensors_(tensors),
        remains_(plan, program, tensors),
        undo_(&program, plan.changed(tensors), plan.generators(program)),
        gradients_(program.keys(), tensors) {}

  void undo() {
    gradients_.restore();
    undo_.restore();
  }
  [[nodiscard]] uint64_t bytes() const { return undo_.bytes(); }

  // What a run of another kind leaves, as `look` takes it; then it is undone. A run that cannot be had is no proof.
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
          return difference_in_values(replayed, remains_.left_by(plain, tensors_, false), plan_.graph()->narrow);
        });
  }

  // The bits that the recorded calls come to, for eager to be held to.
  std::string bits_of_recorded(std::vector<Named>& bits) {
    return of_run(
        "the recorded calls", [&] { return plan_.run_recorded(program_, tensors_); },
        [&](const StepResult& recorded) {
          bits = remains_.left_by(recorded, tensors_, true);
          return std::string();
        });
  }
  // `errs`: which of the calls float64 has found wrong, if any.
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
      return difference_in_values(replayed, remains_.left_by(right, tensors_, false), plan_.graph()->narrow);
    });
  }

 private:
  Plan& plan_;
  Program& program_;
  const std::vector<at::Tensor>& tensors_;
  Remains remains_;
  Undo undo_;
  SavedGradients gradients_;
};

// The step as the user wrote it, and what it leaves; `tensors` are then the program's as it left them.
std::vector<Named> run_eagerly(const Remains& remains, Program& program, std::vector<at::Tensor>& tensors,
                               const std::function<StepOutput()>& step, bool by_bits, StepOutput& output) {
  std::vector<at::Tensor> kept = std::move(tensors);
  tensors.clear();
  for (size_t k = 0; k < program.keys().size(); ++k)
    if (program.keys()[k].owner == Owner::kGradient) kept[k].reset();  // no references to gradients while eager runs
  output = step();
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> now;
  program.append_tensors(now);
  for (size_t k = 0; k < now.size(); ++k)
    if (program.keys()[k].owner != Owner::kCaptured) kept[k] = now[k];
  const auto rebound = [&](const Rebinding& rebinding) {
    for (size_t k = 0; k < now.size(); ++k)
      if (program.keys()[k].owner == rebinding.owner && program.keys()[k].key == rebinding.key) return now[k];
    return at::Tensor();
  };
  std::vector<Named> left = remains.of(output, kept, rebound, by_bits);
  tensors = std::move(kept);
  return left;
}

// A traced step runs once: eagerly, which tells what its host code supplies. Then the plan runs from the same state, and
// what eager left is put back.
Verification verify_traced(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, bool eager_fits) {
  Verification verification;
  verification.from = "eager";
  verification.outcome.change = plan.why_not(tensors);
  if (!verification.outcome.change.empty()) return verification;
  const Remains remains(plan, program, tensors);
  const bool by_bits = plan.graph() == nullptr;
  Tracer& tracer = plan.tracer();
  std::vector<at::Tensor> inputs = plan.inputs_among(tensors);
  Undo before(nullptr, plan.changed(tensors), plan.generators(program));
  verification.snapshot_bytes = before.bytes();
  verification.outcome.result.emplace();
  verification.ran_eagerly = true;
  tracer.bind(plan.externals(tensors), plan.generators(program));
  const auto traced = [&] {
    StepOutput output;
    tracer.run_computing([&] { output = step(); });
    return output;
  };
  std::vector<Named> eager = run_eagerly(remains, program, tensors, traced, by_bits, verification.output);
  const std::vector<HostSupply> supplied = tracer.supplied();
  verification.departure = tracer.difference();
  tracer.release();
  if (!verification.departure.empty()) return verification;
  for (Named& one : eager) {
    if (!one.values.defined()) continue;
    one.values = one.values.clone();
    verification.snapshot_bytes += one.values.nbytes();
  }
  Undo after(nullptr, plan.changed(inputs), plan.generators(program));
  before.restore();
  for (const HostSupply& number : supplied) plan.supply(number);
  std::string& difference = verification.difference;
  {
    Comparison comparison(plan, program, inputs);
    std::vector<Named> replayed;
    difference = comparison.of_run(
        "the plan", [&] { return plan.run(program, inputs); },
        [&](const StepResult& run) {
          replayed = remains.left_by(run, inputs, by_bits);
          for (Named& one : replayed)
            if (one.values.defined()) one.values = one.values.clone();
          return std::string();
        });
    if (difference.empty() && !by_bits && !plan.ran_exact()) {
      verification.with_plain = true;
      difference = comparison.from_plain(replayed);
      if (!difference.empty()) verification.from = "the plain graph";
    }
    verification.with_eager =
        difference.empty() && (!verification.with_plain || (eager_fits && !draws(plan.schedule())));
    if (verification.with_eager && by_bits) {
      difference = difference_in_bits(replayed, eager);
    } else if (verification.with_eager) {
      difference = difference_in_values(replayed, eager, plan.graph()->narrow);
      if (!difference.empty() && comparison.from_float64(replayed, verification.eager_errs).empty() &&
          !verification.eager_errs.empty())
        difference.clear();
    }
  }
  after.restore();
  return verification;
}

}  // namespace

Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, bool eager_fits) {
  if (plan.is_traced()) return verify_traced(plan, program, tensors, step, eager_fits);
  Verification verification;
  verification.from = "eager";
  std::string& difference = verification.difference;
  const Remains remains(plan, program, tensors);
  const bool by_bits = plan.graph() == nullptr;
  const bool is_disputed = !std::exchange(plan.dispute, {}).empty();
  std::vector<Named> replayed;
  std::vector<Named> recorded_bits;  // of a disputed plan
  std::vector<Arg> numbers;
  bool with_recorded = false;
  {
    Comparison comparison(plan, program, tensors);
    verification.snapshot_bytes = comparison.bytes();
    try {
      verification.outcome = plan.run(program, tensors);
    } catch (const std::exception& error) {
      // A kernel may want what a replay does not have. Where eager throws too, it says so itself.
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
    for (Named& one : replayed) {
      if (!one.values.defined()) continue;
      one.values = one.values.clone();
      verification.snapshot_bytes += one.values.nbytes();
    }
    numbers = std::move(result.numbers);
    result.outputs.clear();
    result.rebindings.clear();
    comparison.undo();
    if (!by_bits && !plan.ran_exact()) {
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
      run_eagerly(remains, program, tensors, step, by_bits || with_recorded, verification.output);
  INTERNAL_CHECK_EQ(eager.size(), by_bits || !with_recorded ? replayed.size() : recorded_bits.size(),
                    "eager and replay leave different sets of tensors");
  if (!difference.empty() || !verification.with_eager) return verification;
  if (with_recorded) {
    verification.from = "eager";
    difference = difference_in_bits(recorded_bits, eager);
    // Nothing of eager's was wrong: then what differed before has another reason.
    if (difference.empty() && verification.eager_errs.empty()) difference = "what float64 does not explain";
    if (!difference.empty()) verification.eager_errs.clear();
  } else if (by_bits) {
    difference = difference_in_bits(replayed, eager);
    if (difference.empty()) difference = numbers_difference(numbers, verification.output.numbers);
  } else {
    difference = difference_in_values(replayed, eager, plan.graph()->narrow);
    // Of what ran as recorded calls nothing is left to decide.
    if (!plan.ran_exact()) plan.dispute = std::exchange(difference, {});
  }
  return verification;
}

}  // namespace stepc
