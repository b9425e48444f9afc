#include "kernels/node_calls.h"

#include <algorithm>
#include <utility>

#include "ir/alignment.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

int64_t count_of(const Graph& graph, TensorId tensor) { return element_count(graph.shape(tensor)); }

bool is_single(const Graph& graph, TensorId tensor) { return count_of(graph, tensor) == 1; }

// Of tensors that are single values or of one size.
bool runs_by_chunk(const Graph& graph, const Node& node) {
  if (node.aten || node.outputs.size() != 1) return false;
  const OpDef& op = op_def(node.op);
  const auto single = [&](TensorId tensor) { return is_single(graph, tensor); };
  if (op.has(Trait::kReduction)) return op.decompose == nullptr && !single(node.inputs[0]) && single(node.outputs[0]);
  const bool of_numbers = std::ranges::all_of(node.inputs, single);
  if (of_numbers != single(node.outputs[0])) return false;
  return op.has(Trait::kElementwise) || (op.has(Trait::kConstant) && of_numbers);
}

// A view of all bytes of its operand is the operand where every tensor is one row of elements. Left as it is where a
// result would be an input itself.
Graph without_views_of_all(const Graph& group) {
  Graph flat;
  std::vector<TensorId> stands_for(group.tensors.size());
  for (const GraphInput& input : group.inputs)
    stands_for[input.tensor.index()] = flat.add_input(input, group.type(input.tensor));
  for (Node node : group.nodes) {
    for (TensorId& input : node.inputs) input = stands_for[input.index()];
    const std::vector<TensorId> results = std::exchange(node.outputs, {});
    const bool is_view = !node.aten && op_def(node.op).has(Trait::kSameBytes) &&
                         flat.type(node.inputs[0]).dtype == group.type(results[0]).dtype;
    if (is_view) {
      stands_for[results[0].index()] = node.inputs[0];
      continue;
    }
    std::vector<TensorType> types;
    for (TensorId result : results) types.push_back(group.type(result));
    const NodeId made = flat.add_node(std::move(node), types);
    for (size_t r = 0; r < results.size(); ++r) stands_for[results[r].index()] = flat.nodes[made.index()].outputs[r];
  }
  for (GraphOutput output : group.outputs) {
    output.tensor = stands_for[output.tensor.index()];
    if (flat.producer(output.tensor) == nullptr) return group;
    flat.outputs.push_back(std::move(output));
  }
  return flat;
}

}  // namespace

std::optional<Graph> flat_nodes(Graph group) {
  group = without_views_of_all(group);
  int64_t count = 1;
  for (const GraphTensor& tensor : group.tensors) {
    const int64_t elements = element_count(tensor.type.shape);
    if (elements != 1 && count == 1) count = elements;
    if (elements != 1 && elements != count) return std::nullopt;
  }
  const auto has_strides = [](const auto& one) { return !one.strides.empty(); };
  if (count < 2 || std::ranges::any_of(group.inputs, has_strides) || std::ranges::any_of(group.outputs, has_strides))
    return std::nullopt;
  for (Node& node : group.nodes) {
    if (!runs_by_chunk(group, node)) return std::nullopt;
    const OpDef& op = op_def(node.op);
    if (op.has(Trait::kReduction)) node.attrs = {{"dims", Shape{0}}, {"keepdim", false}};
    if (op.has(Trait::kShapeAttr)) node.attrs.set("shape", Shape());
    if (!op.has(Trait::kReduction)) continue;
    // All of it is there at the end alone.
    for (const Node& reader : group.nodes)
      if (std::ranges::find(reader.inputs, node.outputs[0]) != reader.inputs.end()) return std::nullopt;
  }
  for (GraphTensor& tensor : group.tensors)
    tensor.type.shape = element_count(tensor.type.shape) == 1 ? Shape() : Shape{count};
  return group;
}

std::vector<std::vector<TensorId>> dead_after(const Graph& flat) {
  std::vector<size_t> last(flat.tensors.size(), 0);
  for (size_t n = 0; n < flat.nodes.size(); ++n)
    for (TensorId input : flat.nodes[n].inputs) last[input.index()] = n;
  for (const GraphOutput& output : flat.outputs) last[output.tensor.index()] = flat.nodes.size();
  std::vector<std::vector<TensorId>> dead(flat.nodes.size() + 1);
  for (size_t n = 0; n < flat.nodes.size(); ++n) {
    const TensorId made = flat.nodes[n].outputs[0];
    dead[std::max(last[made.index()], n)].push_back(made);
  }
  return dead;
}

uint64_t bytes_between(const Graph& flat) {
  const auto bytes_of_chunk = [&](TensorId tensor) {
    const TensorType& type = flat.type(tensor);
    return aligned(static_cast<uint64_t>(std::min(element_count(type.shape), kElementsOfChunk) * size_of(type.dtype)));
  };
  const std::vector<std::vector<TensorId>> dead = dead_after(flat);
  uint64_t live = 0, most = 0, widest = 0;
  for (size_t t = 0; t < flat.tensors.size(); ++t) widest = std::max(widest, bytes_of_chunk(TensorId(t)));
  for (size_t n = 0; n < flat.nodes.size(); ++n) {
    live += bytes_of_chunk(flat.nodes[n].outputs[0]);
    most = std::max(most, live);
    for (TensorId made : dead[n]) live -= bytes_of_chunk(made);
  }
  return most + widest;
}

}  // namespace stepc
