#include "ir/graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "base/check.h"

namespace stepc {

bool is_of_a_layer(const Source& source) {
  return std::ranges::any_of(split(source.module, '.'), [](const std::string& name) {
    return !name.empty() && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  });
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

int64_t bytes_of(const TensorType& type) { return element_count(type.shape) * size_of(type.dtype); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

Shape channels_last_strides(const Shape& shape) {
  if (shape.size() != 4 && shape.size() != 5) return {};
  Shape strides(shape.size(), 1);
  int64_t stride = shape[1];
  for (size_t d = shape.size(); d-- > 2;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  strides[0] = stride;
  return strides;
}

bool is_dense(const Shape& shape, const Shape& strides) {
  const Shape contiguous = contiguous_strides(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1 && strides[d] != contiguous[d]) return element_count(shape) == 0;
  return true;
}

bool fills_block(const Shape& shape, const Shape& strides) {
  if (element_count(shape) == 0) return true;
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1) steps.emplace_back(strides[d], shape[d]);
  std::ranges::sort(steps);
  int64_t next = 1;
  for (const auto& [stride, size] : steps) {
    if (stride != next) return false;
    next *= size;
  }
  return true;
}

std::string to_text(const TensorType& type) { return str("{}[{}]", name_of(type.dtype), fmt::join(type.shape, ", ")); }

std::string_view name_of(InputKind kind) {
  switch (kind) {
    case InputKind::kParameter:
      return "parameter";
    case InputKind::kGradient:
      return "gradient";
    case InputKind::kOptimizerState:
      return "optimizer_state";
    case InputKind::kBuffer:
      return "buffer";
    case InputKind::kBatch:
      return "batch";
    case InputKind::kCaptured:
      return "captured";
    case InputKind::kHost:
      return "host";
    case InputKind::kIncoming:
      return "incoming";
    case InputKind::kScalar:
      return "scalar";
    case InputKind::kRng:
      return "rng";
    case InputKind::kMesh:
      return "mesh";
  }
  return "?";
}

InputKind kind_of(Owner owner) {
  switch (owner) {
    case Owner::kParameter:
      return InputKind::kParameter;
    case Owner::kGradient:
      return InputKind::kGradient;
    case Owner::kBuffer:
      return InputKind::kBuffer;
    case Owner::kOptimizerState:
      return InputKind::kOptimizerState;
    case Owner::kBatch:
      return InputKind::kBatch;
    case Owner::kIncoming:
      return InputKind::kIncoming;
    case Owner::kHost:
      return InputKind::kHost;
    case Owner::kCaptured:
    case Owner::kConstant:
      return InputKind::kCaptured;
  }
  return InputKind::kCaptured;
}

std::optional<Owner> owner_of(InputKind kind) {
  for (const Owner owner : {Owner::kParameter, Owner::kGradient, Owner::kBuffer, Owner::kOptimizerState, Owner::kBatch,
                            Owner::kIncoming, Owner::kHost, Owner::kCaptured})
    if (kind_of(owner) == kind) return owner;
  return std::nullopt;
}

std::string host_number_key(const HostEvent& event, CallId call, size_t arg) {
  return str("{}:{}:{}", event.key, call, arg);
}
std::string host_number_key(const HostEvent& event, CallId call, size_t arg, size_t element) {
  return str("{}:{}", host_number_key(event, call, arg), element);
}

std::string rng_key(GeneratorId generator) { return generator.index() == 0 ? "" : str("{}", generator); }
GeneratorId generator_of(const std::string& rng_key) { return GeneratorId(rng_key.empty() ? 0 : std::stoul(rng_key)); }

const Node* Graph::producer(TensorId id) const {
  const NodeId node = tensors[id.index()].producer;
  return node.valid() ? &nodes[node.index()] : nullptr;
}

TensorId Graph::add_input(GraphInput input, TensorType type) {
  input.tensor = TensorId(tensors.size());
  tensors.push_back({std::move(type), NodeId(), static_cast<uint32_t>(inputs.size())});
  inputs.push_back(std::move(input));
  return inputs.back().tensor;
}

NodeId Graph::add_node(Node node, const std::vector<TensorType>& output_types) {
  const NodeId id(nodes.size());
  node.outputs.clear();
  for (const TensorType& type : output_types) {
    const auto place = static_cast<uint32_t>(node.outputs.size());
    node.outputs.emplace_back(tensors.size());
    tensors.push_back({type, id, place});
  }
  nodes.push_back(std::move(node));
  return id;
}

bool is_host_code(const Node& node) { return node.op == kHostPause || node.op == kHostEvent; }

HostCode host_code_of(const Node& node) {
  INTERNAL_CHECK(is_host_code(node) && node.aten, "{} is no host code", node.op);
  const AtenCall& call = *node.aten;
  HostCode code;
  code.pauses = node.op == kHostPause;
  code.event = static_cast<uint32_t>(std::get<int64_t>(call.args.at(0)));
  for (ValueId value : std::get<std::vector<ValueId>>(call.args.at(1)))
    code.given.push_back({value.valid() ? node.inputs[value.index()] : TensorId(), {}});
  for (const auto& [place, strides] : call.layouts)
    for (size_t g = 0; g < code.given.size(); ++g)
      if (std::get<std::vector<ValueId>>(call.args[1])[g] == ValueId(place)) code.given[g].strides = strides;
  const auto& before = std::get<std::vector<ValueId>>(call.args.at(2));
  const auto& inputs = std::get<std::vector<int64_t>>(call.args.at(3));
  for (size_t s = 0; s < before.size(); ++s)
    code.slots.push_back({static_cast<uint32_t>(inputs.at(s)), node.inputs[before[s].index()], node.outputs.at(s)});
  return code;
}

Node node_of(const HostCode& code) {
  Node node;
  node.op = code.pauses ? kHostPause : kHostEvent;
  AtenCall& call = node.aten.emplace();
  call.draws = true;
  const auto add = [&](TensorId tensor) {
    node.inputs.push_back(tensor);
    return ValueId(node.inputs.size() - 1);
  };
  std::vector<ValueId> given, before;
  std::vector<int64_t> inputs;
  for (const HostCode::Given& one : code.given) {
    given.push_back(one.tensor.valid() ? add(one.tensor) : ValueId());
    if (one.tensor.valid() && !one.strides.empty()) call.layouts.emplace_back(node.inputs.size() - 1, one.strides);
  }
  for (const HostCode::Slot& slot : code.slots) {
    before.push_back(add(slot.before));
    call.writes.push_back(static_cast<uint32_t>(node.inputs.size() - 1));
    inputs.push_back(slot.input);
  }
  call.args = {static_cast<int64_t>(code.event), std::move(given), std::move(before), std::move(inputs)};
  return node;
}

std::vector<uint32_t> use_counts(const Graph& graph) {
  std::vector<uint32_t> counts(graph.tensors.size(), 0);
  for (const Node& node : graph.nodes)
    for (TensorId input : node.inputs) ++counts[input.index()];
  for (const GraphOutput& output : graph.outputs)
    if (output.tensor.valid()) ++counts[output.tensor.index()];
  return counts;
}

namespace {

void verify_tensor(const Graph& graph, TensorId id, NodeId producer, size_t place, std::vector<bool>& defined) {
  INTERNAL_CHECK_LT(id.index(), graph.tensors.size());
  const GraphTensor& tensor = graph.tensors[id.index()];
  INTERNAL_CHECK(!defined[id.index()], "%{} is defined twice", id);
  INTERNAL_CHECK(tensor.producer == producer && tensor.place == place, "%{} does not know where it is made", id);
  for (int64_t size : tensor.type.shape) INTERNAL_CHECK(size >= 0, "%{} has the shape {}", id, to_text(tensor.type));
  if (tensor.sharding) verify(*tensor.sharding, tensor.type.shape, graph.mesh);
  defined[id.index()] = true;
}

void verify_part(const Graph& graph, const std::optional<PartOf>& part, TensorId id) {
  if (!part) return;
  verify(part->sharding, part->shape, graph.mesh);
  INTERNAL_CHECK(local_shape(part->sharding, part->shape, graph.mesh) == graph.shape(id),
                 "%{} is a {} and a part of {}", id, to_text(graph.type(id)),
                 to_text(part->sharding, part->shape, graph.mesh));
}

void verify_aten_call(const Graph& graph, const Node& node, size_t index) {
  size_t next = 0;
  for_each_value(node.aten->args, [&](ValueId value) {
    INTERNAL_CHECK_EQ(value.index(), next, "node {} {} numbers its arguments out of order", index, node.op);
    ++next;
  });
  INTERNAL_CHECK_EQ(next, node.inputs.size(), "node {} {}", index, node.op);
  for (const auto& [input, strides] : node.aten->layouts) {
    INTERNAL_CHECK_LT(input, node.inputs.size(), "node {} {}", index, node.op);
    INTERNAL_CHECK_EQ(strides.size(), graph.shape(node.inputs[input]).size(), "node {} {}", index, node.op);
  }
  for (const auto& [output, strides] : node.aten->result_layouts) {
    INTERNAL_CHECK_LT(output + node.aten->writes.size(), node.outputs.size(), "node {} {}", index, node.op);
    INTERNAL_CHECK(strides == channels_last_strides(graph.shape(node.outputs[output])), "node {} {}", index, node.op);
  }
  if (node.aten->rule && node.aten->rule->dims) {
    INTERNAL_CHECK_EQ(node.aten->rule->dims->operands.size(), node.inputs.size(), "the rule of node {} {}", index,
                      node.op);
    INTERNAL_CHECK_EQ(node.aten->rule->dims->results.size(), node.outputs.size(), "the rule of node {} {}", index,
                      node.op);
  }
  next = 0;
  for_each_value(node.aten->results, [&](ValueId value) {
    INTERNAL_CHECK_EQ(value.index(), next, "node {} {} numbers its results out of order", index, node.op);
    ++next;
  });
  INTERNAL_CHECK_EQ(next + node.aten->writes.size(), node.outputs.size(), "node {} {}", index, node.op);
  for (size_t w = 0; w < node.aten->writes.size(); ++w) {
    INTERNAL_CHECK_LT(node.aten->writes[w], node.inputs.size(), "node {} {}", index, node.op);
    const TensorType& before = graph.type(node.inputs[node.aten->writes[w]]);
    const TensorType& after = graph.type(node.outputs[next + w]);
    INTERNAL_CHECK(before == after, "node {} {} writes a {} and gives a {}", index, node.op, to_text(before),
                   to_text(after));
  }
}

void verify_host_code(const Graph& graph, const Node& node, size_t index) {
  const std::vector<Arg>& args = node.aten->args;
  const bool has_form =
      args.size() == 4 && std::holds_alternative<int64_t>(args[0]) &&
      std::holds_alternative<std::vector<ValueId>>(args[1]) && std::holds_alternative<std::vector<ValueId>>(args[2]) &&
      std::holds_alternative<std::vector<int64_t>>(args[3]) && node.aten->results.empty() && node.aten->draws;
  INTERNAL_CHECK(has_form, "node {} {} is not written as host code is", index, node.op);
  const auto& before = std::get<std::vector<ValueId>>(args[2]);
  const auto& inputs = std::get<std::vector<int64_t>>(args[3]);
  INTERNAL_CHECK(before.size() == inputs.size() && before.size() == node.aten->writes.size(),
                 "node {} {} changes {} tensors of {} inputs", index, node.op, before.size(), inputs.size());
  for (size_t s = 0; s < before.size(); ++s) {
    const bool is_input = inputs[s] >= 0 && static_cast<size_t>(inputs[s]) < graph.inputs.size();
    INTERNAL_CHECK(is_input && before[s].valid() && node.aten->writes[s] == before[s].index(),
                   "node {} {}: what it changes of input {}", index, node.op, inputs[s]);
    const GraphInput& input = graph.inputs[static_cast<size_t>(inputs[s])];
    INTERNAL_CHECK(graph.type(input.tensor) == graph.type(node.outputs[s]), "node {} {} leaves another type in {} '{}'",
                   index, node.op, name_of(input.kind), input.key);
    INTERNAL_CHECK(input.kind != InputKind::kIncoming || node.op == kHostPause, "node {} {} fills incoming '{}'", index,
                   node.op, input.key);
  }
}

// What comes at a pause is read from the pause.
void verify_incoming(const Graph& graph, TensorId read, std::string_view where) {
  const GraphTensor& tensor = graph.tensors[read.index()];
  INTERNAL_CHECK(tensor.producer.valid() || graph.inputs[tensor.place].kind != InputKind::kIncoming,
                 "{} reads incoming '{}' before the pause", where, graph.inputs[tensor.place].key);
}

void verify_window(const Shape& shape, const Shape& strides, std::string_view what) {
  INTERNAL_CHECK(strides.empty() || strides.size() == shape.size(), "{} has {} strides and {} dimensions", what,
                 strides.size(), shape.size());
}

void verify_outputs(const Graph& graph, const std::vector<bool>& defined) {
  std::set<uint32_t> updated;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const GraphOutput& output = graph.outputs[i];
    if (!output.tensor.valid()) {
      INTERNAL_CHECK(output.kind == GraphOutput::Kind::kRebind || output.kind == GraphOutput::Kind::kReturn,
                     "output {} has no tensor", i);
      continue;
    }
    INTERNAL_CHECK_LT(output.tensor.index(), defined.size(), "output {}", i);
    INTERNAL_CHECK(defined[output.tensor.index()], "output {} is never made", i);
    verify_incoming(graph, output.tensor, "an output");
    verify_window(graph.shape(output.tensor), output.strides, "an output");
    verify_part(graph, output.part, output.tensor);
    const bool is_update = output.kind == GraphOutput::Kind::kUpdate;  // of what may be a sum: each rank keeps its own
    INTERNAL_CHECK(is_update || !output.part || output.part->sharding.partial.empty(),
                   "%{} leaves the step as a partial one", output.tensor);
    if (output.kind == GraphOutput::Kind::kGuard)
      INTERNAL_CHECK(graph.type(output.tensor) == (TensorType{DType::kBool, {}}), "guard {} is a {}", i,
                     to_text(graph.type(output.tensor)));
    if (output.kind == GraphOutput::Kind::kNumber)
      INTERNAL_CHECK(graph.shape(output.tensor).empty(), "number {} is a {}", i, to_text(graph.type(output.tensor)));
    if (output.kind != GraphOutput::Kind::kUpdate) continue;
    INTERNAL_CHECK_LT(output.input, graph.inputs.size(), "output {}", i);
    INTERNAL_CHECK(updated.insert(output.input).second, "input {} is updated twice", output.input);
    const TensorType& before = graph.type(graph.inputs[output.input].tensor);
    INTERNAL_CHECK(before == graph.type(output.tensor), "input {} is a {} and is updated with a {}", output.input,
                   to_text(before), to_text(graph.type(output.tensor)));
  }
}

void verify_groups(const Graph& graph) {
  std::set<uint32_t> seen;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const std::optional<uint32_t> group = graph.nodes[n].group;
    if (!group || (n > 0 && graph.nodes[n - 1].group == group)) continue;
    INTERNAL_CHECK(seen.insert(*group).second, "node {} {} continues group {} after a gap", n, graph.nodes[n].op,
                   *group);
  }
}

}  // namespace

namespace {
// `uses`: how often each tensor of the whole graph is read. What the group itself does not account for is read outside.
GroupGraph extract_group(const Graph& graph, std::span<const Node> nodes, const std::vector<uint32_t>& uses) {
  GroupGraph out;
  out.group = *nodes.front().group;
  std::map<TensorId, TensorId> inside;  // by tensor of the whole graph
  std::map<TensorId, uint32_t> uses_inside;
  const auto input_of = [&](TensorId id) {
    const auto key = str("{}", out.inputs.size());
    out.inputs.push_back(id);
    return out.graph.add_input({InputKind::kCaptured, key, {}, {}, 0}, graph.type(id));
  };
  for (const Node& node : nodes) {
    Node copy = node;
    copy.group.reset();
    for (TensorId& input : copy.inputs) {
      ++uses_inside[input];
      auto found = inside.find(input);
      if (found == inside.end()) found = inside.emplace(input, input_of(input)).first;
      input = found->second;
    }
    std::vector<TensorType> types;
    for (TensorId output : node.outputs) types.push_back(graph.type(output));
    const NodeId id = out.graph.add_node(std::move(copy), types);
    for (size_t k = 0; k < node.outputs.size(); ++k) inside[node.outputs[k]] = out.graph.nodes[id.index()].outputs[k];
  }
  for (const Node& node : nodes) {
    for (TensorId output : node.outputs) {
      if (uses[output.index()] == uses_inside[output]) continue;
      out.outputs.push_back(output);
      out.graph.outputs.emplace_back();
      out.graph.outputs.back().tensor = inside.at(output);
    }
  }
  return out;
}
}  // namespace

std::vector<GroupGraph> extract_groups(const Graph& graph) {
  std::vector<GroupGraph> groups;
  const std::vector<uint32_t> uses = use_counts(graph);
  const std::span<const Node> nodes(graph.nodes);
  for (size_t begin = 0, end = 0; begin < nodes.size(); begin = end) {
    for (end = begin + 1; end < nodes.size() && nodes[end].group == nodes[begin].group;) ++end;
    if (nodes[begin].group) groups.push_back(extract_group(graph, nodes.subspan(begin, end - begin), uses));
  }
  return groups;
}

void verify(const Graph& graph) {
  std::vector<bool> defined(graph.tensors.size(), false);
  std::set<std::pair<InputKind, std::string>> keys;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    verify_tensor(graph, input.tensor, NodeId(), i, defined);
    verify_window(graph.shape(input.tensor), input.strides, "an input");
    verify_part(graph, input.part, input.tensor);
    INTERNAL_CHECK(keys.insert({input.kind, input.key}).second, "{} '{}' is an input twice", name_of(input.kind),
                   input.key);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (TensorId input : node.inputs) {
      INTERNAL_CHECK_LT(input.index(), graph.tensors.size(), "node {} {}", n, node.op);
      INTERNAL_CHECK(defined[input.index()], "node {} {} reads %{} before it is made", n, node.op, input);
      if (!is_host_code(node)) verify_incoming(graph, input, node.op);
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) verify_tensor(graph, node.outputs[k], NodeId(n), k, defined);
    const bool is_aten = node.op.find("::") != std::string::npos;
    INTERNAL_CHECK_EQ(is_aten, node.aten.has_value(), "node {} {}", n, node.op);
    if (is_aten) verify_aten_call(graph, node, n);
    if (is_host_code(node)) verify_host_code(graph, node, n);
  }
  for (size_t t = 0; t < defined.size(); ++t) INTERNAL_CHECK(defined[t], "%{} is never made", t);
  verify_outputs(graph, defined);
  verify_groups(graph);
}

}  // namespace stepc
