#include "interp/interpret.h"

#include <algorithm>

#include "base/check.h"
#include "interp/evaluate.h"
#include "ops/op_def.h"

namespace stepc {

namespace {
void run_host_code(const Node& node, const HostCodeFn& host, std::vector<Array>& values) {
  const HostCode code = host_code_of(node);
  std::vector<Array> given, slots;
  for (const HostCode::Given& one : code.given)
    given.push_back(one.tensor.valid() ? values[one.tensor.index()] : Array());
  for (const HostCode::Slot& slot : code.slots) slots.push_back(values[slot.before.index()]);
  if (host) host(code, given, slots);
  for (size_t s = 0; s < slots.size(); ++s) values[code.slots[s].after.index()] = std::move(slots[s]);
}
}  // namespace

std::vector<Array> interpret(const Graph& graph, const std::vector<Array>& inputs, const HostCodeFn& host,
                             const AtenCallFn& aten) {
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
    if (is_host_code(node)) {
      run_host_code(node, host, values);
      continue;
    }
    USER_CHECK(!node.aten || aten, "{} (in '{}') is no op of stepc's own and cannot be interpreted", node.op,
               node.source.module);
    std::vector<Array> arguments;
    for (TensorId input : node.inputs) {
      arguments.push_back(values[input.index()]);
      if (--uses[input.index()] == 0) values[input.index()] = Array();
    }
    std::vector<Array> results = node.aten ? aten(node, arguments) : evaluate(op_def(node.op), arguments, node.attrs);
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

bool reads_bits(const Graph& graph) {
  return std::ranges::any_of(
      graph.nodes, [](const Node& node) { return has(node, Trait::kSameBytes) && !has(node, Trait::kShapeAttr); });
}

Array in_double(const Array& array) {
  Array out = array;
  if (out.is_real()) out.type.dtype = DType::kF64;
  return out;
}

}  // namespace stepc
