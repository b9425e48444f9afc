#include "cost/target.h"

#include <algorithm>

#include "ops/op_def.h"

namespace stepc {

double seconds_of(const Graph& graph, const Node& node, const Target& target) {
  if (node.aten) {
    double bytes = 0;
    for (TensorId input : node.inputs) bytes += static_cast<double>(bytes_of(graph.type(input)));
    for (TensorId output : node.outputs) bytes += static_cast<double>(bytes_of(graph.type(output)));
    return bytes / target.bytes_per_second;
  }
  const OpDef& op = op_def(node.op);
  const OpCall call = call_of(graph, node);
  return std::max(flops_of(op, call) / target.flops_per_second, bytes_moved(op, call) / target.bytes_per_second);
}

}  // namespace stepc
