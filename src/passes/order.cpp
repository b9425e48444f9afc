#include "passes/order.h"

#include <algorithm>

#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "memory/order/plan_order.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {
// What guards need comes first: host code behind them, and what depends on it, waits for them.
UnitOrder guards_first(const Graph& graph, const GraphMemory& memory, UnitOrder order) {
  const std::vector<std::vector<uint32_t>> before = predecessors(memory.problem);
  std::vector<bool> needed(memory.problem.units.size(), false);
  for (const GraphOutput& output : graph.outputs)
    if (output.kind == GraphOutput::Kind::kGuard && memory.value_of[output.tensor.index()] != kNone)
      needed[memory.problem.values[memory.value_of[output.tensor.index()]].producer] = true;
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit)
    if (needed[*unit])
      for (uint32_t other : before[*unit]) needed[other] = true;
  std::stable_partition(order.begin(), order.end(), [&](uint32_t unit) { return needed[unit]; });
  return order;
}

// What sums up a large tensor and makes next to nothing, as clipping does with every gradient, runs right after what
// makes the tensor, which caches then still hold: unless those few bytes would raise the peak by more than a
// thousandth.
UnitOrder sums_where_made(const OrderProblem& problem, const UnitOrder& order) {
  constexpr uint64_t kLarge = 64 * 1024, kLittle = 256;
  const std::vector<std::vector<uint32_t>> before = predecessors(problem);
  const auto sums_up = [&](uint32_t unit) {
    uint64_t made = 0;
    for (uint32_t value : problem.units[unit].makes) made += problem.values[value].bytes;
    return made > 0 && made <= kLittle && std::ranges::any_of(problem.units[unit].reads, [&](uint32_t value) {
             return problem.values[value].bytes >= kLarge;
           });
  };
  std::vector<size_t> place_of(order.size());  // by unit: where in `order` it stands, or what it stands behind
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t unit = order[i];
    const bool moves = sums_up(unit);
    place_of[unit] = moves ? 0 : i;
    if (moves)
      for (uint32_t other : before[unit]) place_of[unit] = std::max(place_of[unit], place_of[other]);
  }
  UnitOrder moved = order;
  std::ranges::stable_sort(moved, {}, [&](uint32_t unit) { return place_of[unit]; });
  const uint64_t peak = peak_bytes(problem, order);
  return peak_bytes(problem, moved) <= peak + peak / 1000 ? moved : order;
}
}  // namespace

Graph order(Graph graph) {
  const GraphMemory memory = graph_memory(graph, {.copied_views = graph_windows(graph).copied_views});
  const UnitOrder lowest = sums_where_made(memory.problem, plan_order(memory.problem).order);
  const UnitOrder units = guards_first(graph, memory, lowest);
  Rewriter r(graph);
  for (NodeId node : node_order(graph, memory, units)) r.keep(graph.nodes[node.index()]);
  return r.finish();
}

}  // namespace stepc
