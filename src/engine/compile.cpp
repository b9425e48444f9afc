#include "engine/compile.h"

#include <algorithm>
#include <chrono>

#include "memory/graph_memory.h"
#include "passes/functionalise.h"
#include "passes/pass.h"
#include "schedule/schedule.h"

namespace stepc {

namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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
  Graph graph = functionalise(trace);
  RunOptions passes;
  passes.settings.recompute = recompute_options(graph, options.budget);
  graph = run_passes(std::move(graph), passes).graph;
  verify_stage(graph, Stage::kFused);
  return plan_graph(std::move(graph), kernels, options.threads);
}

CompiledGraph compile_fast(const Trace& trace, KernelSources& kernels, const FastOptions& options) {
  const auto begin = Clock::now();
  CompiledGraph compiled;
  compiled.executable = std::make_unique<GraphExecutable>(trace, plan_fast(trace, kernels, options));
  compiled.seconds = seconds_since(begin);
  return compiled;
}

}  // namespace stepc
