// From a captured step to its Schedule: the passes, a kernel for everything, and what is tried where that takes more
// memory than it may. Plain data in and out: the same for a step that is about to run and for the text of one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ir/graph.h"
#include "ir/trace.h"
#include "passes/pass.h"
#include "plan/memory_budget.h"
#include "schedule/from_graph.h"

namespace stepc {

struct PlanGraphOptions {
  Features features = {};
  int threads = 1;
  MemoryBudget budget = {};
  RunOptions passes = {};  // how they run (verified, dumped, some left out); its settings are made here
  // Plans a fused Graph. An engine measures workspaces that nobody knows; elsewhere the rule stands for them.
  std::function<GraphSchedule(const Graph& graph, const GraphScheduleOptions& options)> schedule = schedule_graph;
};

struct PlannedGraph {
  Graph graph;  // fused
  GraphScheduleOptions options;
  GraphSchedule plan;
  std::vector<PassRun> passes = {};  // that were run, of every attempt
};

// `captured` as functionalise() leaves it. `trace`: what it was made of, which must outlive the result; without one
// (nullptr) nothing is known of eager's memory, and only a budget bounds the plan. A plan that takes more than its
// budget, or than eager took, is planned anew: recomputation is asked for less, matmuls leave out their packing; the
// smallest is returned. Throws UserError for a step that no Schedule can run.
PlannedGraph plan_graph(const Graph& captured, const Trace* trace, const PlanGraphOptions& options);

}  // namespace stepc
