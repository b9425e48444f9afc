// How much memory a captured step needs under each planner, from its text: one JSON line. Run by planning_benchmark.py.
//
//   planning_benchmark STEP.trace
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "memory/graph_memory.h"
#include "memory/order/list_order.h"
#include "memory/order/plan_order.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"

namespace {

using namespace stepc;

constexpr uint64_t kMostText = uint64_t{1} << 32;

// The step as the planner sees it, composites whole: each is one kernel.
Graph load(const std::string& path) {
  RunOptions options;
  options.only = {"fold_constants", "canonicalise", "simplify", "common_subexpressions", "dead_code"};
  const Trace trace = parse_trace(read_text(path, kMostText));
  return run_passes(functionalise(trace), options).graph;
}

// The arena of an order under long-lived-first best fit, and under the best of our layouts.
nlohmann::ordered_json baseline(const OrderProblem& problem, const UnitOrder& order) {
  const LayoutProblem layout = intervals_of(problem, order).layout;
  return {{"live", lower_bound(layout)},
          {"long_lived_first", layout_with("greedy by duration", layout).bytes},
          {"best_layout", plan_layout(layout).bytes}};
}

nlohmann::ordered_json plan(const std::string& path) {
  const Graph graph = load(path);
  const auto begin = std::chrono::steady_clock::now();
  const GraphMemory memory = graph_memory(graph);
  const PlannedOrder planned = plan_order(memory.problem);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  verify(memory.problem);
  verify_order(memory.problem, planned.order);
  verify_layout(planned.intervals.layout, planned.layout);
  uint64_t state = 0;
  for (InputKind kind : {InputKind::kGradient, InputKind::kOptimizerState, InputKind::kBuffer, InputKind::kBatch,
                         InputKind::kCaptured, InputKind::kIncoming, InputKind::kScalar, InputKind::kRng})
    state += bytes_of_inputs(graph, kind);
  return {{"nodes", graph.nodes.size()},
          {"units", memory.problem.units.size()},
          {"parameters", bytes_of_inputs(graph, InputKind::kParameter)},
          {"other_inputs", state},
          {"program_order", baseline(memory.problem, program_order(memory.problem))},
          {"least_increase", baseline(memory.problem, least_increase_order(memory.problem))},
          {"ours", planned.layout.bytes},
          {"live", planned.peak_bytes},
          {"bound", planned.bound_bytes},
          {"order", planned.algorithm},
          {"layout", planned.layout.algorithm},
          {"seconds", seconds.count()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: planning_benchmark STEP.trace\n", stderr);
    return 2;
  }
  try {
    std::puts(plan(argv[1]).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planning_benchmark: %s\n", error.what());
    return 1;
  }
  return 0;
}
