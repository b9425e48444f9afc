#include "passes/fusion/share_operand.h"

namespace stepc {

namespace {

bool join(const FusionGroups& groups, size_t node, FusionGroup& call) {
  if (call.nodes.empty() || call.nodes.size() == kMostMatmuls) return false;
  const Graph& graph = groups.graph();
  const size_t first = call.nodes.front();
  if (node - first > FusionGroups::kNearby || graph.nodes[node].source.phase != graph.nodes[first].source.phase)
    return false;
  FusionGroups::Nodes members(call.nodes.begin(), call.nodes.end());
  members.insert(node);
  const std::optional<double> slot = groups.find_slot(members, call.slot);
  if (!slot) return false;
  call.slot = *slot;
  call.nodes.push_back(node);
  return true;
}

void keep(FusionGroups& groups, const FusionGroup& call) {
  if (call.nodes.size() < 2) return;
  groups.set(groups.add(), call);
}

}  // namespace

void share_operand(FusionGroups& groups, const MatmulRule& rule) {
  const Graph& graph = groups.graph();
  std::map<std::pair<TensorId, bool>, std::vector<size_t>> sharing;  // by left operand and whether it is transposed
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (runs_blocked(graph, node, rule)) sharing[{node.inputs[0], node.attrs.get<bool>("transpose_a")}].push_back(n);
  }
  for (const auto& [operand, nodes] : sharing) {
    FusionGroup call;
    for (size_t n : nodes) {
      if (join(groups, n, call)) continue;
      keep(groups, call);
      call = {{n}, static_cast<double>(n), true};
    }
    keep(groups, call);
  }
}

}  // namespace stepc
