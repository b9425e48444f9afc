#include "passes/order.h"

#include <algorithm>

#include "memory/graph_memory.h"
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
}  // namespace

Graph order(Graph graph) {
  const GraphMemory memory = graph_memory(graph);
  const UnitOrder units = guards_first(graph, memory, lowest_peak_order(memory.problem));
  Rewriter r(graph);
  for (NodeId node : node_order(graph, memory, units)) r.keep(graph.nodes[node.index()]);
  return r.finish();
}

}  // namespace stepc
