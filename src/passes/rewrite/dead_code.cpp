#include "passes/rewrite/dead_code.h"

#include <algorithm>

#include "passes/rewriter.h"

namespace stepc {

namespace {
// By node: whether it stays; by tensor: whether what stays reads it or the graph returns it.
struct Needed {
  std::vector<bool> nodes, tensors;
};
Needed find_needed(const Graph& graph) {
  std::vector<bool> needed(graph.tensors.size(), false);
  std::vector<bool> stays(graph.nodes.size(), false);
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) needed[output.tensor.index()] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    stays[n] = (node.aten && node.aten->draws) ||
               std::ranges::any_of(node.outputs, [&](TensorId output) { return needed[output.index()]; });
    if (!stays[n]) continue;
    for (TensorId input : node.inputs) needed[input.index()] = true;
  }
  return {std::move(stays), std::move(needed)};
}
}  // namespace

std::vector<bool> needed_nodes(const Graph& graph) { return find_needed(graph).nodes; }

Graph dead_code(Graph graph) {
  const auto [stays, needed] = find_needed(graph);
  std::vector<bool> drop;
  for (const GraphInput& input : graph.inputs)
    drop.push_back(!needed[input.tensor.index()] && (input.kind == InputKind::kScalar ||
                                                     input.kind == InputKind::kRng || input.kind == InputKind::kMesh));
  Rewriter r(graph, drop);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (stays[n]) r.keep(graph.nodes[n]);
  return r.finish();
}

}  // namespace stepc
