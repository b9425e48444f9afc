#include "cost/target.h"

#include <algorithm>
#include <optional>

#include "ops/op_def.h"

namespace stepc {

namespace {

double bytes_of_tensor(const Graph& graph, TensorId tensor) {
  return static_cast<double>(bytes_of(graph.type(tensor)));
}

// Of what a view shows, no more than there is.
double bytes_behind(const Graph& graph, TensorId tensor) {
  double bytes = bytes_of_tensor(graph, tensor);
  for (const Node* node = graph.producer(tensor); node != nullptr && is_view(*node);
       node = graph.producer(node->inputs[0]))
    bytes = std::min(bytes, bytes_of_tensor(graph, node->inputs[0]));
  return bytes;
}

// What the nodes read of an input: all of it, or as much as the ops say that look at some of it.
double bytes_read(const Graph& graph, const std::vector<NodeId>& nodes, TensorId input) {
  double bytes = 0;
  for (NodeId id : nodes) {
    const Node& node = graph.nodes[id.index()];
    if (std::ranges::find(node.inputs, input) == node.inputs.end()) continue;
    const OpDef* op = node.aten ? nullptr : &op_def(node.op);
    if (op == nullptr || op->bytes == nullptr) return bytes_behind(graph, input);
    bytes += bytes_moved(*op, call_of(graph, node));
  }
  return std::min(bytes, bytes_behind(graph, input));
}

void add_flops(const Graph& graph, const Node& node, Work& work) {
  if (node.aten && !node.aten->rule) return;
  const OpCall call = call_of(graph, node);
  const bool is_narrow = !call.inputs.empty() && is_floating(call.in(0).dtype) && size_of(call.in(0).dtype) <= 2;
  (is_narrow ? work.narrow_flops : work.flops) += node.aten ? node.aten->rule->flops : flops_of(op_def(node.op), call);
}

// What its row or, of its own operator, the program says; none: operands and results.
std::optional<double> bytes_said(const Graph& graph, const Node& node) {
  if (node.aten) return node.aten->rule ? node.aten->rule->bytes : std::nullopt;
  const OpDef& op = op_def(node.op);
  return op.bytes == nullptr ? std::nullopt : std::optional(bytes_moved(op, call_of(graph, node)));
}

}  // namespace

Work& operator+=(Work& sum, const Work& more) {
  sum.flops += more.flops;
  sum.narrow_flops += more.narrow_flops;
  sum.bytes += more.bytes;
  return sum;
}

Work work_of(const Graph& graph, const Node& node) {
  Work work;
  add_flops(graph, node, work);
  if (!node.aten) {
    work.bytes = bytes_moved(op_def(node.op), call_of(graph, node));
    return work;
  }
  if (const auto said = bytes_said(graph, node)) {
    work.bytes = *said;
    return work;
  }
  for (TensorId input : node.inputs) work.bytes += bytes_of_tensor(graph, input);
  for (TensorId output : node.outputs) work.bytes += bytes_of_tensor(graph, output);
  return work;
}

Work work_of(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<TensorId>& inputs,
             const std::vector<TensorId>& outputs) {
  Work work;
  for (NodeId node : nodes) add_flops(graph, graph.nodes[node.index()], work);
  const auto said = nodes.size() == 1 ? bytes_said(graph, graph.nodes[nodes.front().index()]) : std::nullopt;
  if (said) {
    work.bytes = *said;
    return work;
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (std::find(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(i), inputs[i]) ==
        inputs.begin() + static_cast<std::ptrdiff_t>(i))
      work.bytes += bytes_read(graph, nodes, inputs[i]);
  for (TensorId output : outputs) work.bytes += bytes_of_tensor(graph, output);
  return work;
}

double seconds_of(const Work& work, const Target& target) {
  return std::max(work.flops / target.flops_per_second + work.narrow_flops / target.narrow_flops_per_second,
                  work.bytes / target.bytes_per_second);
}

double seconds_of(const Graph& graph, const Node& node, const Target& target) {
  return seconds_of(work_of(graph, node), target);
}

}  // namespace stepc
