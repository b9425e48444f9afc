#include "passes/stages/batch_part.h"

#include <set>
#include <utility>

#include "base/check.h"
#include "passes/stages/batch_rounds.h"

namespace stepc {

BatchPart::BatchPart(const Graph& whole, Mesh mesh, Along along) : whole_(whole), along_(std::move(along)) {
  b_.graph().mesh = std::move(mesh);
  now_.resize(whole.tensors.size());
  input_at_.resize(whole.inputs.size());
}

TensorId BatchPart::add_batch(size_t place, const TensorType& type) {
  return b_.graph().add_input({InputKind::kBatch, str("{}", place), {}, {}, 0}, type);
}

uint32_t BatchPart::held(const std::string& key, const TensorType& type) {
  const auto [known, is_new] = held_at_.try_emplace(key, static_cast<uint32_t>(b_.graph().inputs.size()));
  if (is_new) b_.graph().add_input({InputKind::kGradient, key, {}, {}, 0}, type);
  return known->second;
}

uint32_t BatchPart::keep_input(uint32_t input) {
  if (!input_at_[input]) {
    input_at_[input] = static_cast<uint32_t>(b_.graph().inputs.size());
    GraphInput kept = whole_.inputs[input];
    now_[kept.tensor.index()] = b_.graph().add_input(kept, whole_.type(kept.tensor));
  }
  return *input_at_[input];
}

void BatchPart::compute(const std::vector<TensorId>& wanted) {
  std::vector<bool> is_needed(whole_.nodes.size());
  std::set<TensorId> inputs;
  std::vector<TensorId> open = wanted;
  while (!open.empty()) {
    const TensorId tensor = open.back();
    open.pop_back();
    if (now_[tensor.index()].valid()) continue;
    const NodeId producer = whole_.tensors[tensor.index()].producer;
    if (!producer.valid()) {
      inputs.insert(tensor);
      continue;
    }
    if (is_needed[producer.index()]) continue;
    is_needed[producer.index()] = true;
    for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
  }
  for (uint32_t i = 0; i < whole_.inputs.size(); ++i)
    if (inputs.contains(whole_.inputs[i].tensor)) keep_input(i);
  for (size_t n = 0; n < whole_.nodes.size(); ++n)
    if (is_needed[n]) add(whole_.nodes[n]);
}

void BatchPart::give_back(TensorId tensor) {
  GraphOutput output;
  output.tensor = tensor;
  b_.graph().outputs.push_back(std::move(output));
}

void BatchPart::update(uint32_t input, TensorId tensor) {
  GraphOutput output;
  output.kind = GraphOutput::Kind::kUpdate;
  output.input = input;
  output.tensor = tensor;
  b_.graph().outputs.push_back(std::move(output));
}

void BatchPart::add(const Node& node) {
  b_.set_source(node.source);
  if (is_along_turns(whole_, node)) {
    INTERNAL_CHECK(along_ != nullptr, "{} is not of this part", described(node));
    now_[node.outputs[0].index()] = along_(b_, node, now_[node.inputs[0].index()]);
    return;
  }
  Node made = node;
  std::vector<TensorType> types;
  for (TensorId& input : made.inputs) input = now_[input.index()];
  for (TensorId output : node.outputs) types.push_back(whole_.type(output));
  const NodeId id = b_.graph().add_node(std::move(made), types);
  for (size_t k = 0; k < types.size(); ++k)  // one that stands for another already stays
    if (TensorId& stands = now_[node.outputs[k].index()]; !stands.valid())
      stands = b_.graph().nodes[id.index()].outputs[k];
}

}  // namespace stepc
