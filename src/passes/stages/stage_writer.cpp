#include "passes/stages/stage_writer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

void check_can_be_cut(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    USER_CHECK(!is_host_code(node), "host code of the program runs inside the step, which cannot be cut into stages");
    USER_CHECK(!node.aten || !node.aten->draws,
               "{} draws random numbers that only a step as a whole can draw again: it cannot be cut into stages",
               node.op);
  }
  for (const GraphOutput& output : graph.outputs)
    USER_CHECK(output.kind != GraphOutput::Kind::kRebind && output.kind != GraphOutput::Kind::kNumber,
               "the step gives {} '{}' another tensor, and cannot be cut into stages", name_of(output.owner),
               output.key);
}

}  // namespace

uint32_t batch_tensors(const Graph& graph) {
  uint32_t count = 0;
  for (const GraphInput& input : graph.inputs)
    if (input.kind == InputKind::kBatch) count = std::max(count, static_cast<uint32_t>(std::stoul(input.key)) + 1);
  return count;
}

StageWriter::StageWriter(const Graph& graph, int64_t stages, std::vector<StageFunction> functions, MadeIn made_in)
    : graph_(graph), made_in_(std::move(made_in)) {
  check_can_be_cut(graph);
  cut_.stages = stages;
  cut_.batch = batch_tensors(graph);
  cut_.functions = std::move(functions);
  for (const GraphInput& input : graph.inputs) cut_.draws |= input.kind == InputKind::kRng;
  for (uint32_t o = 0; o < graph.outputs.size(); ++o) {
    if (graph.outputs[o].kind != GraphOutput::Kind::kReturn) continue;
    returned_at_[o] = static_cast<uint32_t>(cut_.returns.size());
    cut_.returns.push_back(graph.type(graph.outputs[o].tensor));
  }
}

uint32_t StageWriter::value_of(TensorId tensor, uint32_t maker) {
  const auto [known, is_new] = values_.try_emplace(tensor, static_cast<uint32_t>(cut_.values.size()));
  if (is_new) {
    cut_.values.push_back({graph_.type(tensor), maker});
    tensor_of_.push_back(tensor);
  }
  return known->second;
}

StageCut StageWriter::write(const std::vector<std::vector<StageOutput>>& outputs) {
  for (auto f = static_cast<uint32_t>(cut_.functions.size()); f-- > 0;) write_function(f, outputs[f]);
  for (StageValue& value : cut_.values) std::ranges::sort(value.users);
  std::set<uint32_t> returned;
  for (const StageFunction& function : cut_.functions)
    returned.insert(function.returns.begin(), function.returns.end());
  INTERNAL_CHECK_EQ(returned.size(), cut_.returns.size(), "of what the step returns, what some stage does");
  return std::move(cut_);
}

void StageWriter::write_function(uint32_t function, const std::vector<StageOutput>& outputs) {
  StageFunction& out = cut_.functions[function];
  std::vector<TensorId> wanted;
  for (const StageOutput& output : outputs) wanted.push_back(output.tensor);
  for (uint32_t v = 0; v < cut_.values.size(); ++v) {
    if (cut_.values[v].maker != function) continue;
    out.gives.push_back(v);
    wanted.push_back(tensor_of_[v]);
  }
  // What it computes, and what it is given.
  std::vector<bool> is_needed(graph_.nodes.size()), is_seen(graph_.tensors.size());
  std::set<TensorId> taken, inputs;
  std::vector<TensorId> open = wanted;
  while (!open.empty()) {
    const TensorId tensor = open.back();
    open.pop_back();
    if (is_seen[tensor.index()]) continue;
    is_seen[tensor.index()] = true;
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid()) {
      inputs.insert(tensor);
      continue;
    }
    if (const auto maker = made_in_(tensor, function); maker && *maker != function) {
      INTERNAL_CHECK_LT(*maker, function, "{} needs what {} makes", out.name, cut_.functions[*maker].name);
      taken.insert(tensor);
      continue;
    }
    if (is_needed[producer.index()]) continue;
    is_needed[producer.index()] = true;
    for (TensorId input : graph_.nodes[producer.index()].inputs) open.push_back(input);
  }

  Graph& graph = out.graph;
  graph.mesh = graph_.mesh;
  std::vector<TensorId> now(graph_.tensors.size());
  std::map<uint32_t, uint32_t> input_at;
  for (const StageOutput& output : outputs)  // what is updated is there, whether it is read or not
    if (graph_.outputs[output.output].kind == GraphOutput::Kind::kUpdate)
      inputs.insert(graph_.inputs[graph_.outputs[output.output].input].tensor);
  for (uint32_t i = 0; i < graph_.inputs.size(); ++i) {
    const TensorId tensor = graph_.inputs[i].tensor;
    if (!inputs.contains(tensor)) continue;
    input_at[i] = static_cast<uint32_t>(graph.inputs.size());
    now[tensor.index()] = graph.add_input(graph_.inputs[i], graph_.type(tensor));
  }
  for (const TensorId tensor : taken) {
    const uint32_t value = value_of(tensor, *made_in_(tensor, function));
    cut_.values[value].users.push_back(function);
    now[tensor.index()] =
        graph.add_input({InputKind::kBatch, str("{}", cut_.batch + out.takes.size()), {}, {}, 0}, graph_.type(tensor));
    out.takes.push_back(value);
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (!is_needed[n]) continue;
    Node node = graph_.nodes[n];
    std::vector<TensorType> types;
    for (TensorId& input : node.inputs) input = now[input.index()];
    for (TensorId output : node.outputs) types.push_back(graph_.type(output));
    const NodeId made = graph.add_node(std::move(node), types);
    for (size_t k = 0; k < types.size(); ++k)  // one that is taken too stays what was taken
      if (TensorId& stands = now[graph_.nodes[n].outputs[k].index()]; !stands.valid())
        stands = graph.nodes[made.index()].outputs[k];
  }
  for (const StageOutput& output : outputs) {
    GraphOutput one = graph_.outputs[output.output];
    one.tensor = now[output.tensor.index()];
    if (one.kind == GraphOutput::Kind::kUpdate) one.input = input_at.at(one.input);
    if (one.kind == GraphOutput::Kind::kReturn) continue;
    graph.outputs.push_back(std::move(one));
  }
  for (const StageOutput& output : outputs) {
    if (graph_.outputs[output.output].kind != GraphOutput::Kind::kReturn) continue;
    GraphOutput one = graph_.outputs[output.output];
    one.tensor = now[output.tensor.index()];
    graph.outputs.push_back(std::move(one));
    out.returns.push_back(returned_at_.at(output.output));
  }
  for (const uint32_t value : out.gives) {
    GraphOutput one;
    one.tensor = now[tensor_of_[value].index()];
    graph.outputs.push_back(std::move(one));
  }
}

}  // namespace stepc
