// A captured step as it would run on another machine: plan, memory and predicted time, without that machine.
#pragma once

#include <optional>
#include <string>

#include "cost/target.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "memory/report.h"
#include "passes/fp8.h"
#include "plan/memory_budget.h"
#include "plan/simulate.h"
#include "schedule/schedule.h"

namespace stepc {

struct TargetPlan {
  Target target;
  Schedule schedule = {};
  Timeline timeline = {};
  std::optional<MemoryReport> memory = {};  // of the step as a Graph

  // The program's tensors and the step's own.
  [[nodiscard]] uint64_t needed_bytes() const { return schedule.needed_bytes(); }
  // The Schedule, as text that reads back, followed by comments: its cost by class of work, and what was assumed about
  // the machine.
  [[nodiscard]] std::string text() const;
  // Only memory and time.
  [[nodiscard]] std::string summary() const;
};

// `as_recorded`: with eager's choices, one kernel for each call; otherwise the step as a Graph, fused. Workspaces that
// only a run would show are estimated by the rule. `document_tokens`: as in PlanGraphOptions. For one device. Throws
// UserError for a step that no Schedule can run.
TargetPlan plan_for_target(const Trace& trace, const Target& target, bool as_recorded, const MemoryBudget& budget = {},
                           std::optional<double> document_tokens = {}, const std::optional<Fp8Recipe>& fp8 = {});

// The same of a Graph that passes/stages/cut_batch.h has cut out of a step.
TargetPlan plan_for_target(const Graph& function, const Target& target, const MemoryBudget& budget,
                           std::optional<double> document_tokens = {});

// "70.1 GiB; NVIDIA H100 80GB has 74.5 GiB", and a note if that is too little.
std::string beside_memory_of(const Target& target, uint64_t bytes);

}  // namespace stepc
