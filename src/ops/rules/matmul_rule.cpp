#include "ops/rules/matmul_rule.h"

#include "ops/op_def.h"

namespace stepc {

bool runs_blocked(const Graph& graph, const Node& node, const MatmulRule& rule) {
  if (!has(node, Trait::kContraction)) return false;
  const TensorType& left = graph.type(node.inputs[0]);
  const TensorType& right = graph.type(node.inputs[1]);
  if (!rule.takes(left.dtype) || left.shape.size() != 2 || right.shape.size() != 2) return false;
  if (element_count(left.shape) == 0 || element_count(right.shape) == 0) return false;
  return !node.attrs.get<bool>("transpose_a") || bytes_of(left) <= rule.most_transposed_bytes;
}

}  // namespace stepc
