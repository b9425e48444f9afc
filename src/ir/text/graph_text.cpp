// Text form of a Graph, one line an input, node or output; constants as in the text form of a Trace.
//
//   stepc.graph 1
//   input %0: f32[4, 8] = parameter "weight"
//   input %1: f32[2, 8](9, 1)+1 = batch "0"
//   %2: f32[2, 4] = matmul(%1, %0) {transpose_b=true} | forward "proj"
//   %7: f32[2, 4] = exp(%2) | forward "proj" group 3
//   %3: f32[2], %4: f32[4, 8] = aten::op(%2, [1, 2], t[%0, undefined]) -> %, none writes 1 draws | forward ""
//   update %0 = %4
//   rebind gradient "weight" %3(1, 4)
//   guard %5
//   return %2
//   %8: f32[4] = host::pause(0, t[%2], t[%0], [0]) writes 1 draws | forward ""
//   number %6
//
// A return or rebind of none has no tensor.
// Behind '->' stands what an ATen call returns: '%' for the next fresh output, a list t[...] of those, none otherwise;
// 'writes' counts the call's tensors from 0, and so does 'layout 0(1, 4)', the strides of one that is not contiguous.
// 'workspace 4096 64': the bytes that its kernel took beside, on the step's thread and on each worker, where known.
// A Graph for several devices has its mesh in a line of its own, and shardings behind types (ir/sharding.h):
//
//   mesh dp_shard=2,tp=4
//   input %0: f32[8, 4] <8/dp_shard, 4> = batch "0"
//   input %0: f32[4, 4] = batch "0" part of <8/dp_shard, 4>
//   update %1 = %4 part of <16, 4/tp>
//
// 'rule flops 512.0 ...' is what the program says of an operator of its own (ir/call_rule.h).
#include "base/check.h"
#include "ir/graph.h"
#include "ir/text/arg_text.h"
#include "ir/text/part_text.h"
#include "ir/text/text_cursor.h"

namespace stepc {

namespace {

// ---- printing

std::string window_text(const TensorType& type, const Shape& strides, int64_t offset) {
  std::string text = to_text(type);
  if (!strides.empty()) text += str("({})", fmt::join(strides, ", "));
  if (offset != 0) text += str("+{}", offset);
  return text;
}

// " <8/dp_shard, 4>", or nothing.
std::string sharding_text(const Graph& graph, TensorId id) {
  const std::optional<Sharding>& sharding = graph.tensors[id.index()].sharding;
  return sharding ? str(" {}", to_text(*sharding, graph.shape(id), graph.mesh)) : std::string();
}

std::string node_text(const Graph& graph, const Node& node) {
  std::vector<std::string> outputs;
  for (TensorId id : node.outputs)
    outputs.push_back(str("%{}: {}{}", id, to_text(graph.type(id)), sharding_text(graph, id)));
  std::vector<std::string> inputs;
  std::string tail;
  if (node.aten) {
    const auto input_name = [&](ValueId k) { return str("%{}", node.inputs[k.index()]); };
    const auto fresh = [](ValueId) { return std::string("%"); };
    for (const Arg& arg : node.aten->args) inputs.push_back(arg_text(arg, input_name));
    std::vector<std::string> results;
    for (const Arg& result : node.aten->results) results.push_back(arg_text(result, fresh));
    if (!results.empty()) tail += str(" -> {}", fmt::join(results, ", "));
    tail += effects_text(*node.aten);
  } else {
    for (TensorId id : node.inputs) inputs.push_back(str("%{}", id));
  }
  const std::string attrs = to_text(node.attrs);
  return str("{}{}= {}({}){}{}{} {}{}\n", fmt::join(outputs, ", "), outputs.empty() ? "" : " ", node.op,
             fmt::join(inputs, ", "), attrs.empty() ? "" : " ", attrs, tail, source_text(node.source),
             node.group ? str(" group {}", *node.group) : "");
}

std::string output_text(const Graph& graph, const GraphOutput& output) {
  std::string tensor = !output.tensor.valid()   ? "none"
                       : output.strides.empty() ? str("%{}", output.tensor)
                                                : str("%{}({})", output.tensor, fmt::join(output.strides, ", "));
  tensor += part_text(output.part, graph.mesh);
  switch (output.kind) {
    case GraphOutput::Kind::kUpdate:
      return str("update %{} = {}\n", graph.inputs[output.input].tensor, tensor);
    case GraphOutput::Kind::kRebind:
      return str("rebind {} {} {}\n", name_of(output.owner), quoted(output.key), tensor);
    case GraphOutput::Kind::kGuard:
      return str("guard {}\n", tensor);
    case GraphOutput::Kind::kReturn:
      return str("return {}\n", tensor);
    case GraphOutput::Kind::kNumber:
      return str("number {}\n", tensor);
  }
  return {};
}

// ---- parsing

class GraphParser {
 public:
  explicit GraphParser(std::string_view text) : in_("graph text", text) {}

  Graph parse() {
    in_.next_line();
    in_.expect("stepc.graph 1");
    in_.end_of_line();
    while (in_.next_line()) {
      if (in_.at_end_of_line() || in_.rest().starts_with('#')) continue;
      parse_line();
      in_.end_of_line();
    }
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i]) in_.fail(str("%{} is used and never defined", i));
    return std::move(graph_);
  }

 private:
  void parse_line() {
    if (in_.accept("mesh ")) return parse_mesh_line();
    if (in_.accept("input ")) return parse_input();
    if (in_.accept("update ")) return parse_update();
    if (in_.accept("rebind ")) {
      GraphOutput output;
      output.kind = GraphOutput::Kind::kRebind;
      output.owner = parse_input_kind(in_);
      output.key = in_.quoted_text();
      return finish_output(std::move(output));
    }
    for (auto [word, kind] : {std::pair{"guard ", GraphOutput::Kind::kGuard},
                              {"return ", GraphOutput::Kind::kReturn},
                              {"number ", GraphOutput::Kind::kNumber}}) {
      if (!in_.accept(word)) continue;
      GraphOutput output;
      output.kind = kind;
      return finish_output(std::move(output));
    }
    parse_node();
  }

  TensorId tensor() {
    in_.expect("%");
    const size_t id = in_.index();
    if (id >= defined_.size()) {
      defined_.resize(id + 1, false);
      graph_.tensors.resize(id + 1);
    }
    return TensorId(id);
  }
  TensorId define(NodeId producer, size_t place) {
    const TensorId id = tensor();
    if (defined_[id.index()]) in_.fail(str("%{} is defined twice", id));
    defined_[id.index()] = true;
    in_.expect(":");
    graph_.tensors[id.index()] = {parse_tensor_type(in_), producer, static_cast<uint32_t>(place)};
    return id;
  }
  void parse_mesh_line() {
    if (!graph_.tensors.empty() || !graph_.mesh.axes.empty()) in_.fail("the mesh stands once, before all tensors");
    graph_.mesh = parse_mesh(in_);
  }
  void accept_sharding(TensorId id) {
    if (!in_.accept("<")) return;
    PartOf of = parse_sharding(in_, graph_.mesh);
    if (of.shape != graph_.shape(id)) in_.fail(str("the sharding of a {} has another shape", to_text(graph_.type(id))));
    graph_.tensors[id.index()].sharding = std::move(of.sharding);
  }
  Shape strides(const Shape& shape) {
    if (!in_.accept("(")) return {};
    Shape strides = in_.integers(")");
    if (strides.size() != shape.size()) in_.fail("as many strides as sizes are needed");
    return strides;
  }

  void parse_input() {
    GraphInput input;
    input.tensor = define(NodeId(), graph_.inputs.size());
    input.strides = strides(graph_.shape(input.tensor));
    if (in_.accept("+")) input.offset = in_.integer();
    accept_sharding(input.tensor);
    in_.expect("=");
    input.kind = parse_input_kind(in_);
    input.key = in_.quoted_text();
    input.part = parse_part(in_, graph_.mesh);
    graph_.inputs.push_back(std::move(input));
  }

  void parse_update() {
    const TensorId target = tensor();
    const GraphTensor& known = graph_.tensors[target.index()];
    if (!defined_[target.index()] || known.producer.valid()) in_.fail(str("%{} is no input", target));
    in_.expect("=");
    GraphOutput output;
    output.kind = GraphOutput::Kind::kUpdate;
    output.input = known.place;
    finish_output(std::move(output));
  }

  void finish_output(GraphOutput output) {
    if (!in_.accept("none")) {
      output.tensor = tensor();
      output.strides = strides(graph_.shape(output.tensor));
    }
    output.part = parse_part(in_, graph_.mesh);
    graph_.outputs.push_back(std::move(output));
  }

  void parse_node() {
    const NodeId id(graph_.nodes.size());
    Node node;
    if (!in_.accept("=")) {
      do {
        node.outputs.push_back(define(id, node.outputs.size()));
        accept_sharding(node.outputs.back());
      } while (in_.accept(","));
      in_.expect("=");
    }
    node.op = std::string(in_.word());
    in_.expect("(");
    if (node.op.find("::") != std::string::npos) {
      node.aten.emplace();
      in_.list(")", [&] { node.aten->args.push_back(argument(node)); });
      parse_results(node);
      parse_effects(in_, *node.aten);
    } else {
      in_.list(")", [&] { node.inputs.push_back(tensor()); });
      node.attrs = parse_attrs(in_);
    }
    node.source = parse_source(in_);
    if (in_.accept("group ")) node.group = static_cast<uint32_t>(in_.index());
    graph_.nodes.push_back(std::move(node));
  }

  void parse_results(Node& node) {
    size_t fresh = 0;
    const auto one = [&]() -> ValueId {
      if (in_.accept("undefined")) return {};
      in_.expect("%");
      return ValueId(fresh++);
    };
    if (in_.accept("->")) {
      do {
        if (in_.rest().starts_with('%')) {
          node.aten->results.emplace_back(one());
        } else if (in_.accept("t[")) {
          std::vector<ValueId> list;
          in_.list("]", [&] { list.push_back(one()); });
          node.aten->results.emplace_back(std::move(list));
        } else {
          node.aten->results.push_back(argument(node));
        }
      } while (in_.accept(","));
    }
  }

  Arg argument(Node& node) {
    Arg arg = parse_arg(in_, '%', [&] {
      node.inputs.push_back(tensor());
      return ValueId(node.inputs.size() - 1);
    });
    if (std::holds_alternative<ReadNumber>(arg)) in_.fail("a Graph reads no numbers on the host");
    return arg;
  }

  TextCursor in_;
  Graph graph_;
  std::vector<bool> defined_;
};

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out = "stepc.graph 1\n";
  if (!graph.mesh.axes.empty()) out += str("mesh {}\n", to_text(graph.mesh));
  for (const GraphInput& input : graph.inputs)
    out += str("input %{}: {}{} = {} {}{}\n", input.tensor,
               window_text(graph.type(input.tensor), input.strides, input.offset), sharding_text(graph, input.tensor),
               name_of(input.kind), quoted(input.key), part_text(input.part, graph.mesh));
  for (const Node& node : graph.nodes) out += node_text(graph, node);
  for (const GraphOutput& output : graph.outputs) out += output_text(graph, output);
  return out;
}

Graph parse_graph(std::string_view text) { return GraphParser(text).parse(); }

}  // namespace stepc
