#include "passes/fusion/fuse.h"

#include <algorithm>

#include "passes/fusion/fuse_epilogues.h"
#include "passes/fusion/fuse_loops.h"
#include "passes/fusion/share_operand.h"
#include "passes/fusion/write_groups.h"
#include "passes/rewrite/dead_code.h"

namespace stepc {

Graph fuse(Graph graph, const MatmulRule& matmuls) {
  KnownGroups known;
  return fuse(std::move(graph), matmuls, known);
}

Graph fuse(Graph graph, const MatmulRule& matmuls, KnownGroups& known) {
  const bool has_groups = std::ranges::any_of(graph.nodes, [](const Node& node) { return node.group.has_value(); });
  if (has_groups) return graph;
  // A node that nothing needs would have its say in what loops there are.
  graph = dead_code(std::move(graph));
  FusionGroups groups(graph, known);
  fuse_loops(groups);
  share_operand(groups, matmuls);
  fuse_epilogues(groups, matmuls);
  return write_groups(groups);
}

}  // namespace stepc
