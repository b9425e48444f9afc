#include "engine/compile.h"

#include <algorithm>

#include "base/clock.h"
#include "memory/graph_memory.h"
#include "passes/functionalise.h"
#include "passes/pass.h"
#include "schedule/schedule.h"

namespace stepc {

namespace {
constexpr int kBudgetAttempts = 4;

// How far a plan is above a budget of bytes.
uint64_t excess_bytes(const GraphPlan& plan, const MemoryBudget& budget) {
  return plan.needed_bytes() - std::min(plan.needed_bytes(), budget.bytes);
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
}  // namespace

//   exact   Trace --schedule--> Schedule --bind--> Executable
Compiled compile_exact(const Trace& trace, int threads) {
  const auto begin = Clock::now();
  verify(trace);
  Schedule schedule = schedule_trace(trace, threads);
  verify(trace, schedule);
  Compiled compiled;
  compiled.executable = std::make_unique<Executable>(trace, std::move(schedule));
  compiled.seconds = seconds_since(begin);
  return compiled;
}

//   fast    Trace --functionalise--> Graph --passes--> Graph --codegen, plan--> GraphPlan --bind--> GraphExecutable
GraphPlan plan_fast(const Trace& trace, KernelSources& kernels, const FastOptions& options) {
  verify(trace);
  const Graph captured = functionalise(trace);
  RunOptions passes;
  passes.settings.products = product_rule(kernels.micro_kernels);
  std::optional<RecomputeOptions>& recompute = passes.settings.recompute;
  recompute = recompute_options(captured, options.budget);
  for (int attempt = 1;; ++attempt) {
    Graph graph = run_passes(captured, passes).graph;
    verify_stage(graph, Stage::kFused);
    GraphPlan plan = plan_graph(std::move(graph), kernels, options.threads);
    // recompute knows nothing of scratch memory and of what kernels cannot write in place: it is asked for less then.
    const uint64_t excess = recompute && recompute->budget_bytes ? excess_bytes(plan, options.budget) : 0;
    if (excess == 0 || attempt == kBudgetAttempts || *recompute->budget_bytes == 0) return plan;
    *recompute->budget_bytes -= std::min(excess, *recompute->budget_bytes);
  }
}

CompiledGraph compile_fast(const Trace& trace, KernelSources& kernels, const FastOptions& options) {
  const auto begin = Clock::now();
  CompiledGraph compiled;
  compiled.executable = std::make_unique<GraphExecutable>(trace, plan_fast(trace, kernels, options));
  compiled.seconds = seconds_since(begin);
  return compiled;
}

}  // namespace stepc
