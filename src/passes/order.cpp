#include "passes/order.h"

#include "memory/graph_memory.h"
#include "memory/order/plan_order.h"
#include "passes/rewriter.h"

namespace stepc {

Graph order(Graph graph) {
  const GraphMemory memory = graph_memory(graph);
  const UnitOrder units = lowest_peak_order(memory.problem);
  Rewriter r(graph);
  for (NodeId node : node_order(graph, memory, units)) r.keep(graph.nodes[node.index()]);
  return r.finish();
}

}  // namespace stepc
