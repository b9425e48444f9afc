#include "passes/rewriter.h"

#include "base/check.h"

namespace stepc {

Rewriter::Rewriter(const Graph& old, const std::vector<bool>& drop)
    : old_(old), now_(old.tensors.size()), input_places_(old.inputs.size(), 0) {
  builder_.graph().mesh = old.mesh;
  for (size_t i = 0; i < old.inputs.size(); ++i) {
    if (!drop.empty() && drop[i]) continue;
    input_places_[i] = static_cast<uint32_t>(builder_.graph().inputs.size());
    const TensorId tensor = old.inputs[i].tensor;
    now_[tensor.index()] = builder_.graph().add_input(old.inputs[i], old.type(tensor));
    builder_.graph().tensors.back().sharding = old.tensors[tensor.index()].sharding;
  }
}

TensorId Rewriter::operator[](TensorId old) const {
  const TensorId now = now_[old.index()];
  INTERNAL_CHECK(now.valid(), "%{} has been dropped and is used", old);
  return now;
}

std::vector<TensorId> Rewriter::inputs_of(const Node& node) const {
  std::vector<TensorId> inputs;
  for (TensorId input : node.inputs) inputs.push_back((*this)[input]);
  return inputs;
}

const std::vector<TensorId>& Rewriter::keep(const Node& node) {
  at(node);
  Node copy = node;
  copy.inputs = inputs_of(node);
  if (is_host_code(node))
    for (int64_t& input : std::get<std::vector<int64_t>>(copy.aten->args[3]))
      input = input_places_[static_cast<size_t>(input)];
  std::vector<TensorType> types;
  for (TensorId output : node.outputs) types.push_back(old_.type(output));
  const NodeId id = builder_.graph().add_node(std::move(copy), types);
  const std::vector<TensorId>& made = builder_.graph().nodes[id.index()].outputs;
  for (size_t k = 0; k < made.size(); ++k)
    builder_.graph().tensors[made[k].index()].sharding = old_.tensors[node.outputs[k].index()].sharding;
  replace(node.outputs, made);
  return made;
}

void Rewriter::replace(TensorId old, TensorId now) {
  INTERNAL_CHECK(old_.type(old) == builder_.type(now), "a {} is replaced by a {}", to_text(old_.type(old)),
                 to_text(builder_.type(now)));
  now_[old.index()] = now;
}

void Rewriter::replace(const std::vector<TensorId>& old, const std::vector<TensorId>& now) {
  INTERNAL_CHECK_EQ(old.size(), now.size());
  for (size_t i = 0; i < old.size(); ++i) replace(old[i], now[i]);
}

Graph Rewriter::finish() {
  for (GraphOutput output : old_.outputs) {
    if (output.tensor.valid()) output.tensor = (*this)[output.tensor];
    if (output.kind == GraphOutput::Kind::kUpdate) output.input = input_places_[output.input];
    builder_.graph().outputs.push_back(std::move(output));
  }
  return builder_.take();
}

}  // namespace stepc
