// How much memory a captured step needs as the product plans it, and under other orders, from its text: one JSON line.
// Run by planning_benchmark.py.
//
//   planning_benchmark STEP.trace
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/files.h"
#include "engine/plan/compile.h"
#include "memory/graph_memory.h"
#include "memory/order/list_order.h"
#include "memory/order/plan_order.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"

namespace {

using namespace stepc;

constexpr uint64_t kMostText = uint64_t{1} << 32;

// What the product's passes leave, before they put it in order.
Graph fused(const Trace& trace, const KernelSources& kernels) {
  RunOptions options;
  options.settings.matmuls = matmul_rule(features_of(kernels.micro_kernels));
  options.without = {"order"};
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
  const Trace trace = parse_trace(read_text(path, kMostText));
  KernelSources kernels{std::filesystem::path()};
  const CompileOptions options = {.target = {.threads = at::get_num_threads()}};
  plan_fast(trace, kernels, options);  // measures the workspaces that nobody knows, which a process does once
  const auto begin = std::chrono::steady_clock::now();
  const PlannedGraph planned = plan_fast(trace, kernels, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  verify(planned.plan.schedule);

  const Graph graph = fused(trace, kernels);
  const OrderProblem problem = graph_memory(graph).problem;
  const PlannedOrder order = plan_order(problem);
  verify_order(problem, order.order);
  const MemoryReport& memory = planned.plan.memory;
  return {{"nodes", graph.nodes.size()},
          {"planned_nodes", planned.graph.nodes.size()},
          {"instructions", planned.plan.schedule.instructions.size()},
          {"parameters", bytes_of_inputs(graph, InputKind::kParameter)},
          {"program_order", baseline(problem, program_order(problem))},
          {"least_increase", baseline(problem, least_increase_order(problem))},
          {"live", order.peak_bytes},
          {"bound", order.bound_bytes},
          {"planned", planned.plan.schedule.peak_bytes()},
          {"workspaces", memory.at_peak[static_cast<size_t>(ByteClass::kWorkspaces)]},
          {"allocated", allocated_text(memory)},
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
