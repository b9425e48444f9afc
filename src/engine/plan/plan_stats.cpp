#include "engine/plan/plan_stats.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "cost/profile.h"

namespace stepc {

void count_plan(Stats& stats, const Program& program, const Plan& plan, const std::vector<at::Tensor>& tensors) {
  const Trace& trace = plan.trace();
  ++stats.plans;
  if (stats.is_warm) ++stats.late_plans;
  stats.nodes = trace.calls.size();
  stats.instructions = plan.schedule().instructions.size();
  stats.graph_nodes = stats.kernels = 0;
  stats.opaque_calls.clear();
  if (const GraphSchedule* graph = plan.graph()) {
    stats.graph_nodes = graph->nodes;
    stats.kernels =
        static_cast<uint64_t>(std::ranges::count_if(plan.schedule().instructions, [](const Instruction& instruction) {
          return instruction.kind == Instruction::Kind::kGenerated || instruction.loss ||
                 (instruction.matmul && !instruction.matmul->epilogue_programs.empty());
        }));
    stats.opaque_calls = graph->opaque;
    std::ranges::sort(stats.opaque_calls);
  }
  stats.guards = static_cast<uint64_t>(
      std::count_if(trace.reads.begin(), trace.reads.end(), [](const HostRead& read) { return read.guard; }));
  const Schedule& schedule = plan.schedule();
  stats.arena_bytes = schedule.arena_bytes;
  stats.live_lower_bound_bytes = schedule.live_lower_bound_bytes;
  stats.planned_peak_bytes = schedule.peak_bytes();
  stats.layout_algorithm = schedule.layout_algorithm;
  stats.planning_seconds += plan.planning_seconds();
  stats.state_bytes = 0;
  for (size_t k = 0; k < program.keys().size(); ++k)
    if (tensors[k].defined() && program.keys()[k].owner != Owner::kGradient) stats.state_bytes += tensors[k].nbytes();
}

void count_run(Stats& stats, const Plan& plan, const StepResult& result) {
  const MemoryCounts& memory = result.memory;
  if (plan.ran_exact()) ++stats.recorded_replays;
  stats.served_allocations = memory.served;
  stats.unplanned_allocations += memory.unplanned;
  stats.device_graphs = memory.device_graphs;
  stats.device_seconds += result.on_device.seconds;
  stats.device_replays += result.on_device.count;
  const uint64_t measured = memory.arena_peak_bytes + memory.kept_bytes + memory.unplanned_bytes;
  // A launched device graph allocates nothing; its memory was measured when it was recorded.
  stats.measured_peak_bytes = memory.device_graphs > 0 ? std::max(stats.measured_peak_bytes, measured) : measured;
}

// Starts after the first replays, which warm up memory and caches.
void compare_with_expected(Stats& stats, Plan& plan, double seconds) {
  constexpr size_t kWarmUp = 3, kMeasured = 5;
  if (!plan.weighed() || plan.ran_exact() || plan.first_seconds.size() == kWarmUp + kMeasured) return;
  plan.first_seconds.push_back(seconds);
  if (plan.first_seconds.size() < kWarmUp + kMeasured) return;
  std::vector<double> warm(plan.first_seconds.begin() + kWarmUp, plan.first_seconds.end());
  std::ranges::sort(warm);
  const std::string measured = str("measured {} and {} a step, the median of {} replays",
                                   time_text(warm[kMeasured / 2]), human_bytes(stats.measured_peak_bytes), kMeasured);
  stats.auto_budget = str("{}; {}", to_text(*plan.weighed(), plan.known()), measured);
  log().info("memory budget auto: expected {} and {} a step, {}", time_text(plan.weighed()->chosen.seconds),
             human_bytes(plan.weighed()->chosen.peak_bytes), measured);
}

}  // namespace stepc
