#include "engine/plan/compile.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "codegen/gpu_mapping.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "plan/plan_trace.h"
#include "runtime/device_programs.h"
#include "runtime/measure_workspace.h"

namespace stepc {

namespace {
// Measuring a call needs memory for its operands, at a time when no plan is known to fit the machine.
constexpr uint64_t kMostMeasured = uint64_t{1} << 30;
uint64_t bytes_to_measure(const UnknownWorkspace& call) {
  uint64_t bytes = 0;
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const TensorLayout& operand : *operands) bytes += bytes_of(operand);
  return bytes;
}

// The peak of the step's tensors without workspaces.
uint64_t peak_of_tensors(const MemoryReport& report) {
  uint64_t peak = 0;
  for (const auto& live : report.timeline) {
    uint64_t bytes = 0;
    for (size_t c = static_cast<size_t>(ByteClass::kGradients); c < kByteClasses; ++c)
      if (c != static_cast<size_t>(ByteClass::kWorkspaces)) bytes += live[c];
    peak = std::max(peak, bytes);
  }
  return peak;
}

// The facts of the device that the step runs on; nullopt on the CPU.
std::optional<DeviceFacts> facts_of(const GraphScheduleOptions& options, KernelSources& kernels) {
  const std::string device = device_of(options);
  if (device.empty()) return std::nullopt;
  return usable_device_facts(device, kernels);
}

// Schedules the graph. Measures each unknown workspace once in the life of `kernels`; takes the rule's bound if the
// call's operands alone exceed the limit for measuring. With `enough_bytes` the caller only needs a plan within that
// size: then nothing is measured if the plan with the rule's bounds already fits, or if its tensors alone do not.
GraphSchedule schedule_measured(const Graph& graph, KernelSources& kernels, GraphScheduleOptions options,
                                std::optional<uint64_t> enough_bytes = {}) {
  const std::string device = device_of(options);
  if (const auto facts = facts_of(options, kernels))
    options.lower = [shape = shape_of(*facts)](const Graph& group) { return lower_for_gpu(group, shape); };
  const std::lock_guard lock(kernels.measuring);
  WorkspaceTable& known = device.empty() ? kernels.workspaces : kernels.workspaces_on_device;
  options.workspaces = known;
  GraphSchedule plan = schedule_graph(graph, options);
  if (plan.unknown.empty()) return plan;
  const uint64_t most_bytes = enough_bytes.value_or(UINT64_MAX);
  if (enough_bytes && plan.schedule.peak_bytes() <= most_bytes) return plan;
  if (peak_of_tensors(plan.memory) > most_bytes) return plan;
  for (const UnknownWorkspace& call : plan.unknown)
    if (bytes_to_measure(call) <= std::min(most_bytes, kMostMeasured))
      known.emplace(call.key, measure_workspace(call, options.threads, device).value_or(workspace_by_rule(call)));
  options.workspaces = known;
  return schedule_graph(graph, options);
}

void refuse_groups(PlannedGraph& planned, const RefusedPrograms& refused) {
  const Schedule& schedule = planned.plan.schedule;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    const auto refuse = [&](uint32_t program) {
      const auto found = refused.why.find(program);
      if (found != refused.why.end()) planned.options.refused.emplace(planned.plan.group_of[i], found->second);
    };
    refuse(schedule.instructions[i].program);
    if (const auto& loss = schedule.instructions[i].loss) {
      refuse(loss->program);
      refuse(loss->last);
    }
    if (!schedule.instructions[i].matmul) continue;
    for (uint32_t epilogue : schedule.instructions[i].matmul->epilogue_programs) refuse(epilogue);
  }
}

GraphScheduleOptions plain_options(const Trace& trace, const CompileOptions& options, KernelSources& kernels) {
  GraphScheduleOptions plain;
  plain.threads = options.target.threads;
  plain.trace = options.function == nullptr ? &trace : nullptr;
  plain.memory = options.memory;
  plain.is_plain = true;
  if (const auto facts = facts_of(plain, kernels)) {
    plain.features.sm = facts->compute_capability;
    plain.threads = 1;
  }
  return plain;
}

// Whether both graphs of one rank have the same parts of the program's tensors and of the step's results.
bool have_same_parts(const Graph& one, const Graph& other) {
  if (one.mesh.axes.empty()) return true;
  const auto is_input_of_other = [&](const GraphInput& input) {
    return !is_of_program(input.kind) || std::ranges::any_of(other.inputs, [&](const GraphInput& same) {
      return same.kind == input.kind && same.key == input.key && same.part == input.part;
    });
  };
  return std::ranges::all_of(one.inputs, is_input_of_other) &&
         std::ranges::equal(one.outputs, other.outputs, {}, &GraphOutput::part, &GraphOutput::part);
}

// A Graph on a device has no host memory, so a call that stays opaque must not need any.
Graph functionalised_for_device(const Trace& trace) {
  CallGraph captured = functionalise_calls(trace);
  for (size_t n = 0; n < captured.graph.nodes.size(); ++n) {
    if (!captured.graph.nodes[n].aten || !captured.calls[n].valid()) continue;
    const Call& call = trace.calls[captured.calls[n].index()];
    const auto check = [&](ValueId id, bool is_made) {
      const Value& value = trace.values[id.index()];
      const bool is_on_host = trace.storages[value.storage.index()].space == Space::kHost;
      USER_CHECK(!is_on_host || (!is_made && value.sizes.empty()), "{} works in the host's memory", call.op);
    };
    for_each_value(call.args, [&](ValueId id) { check(id, false); });
    for_each_value(call.results, [&](ValueId id) { check(id, true); });
  }
  return std::move(captured.graph);
}

Graph graph_to_plan(const Trace& trace, const CompileOptions& options) {
  return options.function != nullptr ? *options.function : captured_graph(trace);
}

Compiled bound(Compiled compiled, KernelSources& kernels, const std::shared_ptr<Ranks>& ranks) {
  verify(compiled.plan.schedule);
  compiled.executor = std::make_unique<Executor>(std::move(compiled.plan.schedule), &kernels, ranks);
  compiled.plan.schedule = {};
  return compiled;
}
}  // namespace

Graph captured_graph(const Trace& trace) {
  return trace.device.empty() ? functionalise(trace) : functionalised_for_device(trace);
}

Target target_on(const std::string& device, Target target, KernelSources& kernels) {
  if (device.empty()) return target;
  target.features = {.sm = usable_device_facts(device, kernels).compute_capability};
  target.threads = 1;
  return target;
}

Schedule plan_exact(const Trace& trace, int threads) {
  verify(trace);
  return plan_trace(trace, threads);
}

PlannedGraph plan_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options) {
  if (options.function == nullptr) verify(trace);
  PlanGraphOptions how;
  how.target = options.target;
  how.target.features = features_of(kernels.micro_kernels);
  how.target = target_on(options.function == nullptr ? trace.device : options.memory.device, how.target, kernels);
  how.memory = options.memory;
  how.budget = options.budget;
  how.passes.settings.strategy = options.strategy;
  if (options.function == nullptr)
    how.passes.settings.fp8 = options.fp8;
  else
    leave_out_what_is_done(how.passes);
  how.schedule = [&](const Graph& graph, const GraphScheduleOptions& one) {
    return schedule_measured(graph, kernels, one);
  };
  return plan_graph(graph_to_plan(trace, options), options.function == nullptr ? &trace : nullptr, how);
}

//   exact   Trace --from_trace--> Schedule --bind--> Executor
Compiled compile_exact(const Trace& trace, int threads, bool device_graphs) {
  const auto begin = Clock::now();
  Compiled compiled;
  Schedule schedule = plan_exact(trace, threads);
  verify(schedule);
  compiled.executor =
      std::make_unique<Executor>(std::move(schedule), nullptr, nullptr, GraphUse{.is_on = device_graphs});
  compiled.seconds = seconds_since(begin);
  return compiled;
}

//   fast    Trace --functionalise--> Graph --passes--> Graph --from_graph--> Schedule --bind--> Executor
// Where no code can be generated for a group, its nodes run one by one: that is another Schedule.
Compiled compile_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                      const std::shared_ptr<Ranks>& ranks) {
  const auto begin = Clock::now();
  PlannedGraph planned = plan_fast(trace, kernels, options);
  Compiled compiled;
  const GraphUse graphs{options.device_graphs, options.function != nullptr, options.lasting_results};
  while (compiled.executor == nullptr) {
    verify(planned.plan.schedule);
    try {
      compiled.executor = std::make_unique<Executor>(planned.plan.schedule, &kernels, ranks, graphs);
    } catch (const RefusedPrograms& refused) {
      const size_t before = planned.options.refused.size();
      refuse_groups(planned, refused);
      INTERNAL_CHECK_LT(before, planned.options.refused.size(), "{} belongs to no group", refused.what());
      planned.plan = schedule_measured(planned.graph, kernels, planned.options);
    }
  }
  compiled.plan = std::move(planned.plan);
  if (options.fp8) compiled.plan.narrowest = DType::kF8E5M2;  // inside of kernels
  compiled.plan.schedule = {};
  compiled.graph = std::move(planned.graph);
  compiled.weighed = planned.weighed;
  compiled.context = planned.context;
  compiled.seconds = seconds_since(begin);
  return compiled;
}

Compiled compile_plain(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const PlainLimit* limit, const std::shared_ptr<Ranks>& ranks) {
  const auto begin = Clock::now();
  const uint64_t most_bytes = limit == nullptr ? UINT64_MAX : limit->bytes;
  const GraphScheduleOptions plain = plain_options(trace, options, kernels);
  // The plain Graph runs only once, so workspaces are measured only if the plan with the rule's bounds does not fit.
  const auto schedule = [&](const Graph& graph, const GraphScheduleOptions&) {
    return schedule_measured(graph, kernels, plain, most_bytes);
  };
  std::optional<GraphSchedule> best;
  const auto fits = [&](GraphSchedule plan) {
    if (!best || plan.schedule.peak_bytes() < best->schedule.peak_bytes()) best = std::move(plan);
    return best->schedule.peak_bytes() <= most_bytes;
  };
  const Graph captured = graph_to_plan(trace, options);
  const auto fits_without = [&](std::vector<std::string> passes, MemoryBudget budget) {
    PlanGraphOptions how;  // its target is no device: what kernels of a device compute together stays apart
    how.budget = budget;
    how.schedule = schedule;
    how.passes.without = std::move(passes);
    how.passes.settings.strategy = options.strategy;
    how.passes.settings.strategy.overlap_bytes = {};
    if (options.function == nullptr)
      how.passes.settings.fp8 = options.fp8;
    else
      leave_out_what_is_done(how.passes);
    PlannedGraph planned = plan_graph(captured, nullptr, how);
    if (limit != nullptr && !have_same_parts(planned.graph, limit->fused)) return false;
    return fits(std::move(planned.plan));
  };
  if (!fits_without({"fuse_losses", "recompute", "merge_collectives", "fuse"}, {}) &&
      !fits(schedule(limit->fused, plain)))
    fits_without({"fuse"}, {MemoryBudget::Kind::kBytes, best->schedule.input_bytes() + most_bytes});
  Compiled compiled;
  compiled.plan = std::move(*best);
  compiled = bound(std::move(compiled), kernels, ranks);
  compiled.seconds = seconds_since(begin);
  return compiled;
}

Compiled compile_nodes(const Graph& fused, const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const std::shared_ptr<Ranks>& ranks) {
  Compiled compiled;
  compiled.plan = schedule_measured(fused, kernels, plain_options(trace, options, kernels));
  return bound(std::move(compiled), kernels, ranks);
}

}  // namespace stepc
