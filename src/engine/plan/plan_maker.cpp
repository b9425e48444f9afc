#include "engine/plan/plan_maker.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "cost/features.h"
#include "cost/profile.h"
#include "engine/plan/plan_stats.h"
#include "engine/plan/virtual_plan.h"
#include "engine/record/recorded_step.h"
#include "runtime/arena.h"

namespace stepc {

std::shared_ptr<Plan> PlanMaker::make(PlanForm form, Trace recorded, Trace agreed,
                                      const std::vector<at::Tensor>& tensors) {
  auto plan = std::make_shared<Plan>(std::move(recorded), std::move(agreed), program_, tensors, options_for(form));
  announce(*plan, tensors);
  return plan;
}

void PlanMaker::announce(Plan& plan, const std::vector<at::Tensor>& tensors) {
  if (config_.verify.kind == Verify::Kind::kOff) plan.trust();
  count_plan(stats_, program_, plan, tensors);
  log().info("captured {} calls, planned {} for {} instructions in {:.2f} s", stats_.nodes,
             human_bytes(stats_.planned_peak_bytes), stats_.instructions, plan.planning_seconds());
  if (plan.weighed()) {
    stats_.auto_budget = to_text(*plan.weighed(), plan.known());
    log().info("memory budget auto: {}", stats_.auto_budget);
  }
  warn_of(plan);
  for (const HostEvent& event : plan.trace().events)
    if (event.kind == HostEvent::Kind::kEager)
      log().info(
          "'{}' computes on the host with values that depend on data: its update runs eagerly, the rest is "
          "replayed",
          event.key);
}

PlanOptions PlanMaker::options_for(PlanForm form) {
  KernelSources* const from = config_.mode == Mode::kFast && !form.is_exact ? kernels() : nullptr;
  return {at::get_num_threads(), config_.device_graphs,      from,        config_.memory_budget, Capture::kRun,
          form.is_traced,        target_to_weigh_with(from), config_.fp8, config_.device_kernels};
}

// Measured rates influence plans that run only with a memory budget "auto".
KnownTarget PlanMaker::target_to_weigh_with(const KernelSources* kernels) const {
  if (config_.memory_budget.kind != MemoryBudget::Kind::kAuto || kernels == nullptr) return {};
  return known_target(config_, features_of(kernels->micro_kernels), at::get_num_threads());
}

std::shared_ptr<Plan> PlanMaker::make_virtually(PlanForm form, const StepInput& input,
                                                const std::function<StepOutput()>& step) {
  USER_CHECK(config_.mode == Mode::kFast, "mode \"{}\" replays recorded calls, and only a run shows their memory",
             name_of(config_.mode));
  PlanOptions options = options_for(form);
  options.capture = Capture::kVirtual;
  USER_CHECK(options.kernels != nullptr, "there are no kernels for its Graph");
  VirtualPlan captured = plan_virtually(program_, input, step, config_.op_rules);
  stats_.capture_seconds += captured.seconds;
  stats_.eager_peak_bytes = captured.step_bytes_lower_bound;
  USER_CHECK(captured.obstacle.empty(), "{}", captured.obstacle);
  const std::vector<at::Tensor> tensors = list_tensors(program_, input);
  std::set<std::pair<Owner, std::string>> there;
  for (size_t k = 0; k < program_.keys().size(); ++k)
    if (program_.keys()[k].owner == Owner::kGradient || tensors[k].defined())
      there.emplace(program_.keys()[k].owner, program_.keys()[k].key);
  for (const External& external : captured.trace.externals) {
    const bool is_slot = external.owner != Owner::kConstant && external.owner != Owner::kBatch;
    USER_CHECK(!is_slot || there.contains({external.owner, external.key}), "the step itself makes the {} '{}'",
               name_of(external.owner), external.key);
  }
  for (const HostEvent& event : captured.trace.events)
    USER_CHECK(event.kind == HostEvent::Kind::kShadow, "'{}' computes on the host with values that depend on data",
               event.key);
  Trace recorded = captured.trace;
  auto plan = std::make_shared<Plan>(std::move(recorded), std::move(captured.trace), program_, tensors, options);
  plan->eager_peak_bytes = captured.step_bytes_lower_bound;
  announce(*plan, tensors);
  return plan;
}

// Returns nullptr, with a warning, on a machine without kernels.
KernelSources* PlanMaker::kernels() {
  if (kernels_ == nullptr) kernels_ = config_.kernels;
  if (kernels_ != nullptr || !kernel_problem_.empty()) return kernels_.get();
  try {
    kernels_ = std::make_shared<KernelSources>(config_.kernel_directory);
  } catch (const std::exception& error) {
    kernel_problem_ = error.what();
    log().warn("no kernels can be generated, the recorded calls are replayed: {}", kernel_problem_);
  }
  return kernels_.get();
}

// Logs the features that the plan lacks; its results are right without them.
void PlanMaker::warn_of(const Plan& plan) {
  if (!plan.why_exact().empty())
    log().log(plan.has_fault() ? spdlog::level::warn : spdlog::level::info, "the plan replays the recorded calls: {}",
              plan.why_exact());
  if (!plan.unordered().empty())
    log().info("replays are compared with eager within rounding: {} gives different bits in every run on {}",
               plan.unordered(), plan.trace().device);
  if (config_.fp8 && !told_of_fp8_) {
    told_of_fp8_ = true;
    if (!plan.has_fp8())
      log().warn("precision is \"fp8\", and recorded calls multiply as the step does");
    else if (!has_fp8(plan.schedule().features))
      log().info("this {} has no float8: its numbers are emulated, at the cost of f32 matmuls",
                 plan.schedule().device.empty() ? "CPU" : "card");
  }
  if (const Schedule& schedule = plan.schedule(); !schedule.device.empty() && !told_of_room_) {
    const std::string trouble =
        trouble_with_room(at::Device(schedule.device), schedule.arena_bytes - schedule.device_begin);
    told_of_room_ = !trouble.empty();
    if (told_of_room_) log().warn("{}; the step runs as it is", trouble);
  }
  if (plan.graph() == nullptr) return;
  const std::vector<std::string>& one_by_one = plan.graph()->one_by_one;
  if (!one_by_one.empty())
    log().warn("{} of the step's kernels could not be generated and run as ATen calls; the first: {}",
               one_by_one.size(), one_by_one.front());
  warn_of_kernel_directory();
  const MemoryBudget& budget = config_.memory_budget;
  const Schedule& schedule = plan.schedule();
  if (budget.kind == MemoryBudget::Kind::kBytes && schedule.needed_bytes() > budget.bytes)
    log().warn("the memory budget is {}, and the step needs {}, {} of them the program's own: no plan needs less",
               human_bytes(budget.bytes), human_bytes(schedule.needed_bytes()), human_bytes(schedule.input_bytes()));
}

// Warns once: the problem is the same for every kernel.
void PlanMaker::warn_of_kernel_directory() {
  const CompilerStatistics statistics = kernels_->compiler.statistics();
  std::string problem;
  if (!statistics.cache_problem.empty())
    problem = str("generated kernels are not kept for the next run: {}", statistics.cache_problem);
  else if (statistics.damaged != 0)
    problem = "some kept kernels were damaged and have been made again";
  if (problem.empty() || !kernel_problem_.empty()) return;
  kernel_problem_ = problem;
  log().warn("{}", problem);
}

}  // namespace stepc
