#include "engine/plan/virtual_plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "capture/virtual/virtual_kernels.h"
#include "engine/record/open_recordings.h"
#include "engine/record/recorded_step.h"
#include "engine/record/rehearsal.h"
#include "plan/eager_peak.h"

namespace stepc {

namespace {

// The first recording makes the optimizers' state; each further one may find the owner of a tensor that was not listed.
constexpr int kMaxRecordings = 10;

// Restores the program as it was before the step. Virtual kernels write no values, except those that VirtualKernels
// itself keeps.
class VirtualBefore {
 public:
  VirtualBefore(Program& program, const StepInput& input, VirtualKernels& kernels)
      : kernels_(kernels), slots_(program, input) {
    const std::vector<at::Tensor>& tensors = slots_.tensors();
    for (size_t t = 0; t < tensors.size(); ++t)
      tell(t < slots_.keys().size() ? slots_.keys()[t].owner : Owner::kBatch, tensors[t]);
  }

  void restore(const std::shared_ptr<void>& host_state = nullptr) {
    kernels_.restore();
    slots_.restore(host_state);
  }

 private:
  // Optimizers count steps in tensors of one element, which their host code may read.
  void tell(Owner owner, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (owner == Owner::kBatch)
      kernels_.mark_known(tensor);
    else if (owner == Owner::kParameter || owner == Owner::kGradient ||
             (owner == Owner::kOptimizerState && tensor.dim() != 0))
      kernels_.mark_unknown(tensor);
  }

  VirtualKernels& kernels_;
  SavedSlots slots_;
};

VirtualRun record_once(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                       const OpRules& rules, VirtualKernels& kernels) {
  RecordedStep recorded(program, input, rules);
  kernels.begin_recording();
  Recorder recorder(recorded, &kernels);
  VirtualRun run;
  StepOutput output;
  try {
    recorder.run([&] {
      output = step();
      own_results(output, list_tensors(program, input));
    });
  } catch (...) {
    run.thrown = std::current_exception();
    output = {};
  }
  try {
    run.recording = recorder.finish(std::move(output));
  } catch (...) {
    if (!run.thrown) throw;
  }
  return run;
}

// Ends the recording of a step that raised an error: tensors that it had made have no owner.
void end_here(Recording& recording) {
  recording.trace.outputs.clear();
  recording.trace.numbers.clear();
  recording.trace.rebindings.clear();
  recording.unowned.clear();  // the error itself holds what the step had
}

// Records until two recordings agree.
void record_until_agreed(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                         const OpRules& rules, VirtualKernels& kernels, bool is_path,
                         const std::function<void()>& begin_anew, VirtualPlan& plan) {
  OpenRecordings open;
  Refusal refusal;
  while (plan.recordings < kMaxRecordings) {
    if (begin_anew && plan.recordings > 0) begin_anew();
    VirtualRun run = record_once(program, input, step, rules, kernels);
    Recording& recording = run.recording;
    if (run.thrown) {
      if (!is_path || recording.trace.reads.empty()) std::rethrow_exception(run.thrown);
      end_here(recording);
    }
    ++plan.recordings;
    recording.output = {};
    if (!begin_anew)  // else the code runs at every call, and does them
      std::ranges::move(recording.effects, std::back_inserter(recording.obstacles));
    // The first recording's tensors may lie where the program no longer looks. The tensors that they replaced are kept
    // and put back.
    const bool is_kept_by_us = plan.recordings == 1 && std::erase_if(recording.unowned, [](const Unowned& one) {
                                                         return one.made.valid();
                                                       }) != 0;
    if (explain_unowned(program, recording) || is_kept_by_us) {
      open.clear();
      continue;
    }
    refuse_unowned(recording);
    refusal = refusal_of(recording);
    if (refusal.is_obstacle) {
      plan.trace = std::move(recording.trace);
    } else {
      if (std::optional<Trace> agreed = open.agree_with_one(recording.trace, is_path, refusal)) {
        plan.trace = std::move(*agreed);
        return;
      }
      open.keep(std::move(recording.trace));
    }
    if (open.meets_again(refusal)) break;
  }
  plan.obstacle =
      refusal.reason.empty() ? "every recording finds other tensors that outlive the step" : std::move(refusal.reason);
  if (!open.traces().empty()) plan.trace = open.traces().back();
}

void count_state(const Program& program, VirtualPlan& plan) {
  std::vector<at::Tensor> tensors;
  program.append_tensors(tensors);
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t k = 0; k < keys.size(); ++k) {
    if (!tensors[k].defined()) continue;
    const uint64_t bytes = tensors[k].nbytes();
    if (keys[k].owner == Owner::kParameter) {
      plan.parameters += static_cast<uint64_t>(tensors[k].numel());
      plan.parameter_bytes += bytes;
    } else if (keys[k].owner == Owner::kOptimizerState) {
      plan.optimizer_bytes += bytes;
    } else if (keys[k].owner != Owner::kGradient) {
      plan.buffer_bytes += bytes;
    }
  }
}

VirtualPlan plan_with(VirtualKernels& kernels, bool is_path, bool is_from_same_state, Program& program,
                      const StepInput& input, const std::function<StepOutput()>& step, const OpRules& rules) {
  const auto begin = Clock::now();
  program.refresh();
  VirtualPlan plan;
  plan.is_path = is_path;
  VirtualBefore before(program, input, kernels);
  const auto begin_anew = is_from_same_state ? std::function<void()>([&] { before.restore(); }) : nullptr;
  run_and_restore(before, [&] {
    record_until_agreed(program, input, step, rules, kernels, is_path, begin_anew, plan);
    program.refresh();
    count_state(program, plan);
  });
  plan.calls = plan.trace.calls.size();
  plan.step_bytes_lower_bound = eager_peak_bytes(plan.trace);
  plan.seconds = seconds_since(begin);
  return plan;
}

bool is_alike(const Trace& one, const Trace& other, const Arg& a, const Arg& b) {
  if (a.index() != b.index()) return false;
  const auto is_value_alike = [&](ValueId x, ValueId y) {
    return x == y && (!x.valid() || one.values[x.index()] == other.values[y.index()]);
  };
  if (const auto* value = std::get_if<ValueId>(&a)) return is_value_alike(*value, std::get<ValueId>(b));
  if (const auto* values = std::get_if<std::vector<ValueId>>(&a))
    return std::ranges::equal(*values, std::get<std::vector<ValueId>>(b), is_value_alike);
  const bool is_of_host = std::holds_alternative<double>(a) || std::holds_alternative<std::vector<double>>(a) ||
                          std::holds_alternative<WrappedNumber>(a);
  return is_of_host || a == b;
}

}  // namespace

VirtualPlan plan_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                           const OpRules& rules, VirtualKernels::Reads reads) {
  VirtualKernels kernels(reads);
  return plan_with(kernels, false, false, program, input, step, rules);
}

VirtualPlan plan_path_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                                const OpRules& rules, std::vector<Arg> numbers, bool is_from_same_state) {
  VirtualKernels kernels(std::move(numbers));
  return plan_with(kernels, true, is_from_same_state, program, input, step, rules);
}

VirtualRun run_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                         const OpRules& rules, std::vector<Arg> numbers,
                         const std::function<bool(const VirtualRun&)>& keeps) {
  program.refresh();
  VirtualKernels kernels(std::move(numbers));
  const std::shared_ptr<void> host_state = keeps ? program.save_host_state() : nullptr;
  VirtualBefore before(program, input, kernels);
  VirtualRun run;
  bool is_kept = false;
  try {
    run = record_once(program, input, step, rules, kernels);
    is_kept = keeps && keeps(run);
  } catch (...) {
    before.restore();
    throw;
  }
  before.restore(is_kept ? host_state : nullptr);
  return run;
}

size_t calls_alike(const Trace& one, const Trace& other) {
  size_t alike = 0;
  for (; alike < std::min(one.calls.size(), other.calls.size()); ++alike) {
    const Call &a = one.calls[alike], &b = other.calls[alike];
    const auto are_alike = [&](const Arg& x, const Arg& y) { return is_alike(one, other, x, y); };
    const bool has_values = !a.results.empty() && (std::holds_alternative<ValueId>(a.results[0]) ||
                                                   std::holds_alternative<std::vector<ValueId>>(a.results[0]));
    if (a.op != b.op || a.writes != b.writes || !std::ranges::equal(a.args, b.args, are_alike)) break;
    if (has_values && !std::ranges::equal(a.results, b.results, are_alike)) break;
  }
  return alike;
}

std::string VirtualPlan::report() const {
  std::string out = str("stepc plan: {} ATen calls, planned from {} recordings without executing them, {:.2f} s\n",
                        calls, recordings, seconds);
  out += str("  {}\n", obstacle.empty() ? "can be replayed" : str("runs eagerly: {}", obstacle));
  out += str("  parameters          {:>12}   {}\n", human_count(static_cast<double>(parameters)),
             human_bytes(parameter_bytes));
  out += str("  buffers             {:>12}\n", human_bytes(buffer_bytes));
  out += str("  optimizer state     {:>12}\n", human_bytes(optimizer_bytes));
  out += str("  the step's own      {:>12}   at least, without workspaces\n", human_bytes(step_bytes_lower_bound));
  out += str("  together            {:>12}   at least\n", human_bytes(state_bytes() + step_bytes_lower_bound));
  return out;
}

}  // namespace stepc
