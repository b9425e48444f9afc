#include "passes/fusion/fuse.h"

#include <algorithm>

#include "passes/fusion/fuse_epilogues.h"
#include "passes/fusion/fuse_loops.h"
#include "passes/fusion/fuse_side_by_side.h"
#include "passes/fusion/share_operand.h"
#include "passes/fusion/write_groups.h"
#include "passes/rewrite/dead_code.h"

namespace stepc {

Graph fuse(Graph graph, const MatmulRule& matmuls, bool side_by_side) {
  KnownGroups known;
  return fuse(std::move(graph), matmuls, known, nullptr, side_by_side);
}

Graph fuse(Graph graph, const MatmulRule& matmuls, KnownGroups& known, std::vector<NodeId>* made_of,
           bool side_by_side) {
  const bool has_groups = std::ranges::any_of(graph.nodes, [](const Node& node) { return node.group.has_value(); });
  if (has_groups) return graph;
  // A node that nothing needs would have its say in what loops there are.
  std::vector<NodeId> needed;
  if (made_of != nullptr) {
    const std::vector<bool> stays = needed_nodes(graph);
    for (size_t n = 0; n < stays.size(); ++n)
      if (stays[n]) needed.emplace_back(n);
  }
  graph = dead_code(std::move(graph));
  FusionGroups groups(graph, known);
  fuse_loops(groups);
  share_operand(groups, matmuls);
  fuse_epilogues(groups, matmuls);
  if (side_by_side) fuse_side_by_side(groups);
  Graph fused = write_groups(groups, made_of);
  if (made_of != nullptr)
    for (NodeId& node : *made_of) node = needed[node.index()];
  return fused;
}

}  // namespace stepc
