#include "passes/rewrite/decompose.h"

#include <algorithm>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {
bool is_composite(const Node& node) { return !node.aten && !op_def(node.op).is_core(); }
}  // namespace

Graph decompose(Graph graph) {
  // A decomposition may use composites itself: once more until none is left.
  while (std::ranges::any_of(graph.nodes, is_composite)) {
    Rewriter r(graph);
    for (const Node& node : graph.nodes) {
      if (!is_composite(node)) {
        r.keep(node);
        continue;
      }
      r.at(node);
      r.replace(node.outputs, op_def(node.op).decompose(r.b(), r.inputs_of(node), node.attrs));
    }
    graph = r.finish();
  }
  return graph;
}

}  // namespace stepc
