#include "engine/compile.h"

#include <chrono>

#include "passes/functionalise.h"
#include "passes/pass.h"
#include "schedule/schedule.h"

namespace stepc {

namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
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
CompiledGraph compile_fast(const Trace& trace, KernelSources& kernels, int threads) {
  const auto begin = Clock::now();
  verify(trace);
  Graph graph = functionalise(trace);
  graph = run_passes(std::move(graph)).graph;
  verify_stage(graph, Stage::kFused);
  CompiledGraph compiled;
  GraphPlan plan = plan_graph(std::move(graph), kernels, threads);
  compiled.executable = std::make_unique<GraphExecutable>(trace, std::move(plan));
  compiled.seconds = seconds_since(begin);
  return compiled;
}

}  // namespace stepc
