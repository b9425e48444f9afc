#include "memory/in_place.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "ops/unconnected_parts.h"

namespace stepc::memory {
namespace {

int64_t count_of(const Graph& graph, TensorId tensor) { return element_count(graph.shape(tensor)); }
bool is_single(const Graph& graph, TensorId tensor) { return count_of(graph, tensor) == 1; }

// Whether each element of the results, `count` or single, is made from the operands' elements at its place and from
// single values. A composite is what its decomposition says. What is broadcast has fewer elements: shapes of as many
// differ by views alone, which move none.
bool is_pointwise(const Graph& graph, const Node& node, int64_t count) {
  if (node.aten) return false;
  const auto fits = [&](TensorId tensor) { return count_of(graph, tensor) == count || is_single(graph, tensor); };
  const auto single = [&](TensorId tensor) { return is_single(graph, tensor); };
  if (!std::ranges::all_of(node.outputs, fits)) return false;
  const OpDef& op = op_def(node.op);
  if (op.has(Trait::kElementwise)) return true;
  if (std::ranges::all_of(node.outputs, single) && std::ranges::all_of(node.inputs, single)) return true;
  if (op.decompose == nullptr) return false;
  GraphBuilder builder;
  std::vector<TensorId> inputs;
  for (TensorId input : node.inputs) inputs.push_back(builder.graph().add_input({}, graph.type(input)));
  op.decompose(builder, inputs, node.attrs);
  const Graph parts = builder.take();
  return std::ranges::all_of(parts.nodes, [&](const Node& part) { return is_pointwise(parts, part, count); });
}

std::vector<InPlace> overwritten(const Graph& graph, const Roots& roots, const Node& node) {
  std::vector<InPlace> pairs;
  const auto add = [&](size_t input, TensorId result) {
    const TensorId root = roots[node.inputs[input]];
    if (!roots.whole[node.inputs[input].index()] || bytes_of(graph.type(root)) != bytes_of(graph.type(result))) return;
    for (size_t i = 0; i < node.inputs.size(); ++i)  // an opaque call names an argument once for every place it has
      if (i != input && roots[node.inputs[i]] == root) return;
    pairs.push_back({root, result});
  };
  if (!node.aten) {
    if (op_def(node.op).has(Trait::kOverwrites)) add(0, node.outputs[0]);
    if (collective_of(node) == Collective::kAllReduce || collective_of(node) == Collective::kWait)
      for (size_t k = 0; k < node.outputs.size(); ++k) add(k, node.outputs[k]);
    return pairs;
  }
  if (is_host_code(node)) return pairs;  // its results lie in the program's memory
  const std::vector<uint32_t>& writes = node.aten->writes;
  const size_t fresh = node.outputs.size() - writes.size();
  for (size_t w = 0; w < writes.size(); ++w) add(writes[w], node.outputs[fresh + w]);
  return pairs;
}

}  // namespace

Roots roots_of(const Graph& graph, const std::vector<bool>& copied) {
  std::vector<bool> leaves_group(graph.tensors.size(), false);
  const auto group_of = [&](TensorId id) {
    const Node* producer = graph.producer(id);
    return producer == nullptr ? std::nullopt : producer->group;
  };
  for (const Node& node : graph.nodes)
    for (TensorId input : node.inputs)
      if (group_of(input) && group_of(input) != node.group) leaves_group[input.index()] = true;
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid() && group_of(output.tensor)) leaves_group[output.tensor.index()] = true;

  Roots roots{{}, std::vector<bool>(graph.tensors.size(), true)};
  for (size_t t = 0; t < graph.tensors.size(); ++t) roots.root.emplace_back(t);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!is_view(node) || leaves_group[node.outputs[0].index()]) continue;
    if (!copied.empty() && copied[n]) continue;
    const size_t view = node.outputs[0].index();
    const size_t of = node.inputs[0].index();
    roots.root[view] = roots.root[of];
    roots.whole[view] = roots.whole[of] && has(node, Trait::kSameBytes);
  }
  return roots;
}

namespace {

// Of nodes that are connected.
std::vector<InPlace> pointwise_pairs(const Graph& graph, const Roots& roots, const std::vector<NodeId>& unit) {
  // A view inside that moves no byte is read through like one outside: what is scattered, or added to a sum over
  // micro-batches, has another shape than its parameter.
  std::vector<NodeId> nodes;
  for (NodeId id : unit) {
    const Node& node = graph.nodes[id.index()];
    if (!has(node, Trait::kSameBytes) || roots[node.outputs[0]] == node.outputs[0]) nodes.push_back(id);
  }
  int64_t count = 1;  // of the loop's elements; of what has others there must be a single value
  for (NodeId id : nodes)
    for (TensorId output : graph.nodes[id.index()].outputs)
      if (!is_single(graph, output)) count = count_of(graph, output);
  for (NodeId id : nodes)
    if (!is_pointwise(graph, graph.nodes[id.index()], count)) return {};

  std::vector<TensorId> operands, refused, results;  // refused: read in another way too
  for (NodeId id : nodes) {
    const Node& node = graph.nodes[id.index()];
    for (TensorId input : node.inputs) {
      const bool fits = roots.whole[input.index()] && count_of(graph, input) == count;
      std::vector<TensorId>& list = fits ? operands : refused;
      if (std::ranges::find(list, roots[input]) == list.end()) list.push_back(roots[input]);
    }
    for (TensorId output : node.outputs)  // a view of what another unit made is no result
      if (count_of(graph, output) == count && roots[output] == output) results.push_back(output);
  }
  std::vector<InPlace> pairs;
  for (TensorId result : results)
    for (TensorId operand : operands)
      if (std::ranges::find(refused, operand) == refused.end() &&
          bytes_of(graph.type(operand)) == bytes_of(graph.type(result)))
        pairs.push_back({operand, result});
  return pairs;
}

}  // namespace

std::vector<InPlace> in_place_pairs(const Graph& graph, const Roots& roots, const std::vector<NodeId>& unit) {
  if (unit.size() == 1) {
    std::vector<InPlace> pairs = overwritten(graph, roots, graph.nodes[unit[0].index()]);
    if (!pairs.empty()) return pairs;
  }
  // Parts run beside each other: what two of them read is written by neither.
  const std::vector<std::vector<NodeId>> parts = unconnected_parts(graph, unit);
  if (parts.size() == 1) return pointwise_pairs(graph, roots, unit);
  std::map<TensorId, size_t> readers;
  for (const std::vector<NodeId>& part : parts) {
    std::set<TensorId> read;
    for (NodeId id : part)
      for (TensorId input : graph.nodes[id.index()].inputs) read.insert(roots[input]);
    for (TensorId root : read) ++readers[root];
  }
  std::vector<InPlace> pairs;
  for (const std::vector<NodeId>& part : parts)
    for (const InPlace& pair : pointwise_pairs(graph, roots, part))
      if (readers[pair.operand] == 1) pairs.push_back(pair);
  return pairs;
}

}  // namespace stepc::memory
