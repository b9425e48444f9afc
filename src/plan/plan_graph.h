// From a captured step to its Schedule: the passes, a kernel for every node, and further attempts if the plan takes too
// much memory. Plain data in and out: the same for a step that will run and for the text of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cost/target.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "passes/pass.h"
#include "plan/memory_budget.h"
#include "schedule/from_graph.h"

namespace stepc {

// Of an exchange of tensor parallelism and its matmul, if exchanges go on beside the computation. They are cut at all
// only if ranks wait for exchanges for more than this part of a step.
inline constexpr int64_t kMostExchangeParts = 8;
inline constexpr double kLeastExposed = 0.01;

struct PlanGraphOptions {
  // Kernels are chosen for its features and threads. Its rates count only for a budget "auto", which weighs
  // recomputation against time, and for Context::kByPrice. Everything else is independent of measurements, so a step
  // has the same text everywhere.
  Target target = {};
  MemoryBudget budget = {};
  // Tokens of the document that a token of the batch stands in, on average, for the price of attention over packed
  // documents. None: as many as there are keys, which takes longest.
  std::optional<double> document_tokens = {};
  // As a Schedule's, of a Graph without a trace.
  StepMemory memory = {};
  // In how many parts; none: in as many as gain time. A plan that stands for deeper ones has those that gain time
  // there, and without a budget what is in flight may take any memory.
  std::optional<int64_t> exchange_parts = {};
  // How the passes run (verified, dumped, some left out). Of their settings the strategy and fp8 are the caller's, and
  // with a strategy the Schedule is one rank's; plan_graph() makes the others.
  RunOptions passes = {};
  // For callers that plan the same step for several budgets (passes/recompute.h).
  std::shared_ptr<RecomputeLooks> looks = {};
  // Plans a fused Graph. An engine measures unknown workspaces; other callers estimate them by the rule.
  std::function<GraphSchedule(const Graph& graph, const GraphScheduleOptions& options)> schedule = schedule_graph;
};

// The predicted cost of a plan, by simulate().
struct PlanCost {
  double seconds = 0;
  uint64_t peak_bytes = 0;  // of the Schedule
  bool operator==(const PlanCost&) const = default;
};
// For MemoryBudget::Kind::kAuto: the plan, beside the plan without a budget.
struct AutoBudget {
  PlanCost chosen, without;
};

struct PlannedGraph {
  Graph graph;  // fused
  GraphScheduleOptions options;
  GraphSchedule plan;
  std::vector<PassRun> passes = {};  // all passes that ran, in every attempt
  std::optional<AutoBudget> weighed = {};
  Context context = Context::kGather;  // the strategy's, or the chosen one
};

// What of a rank's plan is chosen by its Target's rates, as a setting and its value; empty: nothing.
std::string_view weighed_by_rates(const Strategy& strategy, const MemoryBudget& budget);

// `captured`: the result of functionalise(). `trace`: its source, which must outlive the result. Without a trace
// (nullptr), and for a rank's part of it, eager's memory is unknown, and only a budget bounds the plan. A plan that
// takes more than its budget, or than eager took, is planned again, with a smaller target for recomputation and with
// matmuls that leave out their packing; the smallest plan is returned. A rank keeps what it gathers (Strategy::keeps)
// if a budget of bytes has room for it without recomputation. Throws UserError for a step that no Schedule can run.
PlannedGraph plan_graph(const Graph& captured, const Trace* trace, const PlanGraphOptions& options);

// Leaves out the passes that a function of a rank's step (plan/rank_graph.h) needs no more: the whole step has been
// through them.
void leave_out_what_is_done(RunOptions& passes);

}  // namespace stepc
