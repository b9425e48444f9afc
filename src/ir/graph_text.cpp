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
//   return %2 at "forward"
//   number %6
//
// A return or rebind of none has no tensor.
// Behind '->' stands what an ATen call returns: '%' for the next fresh output, a list t[...] of those, none otherwise;
// 'writes' counts the call's tensors from 0, and so does 'layout 0(1, 4)', the strides of one that is not contiguous.
#include "base/check.h"
#include "ir/graph.h"
#include "ir/text_cursor.h"

namespace stepc {

namespace {

constexpr InputKind kInputKinds[] = {InputKind::kParameter, InputKind::kGradient, InputKind::kOptimizerState,
                                     InputKind::kBuffer,    InputKind::kBatch,    InputKind::kCaptured,
                                     InputKind::kIncoming,  InputKind::kScalar,   InputKind::kRng};

std::string_view name_of(Symbol::Kind kind) {
  switch (kind) {
    case Symbol::Kind::kDType:
      return "dtype";
    case Symbol::Kind::kDevice:
      return "device";
    case Symbol::Kind::kLayout:
      return "layout";
    case Symbol::Kind::kMemoryFormat:
      return "memory_format";
  }
  return "?";
}

// ---- printing

std::string complex_text(std::complex<double> value) {
  return str("({}, {})", constant_text(value.real()), constant_text(value.imag()));
}

template <class T>
std::string list_text(std::string_view open, const std::vector<T>& values) {
  std::vector<std::string> parts;
  for (const auto& value : values) parts.push_back(constant_text(static_cast<T>(value)));
  return str("{}{}]", open, fmt::join(parts, ", "));
}

// Prints an argument; `tensor` names the value with a given number.
template <class F>
struct ArgText {
  F tensor;

  std::string value(ValueId id) const { return id.valid() ? tensor(id) : "undefined"; }

  template <class T>
  std::string operator()(const T& arg) const {
    if constexpr (std::is_same_v<T, std::monostate>) {
      return "none";
    } else if constexpr (std::is_same_v<T, ValueId>) {
      return value(arg);
    } else if constexpr (std::is_same_v<T, std::vector<ValueId>>) {
      std::vector<std::string> parts;
      for (ValueId id : arg) parts.push_back(value(id));
      return str("t[{}]", fmt::join(parts, ", "));
    } else if constexpr (std::is_same_v<T, std::complex<double>>) {
      return complex_text(arg);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return quoted(arg);
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      return list_text("[", arg);
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      return list_text("f[", arg);
    } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
      return list_text("b[", arg);
    } else if constexpr (std::is_same_v<T, Symbol>) {
      return str("{}:{}", name_of(arg.kind), arg.text);
    } else if constexpr (std::is_same_v<T, WrappedNumber>) {
      return str("number({})", std::visit(*this, arg.number));
    } else if constexpr (std::is_same_v<T, GeneratorArg>) {
      return str("generator({})", arg.generator);
    } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
      return constant_text(arg);
    } else {
      throw_unknown();
    }
  }
  [[noreturn]] static void throw_unknown() { INTERNAL_CHECK(false, "an argument that a Graph does not hold"); }
};

std::string window_text(const TensorType& type, const Shape& strides, int64_t offset) {
  std::string text = to_text(type);
  if (!strides.empty()) text += str("({})", fmt::join(strides, ", "));
  if (offset != 0) text += str("+{}", offset);
  return text;
}

std::string node_text(const Graph& graph, const Node& node) {
  std::vector<std::string> outputs;
  for (TensorId id : node.outputs) outputs.push_back(str("%{}: {}", id, to_text(graph.type(id))));
  std::vector<std::string> inputs;
  std::string tail;
  if (node.aten) {
    const auto input_name = [&](ValueId k) { return str("%{}", node.inputs[k.index()]); };
    const auto fresh = [](ValueId) { return std::string("%"); };
    for (const Arg& arg : node.aten->args) inputs.push_back(std::visit(ArgText<decltype(input_name)>{input_name}, arg));
    std::vector<std::string> results;
    for (const Arg& result : node.aten->results) results.push_back(std::visit(ArgText<decltype(fresh)>{fresh}, result));
    if (!results.empty()) tail += str(" -> {}", fmt::join(results, ", "));
    if (!node.aten->writes.empty()) tail += str(" writes {}", fmt::join(node.aten->writes, ", "));
    if (node.aten->draws) tail += " draws";
    for (const auto& [input, strides] : node.aten->layouts)
      tail += str(" layout {}({})", input, fmt::join(strides, ", "));
  } else {
    for (TensorId id : node.inputs) inputs.push_back(str("%{}", id));
  }
  const std::string attrs = to_text(node.attrs);
  return str("{}{}= {}({}){}{}{} | {} {}{}\n", fmt::join(outputs, ", "), outputs.empty() ? "" : " ", node.op,
             fmt::join(inputs, ", "), attrs.empty() ? "" : " ", attrs, tail, name_of(node.source.phase),
             quoted(node.source.module), node.group ? str(" group {}", *node.group) : "");
}

std::string output_text(const Graph& graph, const GraphOutput& output) {
  const std::string tensor = !output.tensor.valid()   ? "none"
                             : output.strides.empty() ? str("%{}", output.tensor)
                                                      : str("%{}({})", output.tensor, fmt::join(output.strides, ", "));
  switch (output.kind) {
    case GraphOutput::Kind::kUpdate:
      return str("update %{} = {}\n", graph.inputs[output.input].tensor, tensor);
    case GraphOutput::Kind::kRebind:
      return str("rebind {} {} {}\n", name_of(output.owner), quoted(output.key), tensor);
    case GraphOutput::Kind::kGuard:
      return str("guard {}\n", tensor);
    case GraphOutput::Kind::kReturn:
      return output.key.empty() ? str("return {}\n", tensor) : str("return {} at {}\n", tensor, quoted(output.key));
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
    if (in_.accept("input ")) return parse_input();
    if (in_.accept("update ")) return parse_update();
    if (in_.accept("rebind ")) {
      GraphOutput output;
      output.kind = GraphOutput::Kind::kRebind;
      output.owner = input_kind();
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
    graph_.tensors[id.index()] = {type(), producer, static_cast<uint32_t>(place)};
    return id;
  }
  DType dtype() {
    const std::string_view rest = in_.rest();
    const size_t end = std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789EM"), rest.size());
    const auto dtype = dtype_from_name(rest.substr(0, end));
    if (!dtype) in_.fail("expected a dtype");
    in_.expect(rest.substr(0, end));
    return *dtype;
  }
  TensorType type() {
    TensorType type;
    type.dtype = dtype();
    in_.expect("[");
    type.shape = in_.integers("]");
    int64_t bytes = size_of(type.dtype);
    for (int64_t size : type.shape)
      if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes))
        in_.fail("a shape is out of range");
    return type;
  }
  Shape strides(const Shape& shape) {
    if (!in_.accept("(")) return {};
    Shape strides = in_.integers(")");
    if (strides.size() != shape.size()) in_.fail("as many strides as sizes are needed");
    return strides;
  }

  InputKind input_kind() {
    for (InputKind kind : kInputKinds)
      if (in_.accept(str("{} ", stepc::name_of(kind)))) return kind;
    in_.fail("expected what kind of input this is");
  }

  void parse_input() {
    GraphInput input;
    input.tensor = define(NodeId(), graph_.inputs.size());
    input.strides = strides(graph_.shape(input.tensor));
    if (in_.accept("+")) input.offset = in_.integer();
    in_.expect("=");
    input.kind = input_kind();
    input.key = in_.quoted_text();
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
    if (output.kind == GraphOutput::Kind::kReturn && in_.accept("at ")) output.key = in_.quoted_text();
    graph_.outputs.push_back(std::move(output));
  }

  void parse_node() {
    const NodeId id(graph_.nodes.size());
    Node node;
    if (!in_.accept("=")) {
      do node.outputs.push_back(define(id, node.outputs.size()));
      while (in_.accept(","));
      in_.expect("=");
    }
    node.op = std::string(in_.word());
    in_.expect("(");
    if (node.op.find("::") != std::string::npos) {
      node.aten.emplace();
      in_.list(")", [&] { node.aten->args.push_back(argument(node)); });
      parse_effects(node);
    } else {
      in_.list(")", [&] { node.inputs.push_back(tensor()); });
      if (in_.accept("{")) in_.list("}", [&] { parse_attr(node.attrs); });
    }
    parse_source(node.source);
    if (in_.accept("group ")) node.group = static_cast<uint32_t>(in_.index());
    graph_.nodes.push_back(std::move(node));
  }

  void parse_source(Source& source) {
    in_.expect("|");
    bool found = false;
    for (auto phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
      if (found || !in_.accept(str("{} ", stepc::name_of(phase)))) continue;
      source.phase = phase;
      found = true;
    }
    if (!found) in_.fail("expected a phase");
    source.module = in_.quoted_text();
  }

  void parse_effects(Node& node) {
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
    if (in_.accept("writes ")) {
      do node.aten->writes.push_back(static_cast<uint32_t>(in_.index()));
      while (in_.accept(","));
    }
    node.aten->draws = in_.accept("draws");
    while (in_.accept("layout ")) {
      auto& [input, strides] = node.aten->layouts.emplace_back(static_cast<uint32_t>(in_.index()), Shape());
      in_.expect("(");
      strides = in_.integers(")");
    }
  }

  void parse_attr(Attrs& attrs) {
    const std::string name(in_.word());
    if (attrs.find(name) != nullptr) in_.fail(str("'{}' is given twice", name));
    in_.expect("=");
    attrs.set(name, attr_value());
  }
  AttrValue attr_value() {
    if (in_.accept("true")) return true;
    if (in_.accept("false")) return false;
    if (in_.rest().starts_with('"')) return in_.quoted_text();
    if (in_.accept("f[")) {
      std::vector<double> out;
      in_.list("]", [&] { out.push_back(in_.real()); });
      return out;
    }
    if (in_.accept("[")) return in_.integers("]");
    const std::string_view rest = in_.rest();
    const bool is_number =
        rest.find_first_of("+-0123456789") == 0 || rest.starts_with("inf") || rest.starts_with("nan");
    if (!is_number) return dtype();
    const auto constant = in_.number();
    if (const auto* integer = std::get_if<int64_t>(&constant)) return *integer;
    return std::get<double>(constant);
  }

  ValueId argument_tensor(Node& node) {
    if (in_.accept("undefined")) return {};
    node.inputs.push_back(tensor());
    return ValueId(node.inputs.size() - 1);
  }
  std::complex<double> complex() {
    const double re = in_.real();
    in_.expect(",");
    const double im = in_.real();
    in_.expect(")");
    return {re, im};
  }
  template <class Variant>
  Variant plain_number() {
    if (in_.accept("true")) return true;
    if (in_.accept("false")) return false;
    if (in_.accept("(")) return complex();
    const auto constant = in_.number();
    if (const auto* integer = std::get_if<int64_t>(&constant)) return *integer;
    return std::get<double>(constant);
  }
  Arg argument(Node& node) {
    if (in_.rest().starts_with('%') || in_.rest().starts_with("undefined")) return argument_tensor(node);
    if (in_.accept("none")) return std::monostate();
    if (in_.rest().starts_with('"')) return in_.quoted_text();
    if (in_.accept("t[")) {
      std::vector<ValueId> out;
      in_.list("]", [&] { out.push_back(argument_tensor(node)); });
      return out;
    }
    if (in_.accept("f[")) {
      std::vector<double> out;
      in_.list("]", [&] { out.push_back(in_.real()); });
      return out;
    }
    if (in_.accept("b[")) {
      std::vector<bool> out;
      in_.list("]", [&] { out.push_back(in_.boolean()); });
      return out;
    }
    if (in_.accept("[")) return in_.integers("]");
    if (in_.accept("generator(")) {
      const GeneratorArg out{GeneratorId(in_.index())};
      in_.expect(")");
      return out;
    }
    if (in_.accept("number(")) {
      WrappedNumber out{plain_number<decltype(WrappedNumber::number)>()};
      in_.expect(")");
      return out;
    }
    for (auto kind : {Symbol::Kind::kDType, Symbol::Kind::kDevice, Symbol::Kind::kLayout, Symbol::Kind::kMemoryFormat})
      if (in_.accept(str("{}:", name_of(kind)))) return Symbol{kind, std::string(in_.word())};
    return plain_number<Arg>();
  }

  TextCursor in_;
  Graph graph_;
  std::vector<bool> defined_;
};

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out = "stepc.graph 1\n";
  for (const GraphInput& input : graph.inputs)
    out +=
        str("input %{}: {} = {} {}\n", input.tensor, window_text(graph.type(input.tensor), input.strides, input.offset),
            name_of(input.kind), quoted(input.key));
  for (const Node& node : graph.nodes) out += node_text(graph, node);
  for (const GraphOutput& output : graph.outputs) out += output_text(graph, output);
  return out;
}

Graph parse_graph(std::string_view text) { return GraphParser(text).parse(); }

}  // namespace stepc
