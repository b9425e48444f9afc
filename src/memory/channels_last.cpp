#include "memory/channels_last.h"

#include <algorithm>

#include "ops/op_def.h"

namespace stepc {

namespace {

bool is_number(const Graph& graph, TensorId tensor) { return graph.shape(tensor).empty(); }

// Strides of dimensions of one element say nothing.
bool lie_alike(const Shape& sizes, const Shape& a, const Shape& b) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

// The shape of a group's loop: of the first result that is no number.
const Shape* loop_shape(const Graph& graph, std::span<const Node> nodes) {
  for (const Node& node : nodes)
    for (TensorId output : node.outputs)
      if (!is_number(graph, output)) return &graph.shape(output);
  return nullptr;
}

// The tensors that opaque calls alone read, so often or more, all of them as `is_so` says of one's input.
std::vector<bool> read_alike(const Graph& graph, size_t least,
                             const std::function<bool(const AtenCall&, size_t, const Shape&)>& is_so) {
  std::vector<size_t> readers(graph.tensors.size(), 0);
  std::vector<bool> otherwise(graph.tensors.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const size_t input = node.inputs[i].index();
      const Shape& shape = graph.tensors[input].type.shape;
      if (node.aten && element_count(shape) > 0 && is_so(*node.aten, i, shape))
        ++readers[input];
      else
        otherwise[input] = true;
    }
  }
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) otherwise[output.tensor.index()] = true;
  std::vector<bool> alike(graph.tensors.size());
  for (size_t t = 0; t < alike.size(); ++t) alike[t] = readers[t] >= least && !otherwise[t];
  return alike;
}

}  // namespace

Shape channels_last_group(const Graph& graph, std::span<const Node> nodes,
                          const std::function<const Shape&(TensorId)>& strides_of) {
  const Shape* shape = loop_shape(graph, nodes);
  const Shape strides = shape == nullptr ? Shape() : channels_last_strides(*shape);
  if (strides.empty() || element_count(*shape) == 0 || is_dense(*shape, strides)) return {};
  const auto fits = [&](TensorId tensor) { return is_number(graph, tensor) || graph.shape(tensor) == *shape; };
  bool reads_any = false;
  for (const Node& node : nodes) {
    const bool of_numbers = std::ranges::all_of(node.outputs, [&](TensorId id) { return is_number(graph, id); }) &&
                            std::ranges::all_of(node.inputs, [&](TensorId id) { return is_number(graph, id); });
    if (node.aten || !(of_numbers || op_def(node.op).has(Trait::kElementwise))) return {};
    if (!std::ranges::all_of(node.outputs, fits) || !std::ranges::all_of(node.inputs, fits)) return {};
    for (TensorId input : node.inputs) {
      const Node* producer = graph.producer(input);
      const bool is_inside = producer != nullptr && producer->group == node.group;
      if (is_inside || is_number(graph, input)) continue;
      if (!lie_alike(*shape, strides_of(input), strides)) return {};
      reads_any = true;
    }
  }
  return reads_any ? strides : Shape();
}

Graph flattened(Graph group) {
  for (GraphTensor& tensor : group.tensors)
    if (!tensor.type.shape.empty()) tensor.type.shape = {element_count(tensor.type.shape)};
  for (GraphInput& input : group.inputs) input.strides.clear();
  for (GraphOutput& output : group.outputs) output.strides.clear();
  return group;
}

std::vector<bool> wanted_channels_last(const Graph& graph) {
  return read_alike(graph, 1, [](const AtenCall& call, size_t input, const Shape& shape) {
    const Shape strides = channels_last_strides(shape);
    return !strides.empty() && !is_dense(shape, strides) && std::ranges::any_of(call.layouts, [&](const auto& layout) {
      return layout.first == input && layout.second == strides;
    });
  });
}

std::vector<bool> wanted_contiguous(const Graph& graph) {
  return read_alike(graph, 2, [](const AtenCall& call, size_t input, const Shape&) {
    return std::ranges::find(call.layouts, input, &std::pair<uint32_t, Shape>::first) == call.layouts.end() &&
           std::ranges::find(call.writes, input) == call.writes.end();
  });
}

}  // namespace stepc
