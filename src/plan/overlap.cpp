#include "plan/overlap.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "memory/order/overlap_order.h"
#include "ops/op_def.h"
#include "passes/rewriter.h"
#include "plan/layer_memory.h"
#include "plan/simulate.h"

namespace stepc {

namespace {

// How early exchanges begin, from the earliest: what begins early holds memory for longer.
constexpr double kWindows[] = {2, 1, 0.5, 0};
constexpr int kAttempts = 4;  // for each, with less memory where the plan takes more than it may

// What is known of each unit of the graph's memory.
std::vector<OverlapUnit> units_of(const Graph& graph, const GraphMemory& memory,
                                  const std::vector<double>& seconds_of) {
  std::vector<OverlapUnit> units(memory.problem.units.size());
  std::map<TensorId, uint32_t> exchange_of;  // by first result
  std::vector<bool> decides(units.size(), false);
  for (const GraphOutput& output : graph.outputs)
    if (output.kind == GraphOutput::Kind::kGuard && memory.value_of[output.tensor.index()] != kNone)
      decides[memory.problem.values[memory.value_of[output.tensor.index()]].producer] = true;
  const std::vector<std::vector<uint32_t>> before = predecessors(memory.problem);
  for (uint32_t u = static_cast<uint32_t>(units.size()); u-- > 0;) {
    units[u].is_first = decides[u];
    if (decides[u])
      for (uint32_t other : before[u]) decides[other] = true;
  }
  for (uint32_t u = 0; u < units.size(); ++u) {
    for (NodeId node : memory.nodes_of[u]) units[u].seconds += seconds_of[node.index()];
    const Node& first = graph.nodes[memory.nodes_of[u].front().index()];
    units[u].is_host = is_host_code(first);
    if (exchanges(collective_of(first))) exchange_of.emplace(first.outputs.front(), u);
    if (collective_of(first) != Collective::kWait) continue;
    const auto begun = exchange_of.find(first.inputs.front());
    if (begun == exchange_of.end()) continue;
    units[begun->second].wait = u;
    units[u].seconds = 0;
  }
  return units;
}

// By place of an order, what layers hold that are not there, each `more` times what each that is there does.
std::vector<uint64_t> bytes_of_others(const PlannedGraph& planned, const GraphMemory& memory, const UnitOrder& order,
                                      double more) {
  if (more == 0) return {};
  const std::vector<double> others = LayerMemory::bytes_of_others(planned.plan.schedule);
  std::vector<uint64_t> of_node(planned.graph.nodes.size(), 0);
  for (size_t i = 0; i < others.size(); ++i)
    if (const NodeId node = planned.plan.node_of[i]; node.valid()) {
      uint64_t& bytes = of_node[node.index()];
      bytes = std::max(bytes, static_cast<uint64_t>(more * others[i]));
    }
  std::vector<uint64_t> beside;
  for (const uint32_t unit : order) {
    uint64_t& bytes = beside.emplace_back(0);
    for (NodeId node : memory.nodes_of[unit]) bytes = std::max(bytes, of_node[node.index()]);
  }
  return beside;
}

Graph in_order(const Graph& graph, const GraphMemory& memory, const UnitOrder& order) {
  Rewriter r(graph);
  for (NodeId node : node_order(graph, memory, order)) r.keep(graph.nodes[node.index()]);
  return r.finish();
}

}  // namespace

Overlapped overlapped(const PlannedGraph& planned, const PlanGraphOptions& options, uint64_t most_bytes) {
  const Timeline before = simulate(planned.plan.schedule, options.target);
  std::vector<double> seconds_of(planned.graph.nodes.size(), 0);
  for (size_t i = 0; i < before.entries.size(); ++i) {
    const bool is_wait = planned.plan.schedule.instructions[i].kind == Instruction::Kind::kWait;
    if (const NodeId node = planned.plan.node_of[i]; node.valid() && !is_wait)
      seconds_of[node.index()] += before.entries[i].seconds();
  }
  const GraphMemory memory = graph_memory(planned.graph, {.copied_views = graph_windows(planned.graph).copied_views});
  const std::vector<OverlapUnit> units = units_of(planned.graph, memory, seconds_of);
  const UnitOrder given = program_order(memory.problem);
  // The order knows nothing of what kernels take for themselves.
  const uint64_t room = most_bytes - std::min(most_bytes, held_bytes(planned.plan.schedule, options.budget));
  const std::vector<uint64_t> beside = bytes_of_others(planned, memory, given, options.budget.more_layers);
  const uint64_t peak = peak_beside(memory.problem, given, beside);
  uint64_t most = peak + std::min(room, UINT64_MAX / 2);
  Overlapped best;
  double least = before.seconds;
  std::set<UnitOrder> known = {given};
  for (const double window : kWindows)
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const UnitOrder order =
          overlap_order(memory.problem, given, units, {.window = window, .most_bytes = most, .beside = beside});
      if (!known.insert(order).second) break;
      PlannedGraph other = planned;
      other.graph = in_order(planned.graph, memory, order);
      other.plan = options.schedule(other.graph, other.options);
      const double seconds = simulate(other.plan.schedule, options.target).seconds;
      if (seconds >= least) break;
      const uint64_t bytes = held_bytes(other.plan.schedule, options.budget);
      if (bytes <= most_bytes) {
        least = seconds;
        best.planned = std::move(other);
        break;
      }
      const uint64_t missing = bytes - most_bytes;
      best.missing_bytes = best.missing_bytes == 0 ? missing : std::min(best.missing_bytes, missing);
      most = peak + (most - peak) / 2;
    }
  return best;
}

}  // namespace stepc
