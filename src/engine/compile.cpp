#include "engine/compile.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/clock.h"
#include "engine/eager_peak.h"
#include "kernels/kernel_choice.h"
#include "memory/graph_memory.h"
#include "passes/functionalise.h"
#include "passes/pass.h"
#include "runtime/measure_workspace.h"
#include "schedule/from_trace.h"

namespace stepc {

namespace {
constexpr int kBudgetAttempts = 4;
constexpr int kPlainAttempts = 2;

// How far a plan is above what it may take: a budget of bytes; or what eager took, so that what the program makes again
// to save memory saves it here too. Kernels may want more workspace than eager's, and keep what those compute twice.
uint64_t excess_bytes(const Schedule& schedule, const MemoryBudget& budget, uint64_t eager_bytes) {
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  const uint64_t bytes = has_budget ? schedule.needed_bytes() : schedule.peak_bytes();
  const uint64_t most = has_budget ? budget.bytes : eager_bytes;
  return bytes - std::min(bytes, most);
}

// A budget counts the program's own memory, recomputation only what the step adds to it.
std::optional<RecomputeOptions> recompute_options(const Graph& graph, const MemoryBudget& budget) {
  if (budget.kind == MemoryBudget::Kind::kNone) return std::nullopt;
  RecomputeOptions options;
  if (budget.kind == MemoryBudget::Kind::kAuto) return options;
  const uint64_t program = bytes_of_inputs(graph);
  options.budget_bytes = budget.bytes - std::min(budget.bytes, program);
  return options;
}

// To measure a call takes its operands' memory, and no plan has yet been found to fit the machine.
constexpr uint64_t kMostMeasured = uint64_t{1} << 30;
uint64_t bytes_to_measure(const UnknownWorkspace& call) {
  uint64_t bytes = 0;
  for (const TensorLayout& input : call.inputs) bytes += bytes_of(input);
  for (const TensorType& output : call.outputs) bytes += static_cast<uint64_t>(bytes_of(output));
  return bytes;
}

// With the workspaces of calls that nobody knows measured, each once in the life of `kernels`; by rule where their
// operands alone take more than `most_bytes`.
GraphSchedule schedule_measured(const Graph& graph, KernelSources& kernels, GraphScheduleOptions options,
                                uint64_t most_bytes = kMostMeasured) {
  const std::lock_guard lock(kernels.measuring);
  options.workspaces = kernels.workspaces;
  GraphSchedule plan = schedule_graph(graph, options);
  if (plan.unknown.empty()) return plan;
  for (const UnknownWorkspace& call : plan.unknown)
    if (bytes_to_measure(call) <= most_bytes)
      kernels.workspaces.emplace(call.key, measure_workspace(call, options.threads).value_or(workspace_by_rule(call)));
  options.workspaces = kernels.workspaces;
  return schedule_graph(graph, options);
}

struct Planned {
  Graph graph;  // fused
  GraphScheduleOptions options;
  GraphSchedule plan;
};

//   Trace --functionalise--> Graph --passes--> Graph --from_graph--> Schedule
Planned plan_graph(const Trace& trace, KernelSources& kernels, const CompileOptions& options) {
  verify(trace);
  const Graph captured = functionalise(trace);
  const uint64_t eager_bytes = eager_peak_bytes(trace);
  Planned planned;
  std::optional<Planned> best;
  planned.options.features = features_of(kernels.micro_kernels);
  planned.options.threads = options.threads;
  planned.options.trace = &trace;
  RunOptions passes;
  passes.settings.products = product_rule(planned.options.features);
  std::optional<RecomputeOptions>& recompute = passes.settings.recompute;
  recompute = recompute_options(captured, options.budget);
  // What an attempt to meet a budget does anew; the passes before these do the same each time.
  const std::vector<std::string> anew = {"recompute", "fuse", "order"};
  passes.without = anew;
  const Graph core = run_passes(captured, passes).graph;
  passes.without.clear();
  passes.only = anew;
  uint64_t excess = 0;
  for (int attempt = 1;; ++attempt) {
    Graph graph = run_passes(core, passes).graph;
    if (attempt == 1 || graph != planned.graph) {
      planned.graph = std::move(graph);
      verify_stage(planned.graph, Stage::kFused);
      planned.plan = schedule_measured(planned.graph, kernels, planned.options);
      excess = excess_bytes(planned.plan.schedule, options.budget, eager_bytes);
    }
    if (!best || planned.plan.schedule.peak_bytes() < best->plan.schedule.peak_bytes()) best = planned;
    if (excess == 0) return std::move(*best);
    if (attempt == kBudgetAttempts) break;
    // recompute knows nothing of scratch memory and of what kernels cannot write in place: it is asked for less then.
    if (!recompute) recompute.emplace();
    if (!recompute->budget_bytes) {
      const OrderProblem problem = graph_memory(planned.graph).problem;
      recompute->budget_bytes = peak_bytes(problem, program_order(problem));
    }
    if (*recompute->budget_bytes == 0) break;
    *recompute->budget_bytes -= std::min(excess, *recompute->budget_bytes);
  }
  // What activations do not give, products may: the library's pack nothing, and are slower.
  Planned packing_nothing = *best;
  packing_nothing.options.most_scratch_bytes = 0;
  packing_nothing.plan = schedule_measured(packing_nothing.graph, kernels, packing_nothing.options);
  const auto excess_of = [&](const Planned& one) {
    return excess_bytes(one.plan.schedule, options.budget, eager_bytes);
  };
  const bool is_mostly_scratch = 2 * excess_of(packing_nothing) <= excess_of(*best);
  return is_mostly_scratch ? std::move(packing_nothing) : std::move(*best);
}

void refuse_groups(Planned& planned, const RefusedPrograms& refused) {
  const Schedule& schedule = planned.plan.schedule;
  for (size_t i = 0; i < schedule.instructions.size(); ++i) {
    const auto refuse = [&](uint32_t program) {
      const auto found = refused.why.find(program);
      if (found != refused.why.end()) planned.options.refused.emplace(planned.plan.group_of[i], found->second);
    };
    refuse(schedule.instructions[i].program);
    if (!schedule.instructions[i].matmul) continue;
    for (uint32_t tail : schedule.instructions[i].matmul->tail_programs) refuse(tail);
  }
}
}  // namespace

Schedule plan_exact(const Trace& trace, int threads) {
  verify(trace);
  return schedule_trace(trace, {}, threads);
}

GraphSchedule plan_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options) {
  return plan_graph(trace, kernels, options).plan;
}

//   exact   Trace --from_trace--> Schedule --bind--> Executor
Compiled compile_exact(const Trace& trace, int threads) {
  const auto begin = Clock::now();
  Compiled compiled;
  Schedule schedule = plan_exact(trace, threads);
  verify(schedule);
  compiled.executor = std::make_unique<Executor>(std::move(schedule), nullptr);
  compiled.seconds = seconds_since(begin);
  return compiled;
}

//   fast    Trace --functionalise--> Graph --passes--> Graph --from_graph--> Schedule --bind--> Executor
// Where no code can be generated for a group, its nodes run one by one: that is another Schedule.
Compiled compile_fast(const Trace& trace, KernelSources& kernels, const CompileOptions& options) {
  const auto begin = Clock::now();
  Planned planned = plan_graph(trace, kernels, options);
  Compiled compiled;
  while (compiled.executor == nullptr) {
    verify(planned.plan.schedule);
    try {
      compiled.executor = std::make_unique<Executor>(planned.plan.schedule, &kernels);
    } catch (const RefusedPrograms& refused) {
      const size_t before = planned.options.refused.size();
      refuse_groups(planned, refused);
      INTERNAL_CHECK_LT(before, planned.options.refused.size(), "{} belongs to no group", refused.what());
      planned.plan = schedule_measured(planned.graph, kernels, planned.options);
    }
  }
  compiled.plan = std::move(planned.plan);
  compiled.plan.schedule = {};
  compiled.graph = std::move(planned.graph);
  compiled.seconds = seconds_since(begin);
  return compiled;
}

Compiled compile_plain(const Trace& trace, KernelSources& kernels, const CompileOptions& options,
                       const PlainLimit* limit) {
  const auto begin = Clock::now();
  const uint64_t most_bytes = limit == nullptr ? UINT64_MAX : limit->bytes;
  GraphScheduleOptions plain;
  plain.threads = options.threads;
  plain.trace = &trace;
  Compiled compiled;
  uint64_t least = UINT64_MAX;
  // Whether it fits; the smallest is kept.
  const auto fits = [&](const Graph& graph) {
    plain.refused.clear();
    for (const Node& node : graph.nodes)
      if (node.group) plain.refused.emplace(*node.group, "one ATen call a node");
    GraphSchedule plan = schedule_measured(graph, kernels, plain, std::min(most_bytes, kMostMeasured));
    if (plan.schedule.peak_bytes() < least) {
      least = plan.schedule.peak_bytes();
      compiled.plan = std::move(plan);
    }
    return least <= most_bytes;
  };
  RunOptions passes;
  passes.without = {"fuse_losses", "recompute", "fuse"};
  const Graph captured = functionalise(trace);
  bool found = fits(run_passes(captured, passes).graph) || fits(limit->fused);
  passes.without = {"fuse"};
  for (uint64_t budget = most_bytes, attempt = 0; !found && attempt < kPlainAttempts; ++attempt) {
    passes.settings.recompute.emplace().budget_bytes = budget;
    found = fits(run_passes(captured, passes).graph);
    if (!found) budget -= std::min(least - most_bytes, budget);
  }
  verify(compiled.plan.schedule);
  compiled.executor = std::make_unique<Executor>(std::move(compiled.plan.schedule), &kernels);
  compiled.plan.schedule = {};
  compiled.seconds = seconds_since(begin);
  return compiled;
}

}  // namespace stepc
