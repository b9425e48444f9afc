#include "passes/rewrite/decompose.h"

#include <algorithm>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {
bool is_decomposed(const Graph& graph, const Node& node, bool has_fp8) {
  if (node.aten) return false;
  const OpDef& op = op_def(node.op);
  const auto takes_float8 = [&](TensorId input) { return is_float8(graph.type(input).dtype); };
  return !op.is_core() || (op.has(Trait::kComposite) && !has_fp8 && std::ranges::any_of(node.inputs, takes_float8));
}
}  // namespace

Graph decompose(Graph graph, bool has_fp8) {
  const auto is_composite = [&](const Node& node) { return is_decomposed(graph, node, has_fp8); };
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
