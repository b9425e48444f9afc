// From a captured step to its Schedule: the passes, a kernel for everything, and what is tried where that takes more
// memory than it may. Plain data in and out: the same for a step that is about to run and for the text of one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cost/target.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "passes/pass.h"
#include "plan/memory_budget.h"
#include "schedule/from_graph.h"

namespace stepc {

struct PlanGraphOptions {
  // Whose features and threads the kernels are chosen for. Its rates count for a budget "auto", which weighs
  // recomputation against time, and for Context::kByPrice; all else is the same whatever was measured, so a step has
  // the same text everywhere.
  Target target = {};
  MemoryBudget budget = {};
  // How they run (verified, dumped, some left out). Of their settings the strategy is the caller's, and the Schedule is
  // then a rank's; the others are made here.
  RunOptions passes = {};
  // For who plans the same step for several budgets (passes/recompute.h).
  std::shared_ptr<RecomputeLooks> looks = {};
  // Plans a fused Graph. An engine measures workspaces that nobody knows; elsewhere the rule stands for them.
  std::function<GraphSchedule(const Graph& graph, const GraphScheduleOptions& options)> schedule = schedule_graph;
};

// What a plan will take, by simulate().
struct PlanCost {
  double seconds = 0;
  uint64_t peak_bytes = 0;  // of the Schedule
  bool operator==(const PlanCost&) const = default;
};
// Of MemoryBudget::Kind::kAuto: the plan, beside the one that there is without a budget.
struct AutoBudget {
  PlanCost chosen, without;
};

struct PlannedGraph {
  Graph graph;  // fused
  GraphScheduleOptions options;
  GraphSchedule plan;
  std::vector<PassRun> passes = {};  // that were run, of every attempt
  std::optional<AutoBudget> weighed = {};
  Context context = Context::kGather;  // of the strategy, or what was chosen
};

// `captured` as functionalise() leaves it. `trace`: what it was made of, which must outlive the result; without one
// (nullptr), and for a rank's part of it, nothing is known of eager's memory, and only a budget bounds the plan. A plan
// that takes more than its budget, or than eager took, is planned anew: recomputation is asked for less, matmuls leave
// out their packing; the smallest is returned. A rank keeps what it gathers (Strategy::keeps) where a budget of bytes
// has room for it without recomputation. Throws UserError for a step that no Schedule can run.
PlannedGraph plan_graph(const Graph& captured, const Trace* trace, const PlanGraphOptions& options);

// The step of one rank of the strategy's mesh as core ops, before anything is decided about its memory: what is cut
// into functions (passes/stages). `captured` as functionalise() leaves it.
Graph rank_graph(const Graph& captured, const Strategy& strategy);
// The passes that are left out where such a function is planned: the whole step has been through them.
const std::vector<std::string>& done_to_functions();

}  // namespace stepc
