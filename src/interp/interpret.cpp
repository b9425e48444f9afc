#include "interp/interpret.h"

#include "base/check.h"
#include "interp/evaluate.h"

namespace stepc {

std::vector<Array> interpret(const Graph& graph, const std::vector<Array>& inputs) {
  INTERNAL_CHECK_EQ(inputs.size(), graph.inputs.size());
  std::vector<Array> values(graph.tensors.size());
  std::vector<uint32_t> uses = use_counts(graph);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorId id = graph.inputs[i].tensor;
    INTERNAL_CHECK(inputs[i].type == graph.type(id), "input {} is {} and the graph's {}", i, to_text(inputs[i].type),
                   to_text(graph.type(id)));
    values[id.index()] = inputs[i];
  }
  for (const Node& node : graph.nodes) {
    if (is_host_code(node)) {  // changes nothing
      for (const HostCode::Slot& slot : host_code_of(node).slots) values[slot.after.index()] = values[slot.before.index()];
      continue;
    }
    USER_CHECK(!node.aten, "{} (in '{}') is no op of stepc's own and cannot be interpreted", node.op,
               node.source.module);
    std::vector<Array> arguments;
    for (TensorId input : node.inputs) {
      arguments.push_back(values[input.index()]);
      if (--uses[input.index()] == 0) values[input.index()] = Array();
    }
    std::vector<Array> results = evaluate(op_def(node.op), arguments, node.attrs);
    for (size_t k = 0; k < results.size(); ++k)
      if (uses[node.outputs[k].index()] > 0) values[node.outputs[k].index()] = std::move(results[k]);
  }
  std::vector<Array> outputs;
  for (const GraphOutput& output : graph.outputs)
    outputs.push_back(output.tensor.valid() ? values[output.tensor.index()] : Array());
  return outputs;
}

Graph in_double(const Graph& graph) {
  Graph out = graph;
  for (GraphTensor& tensor : out.tensors)
    if (is_floating(tensor.type.dtype)) tensor.type.dtype = DType::kF64;
  for (Node& node : out.nodes) {
    const Attrs attrs = node.attrs;
    for (const Attr& attr : attrs.list()) {
      const DType* dtype = std::get_if<DType>(&attr.value);
      if (dtype != nullptr && is_floating(*dtype)) node.attrs.set(attr.name, DType::kF64);
    }
  }
  return out;
}

Array in_double(const Array& array) {
  Array out = array;
  if (out.is_real()) out.type.dtype = DType::kF64;
  return out;
}

}  // namespace stepc
