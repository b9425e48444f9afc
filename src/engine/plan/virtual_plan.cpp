#include "engine/plan/virtual_plan.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "capture/virtual/virtual_kernels.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_cache.h"
#include "engine/plan/rehearsal.h"
#include "ir/agree.h"
#include "plan/eager_peak.h"

namespace stepc {

namespace {

// The first makes the optimizers' state, the next may each find the owner of a tensor that nobody listed.
constexpr int kMaxRecordings = 10;

// The program before the step, and the way back: virtual kernels write to no values, but for those that VirtualKernels
// itself keeps.
class Before {
 public:
  Before(Program& program, const StepInput& input, VirtualKernels& kernels)
      : kernels_(kernels), slots_(program, input) {
    const std::vector<at::Tensor>& tensors = slots_.tensors();
    for (size_t t = 0; t < tensors.size(); ++t)
      tell(t < slots_.keys().size() ? slots_.keys()[t].owner : Owner::kBatch, tensors[t]);
  }

  void restore() {
    kernels_.restore();
    slots_.restore();
  }

 private:
  // Optimizers count their steps in tensors of one element, which their host code may read.
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

// Records until two recordings agree; as engine/plan/plan_cache.h does, so that the trace is the one that it would
// keep.
void record_until_agreed(Program& program, const StepInput& input, const std::function<StepOutput()>& user_step,
                         const OpRules& rules, VirtualKernels& kernels, VirtualPlan& plan) {
  const auto step = [&] {
    StepOutput output = user_step();
    own_results(output, list_tensors(program, input));
    return output;
  };
  std::vector<Trace> open;
  std::string reason;
  std::string last_obstacle;
  while (plan.recordings < kMaxRecordings) {
    RecordedStep recorded(program, input, rules);
    Recording recording = record(recorded, step, &kernels);
    ++plan.recordings;
    recording.output = {};
    std::ranges::move(recording.effects, std::back_inserter(recording.obstacles));
    if (explain_unowned(program, recording)) {
      open.clear();
      continue;
    }
    refuse_unowned(recording);
    bool obstacle = !recording.obstacles.empty();
    reason = obstacle ? recording.obstacles.front() : std::string();
    if (!obstacle) {
      for (size_t o = open.size(); o-- > 0;) {
        Agreement agreement = agree(open[o], recording.trace);
        if (agreement.difference.empty() && agreement.obstacle.empty()) {
          plan.trace = std::move(agreement.trace);
          return;
        }
        obstacle = agreement.difference.empty();
        reason = obstacle ? agreement.obstacle : agreement.difference;
      }
    }
    // The same obstacle twice in a row will be there the next time too; another branch may not.
    const bool again = obstacle && reason == last_obstacle;
    last_obstacle = obstacle ? reason : std::string();
    if (recording.obstacles.empty())
      open.push_back(std::move(recording.trace));
    else
      plan.trace = std::move(recording.trace);
    if (again) break;
  }
  plan.obstacle = reason.empty() ? "every recording finds other tensors that outlive the step" : reason;
  if (!open.empty()) plan.trace = std::move(open.back());
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

}  // namespace

VirtualPlan plan_virtually(Program& program, const StepInput& input, const std::function<StepOutput()>& step,
                           const OpRules& rules, VirtualKernels::Reads reads) {
  const auto begin = Clock::now();
  program.refresh();
  VirtualPlan plan;
  VirtualKernels kernels(reads);
  Before before(program, input, kernels);
  try {
    record_until_agreed(program, input, step, rules, kernels, plan);
    program.refresh();
    count_state(program, plan);
  } catch (...) {
    before.restore();
    throw;
  }
  before.restore();
  plan.calls = plan.trace.calls.size();
  plan.step_bytes_lower_bound = eager_peak_bytes(plan.trace);
  plan.seconds = seconds_since(begin);
  return plan;
}

std::string VirtualPlan::report() const {
  std::string out = str("stepc plan: {} ATen calls, planned from {} recordings without executing them, {:.2f} s\n",
                        calls, recordings, seconds);
  out += str("  {}\n", obstacle.empty() ? "can be replayed" : str("runs eagerly: {}", obstacle));
  out += str("  parameters          {:>12}   {}\n", human_count(static_cast<double>(parameters)),
             human_bytes(parameter_bytes));
  out += str("  buffers             {:>12}\n", human_bytes(buffer_bytes));
  out += str("  optimizer state     {:>12}\n", human_bytes(optimizer_bytes));
  out += str("  the step's own      {:>12}   at least, workspaces apart\n", human_bytes(step_bytes_lower_bound));
  out += str("  together            {:>12}   at least\n", human_bytes(state_bytes() + step_bytes_lower_bound));
  return out;
}

}  // namespace stepc
