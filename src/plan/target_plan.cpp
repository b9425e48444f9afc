#include "plan/target_plan.h"

#include <utility>

#include "base/text.h"
#include "passes/from_trace/functionalise.h"
#include "plan/gpu_allocations.h"
#include "plan/plan_graph.h"
#include "plan/plan_trace.h"

namespace stepc {

namespace {

std::string title_of(const Target& target) {
  if (target.gpu) return str("{} ({})", target.gpu->name, to_text(target.features));
  return str("{} with {} threads", target.cpu.empty() ? "a CPU" : target.cpu, target.threads);
}

std::string memory_line(const TargetPlan& plan) {
  const Schedule& schedule = plan.schedule;
  const uint64_t all = schedule.input_bytes() + schedule.peak_bytes(), on_host = all - plan.needed_bytes();
  std::string out =
      str("memory {} (the program's tensors {}, the step's {})", beside_memory_of(plan.target, plan.needed_bytes()),
          human_bytes(schedule.input_bytes()), human_bytes(schedule.peak_bytes()));
  if (on_host > 0) out += str(", {} of these in the host's memory", human_bytes(on_host));
  return out;
}

// All that the step has lies in a CPU's memory, wherever it was recorded.
Trace in_one_memory(Trace trace) {
  trace.device.clear();
  for (Storage& storage : trace.storages) storage.space = Space::kHost;
  for (Allocation& allocation : trace.allocations) allocation.space = Space::kHost;
  return trace;
}

std::string commented(const std::string& text) {
  std::string out = "# ";
  for (size_t c = 0; c < text.size(); ++c) {
    out += text[c];
    if (text[c] == '\n' && c + 1 < text.size()) out += "# ";
  }
  return out;
}

PlanGraphOptions options_for(const Target& target, const MemoryBudget& budget, std::optional<double> document_tokens) {
  PlanGraphOptions options;
  options.target = target;
  options.budget = budget;
  options.document_tokens = document_tokens;
  return options;
}

TargetPlan timed(TargetPlan plan) {
  verify(plan.schedule);
  plan.timeline = simulate(plan.schedule, plan.target);
  return plan;
}

TargetPlan planned(const Graph& graph, const Trace* trace, const PlanGraphOptions& options) {
  PlannedGraph made = plan_graph(graph, trace, options);
  return timed(
      {.target = options.target, .schedule = std::move(made.plan.schedule), .memory = std::move(made.plan.memory)});
}

}  // namespace

std::string beside_memory_of(const Target& target, uint64_t bytes) {
  if (!target.gpu) return human_bytes(bytes);
  const auto there = static_cast<uint64_t>(target.gpu->memory_bytes);
  return str("{}; {} has {}{}", human_bytes(bytes), target.gpu->name, human_bytes(there),
             bytes > there ? ": too little" : "");
}

std::string TargetPlan::summary() const {
  return str("planned for {}\n{}\n{}", title_of(target), memory_line(*this), to_text(timeline));
}

std::string TargetPlan::text() const {
  std::string out = to_text(schedule) + commented(summary());
  return target.gpu ? out + "# with\n" + commented(to_text(target)) : out;
}

TargetPlan plan_for_target(const Trace& recorded, const Target& target, bool as_recorded, const MemoryBudget& budget,
                           std::optional<double> document_tokens, const std::optional<Fp8Recipe>& fp8) {
  const Trace trace = target.gpu ? recorded : in_one_memory(recorded);
  if (as_recorded)
    return timed({.target = target,
                  .schedule = target.gpu ? plan_trace(with_gpu_allocations(trace, target.features), target.threads,
                                                      target.features)
                                         : plan_trace(trace, target.threads)});
  PlanGraphOptions options = options_for(target, budget, document_tokens);
  options.passes.settings.fp8 = fp8;
  return planned(functionalise(trace), &trace, options);
}

TargetPlan plan_for_target(const Graph& function, const Target& target, const MemoryBudget& budget,
                           std::optional<double> document_tokens) {
  PlanGraphOptions options = options_for(target, budget, document_tokens);
  leave_out_what_is_done(options.passes);
  return planned(function, nullptr, options);
}

}  // namespace stepc
