#include "ir/text/arg_text.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

namespace {

constexpr InputKind kInputKinds[] = {InputKind::kParameter, InputKind::kGradient, InputKind::kOptimizerState,
                                     InputKind::kBuffer,    InputKind::kBatch,    InputKind::kCaptured,
                                     InputKind::kIncoming,  InputKind::kHost,     InputKind::kScalar,
                                     InputKind::kRng,       InputKind::kMesh};
constexpr Symbol::Kind kSymbolKinds[] = {Symbol::Kind::kDType, Symbol::Kind::kDevice, Symbol::Kind::kLayout,
                                         Symbol::Kind::kMemoryFormat};
constexpr std::string_view kReadKinds[] = {"bool", "int", "double"};

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

struct ArgText {
  const std::function<std::string(ValueId)>& name;

  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool v) const { return constant_text(v); }
  std::string operator()(int64_t v) const { return constant_text(v); }
  std::string operator()(double v) const { return constant_text(v); }
  std::string operator()(const std::complex<double>& v) const {
    return str("({}, {})", constant_text(v.real()), constant_text(v.imag()));
  }
  std::string operator()(const std::string& v) const { return quoted(v); }
  std::string operator()(const std::vector<int64_t>& v) const { return list_text("[", v); }
  std::string operator()(const std::vector<double>& v) const { return list_text("f[", v); }
  std::string operator()(const std::vector<bool>& v) const { return list_text("b[", v); }
  std::string operator()(const Symbol& v) const { return str("{}:{}", name_of(v.kind), v.text); }
  std::string operator()(const WrappedNumber& v) const { return str("number({})", std::visit(*this, v.number)); }
  std::string operator()(ValueId v) const { return v.valid() ? name(v) : "undefined"; }
  std::string operator()(const std::vector<ValueId>& v) const {
    std::vector<std::string> parts;
    for (ValueId id : v) parts.push_back((*this)(id));
    return str("t[{}]", fmt::join(parts, ", "));
  }
  std::string operator()(const ReadNumber& v) const {
    return str("read({}, {}{})", v.read, kReadKinds[static_cast<size_t>(v.kind)], v.wrapped ? ", wrapped" : "");
  }
  std::string operator()(const GeneratorArg& v) const { return str("generator({})", v.generator); }
};

// ---- parsing

std::complex<double> complex(TextCursor& in) {
  const double re = in.real();
  in.expect(",");
  const double im = in.real();
  in.expect(")");
  return {re, im};
}

template <class Variant>
Variant plain_number(TextCursor& in) {
  if (in.accept("true")) return true;
  if (in.accept("false")) return false;
  if (in.accept("(")) return complex(in);
  const auto constant = in.number();
  if (const auto* integer = std::get_if<int64_t>(&constant)) return *integer;
  return std::get<double>(constant);
}

std::vector<double> reals(TextCursor& in) {
  std::vector<double> out;
  in.list("]", [&] { out.push_back(in.real()); });
  return out;
}

ReadNumber read_number(TextCursor& in) {
  ReadNumber out;
  out.read = CallId(in.id());
  in.expect(",");
  const std::string_view kind = in.word();
  const auto* found = std::ranges::find(kReadKinds, kind);
  if (found == std::end(kReadKinds)) in.fail("expected bool, int or double");
  out.kind = static_cast<ReadNumber::Kind>(found - std::begin(kReadKinds));
  if (in.accept(",")) {
    in.expect("wrapped");
    out.wrapped = true;
  }
  in.expect(")");
  return out;
}

AttrValue attr_value(TextCursor& in) {
  if (in.accept("true")) return true;
  if (in.accept("false")) return false;
  if (in.rest().starts_with('"')) return in.quoted_text();
  if (in.accept("f[")) return reals(in);
  if (in.accept("[")) return in.integers("]");
  const std::string_view rest = in.rest();
  const bool is_number = rest.find_first_of("+-0123456789") == 0 || rest.starts_with("inf") || rest.starts_with("nan");
  if (!is_number) return parse_dtype(in);
  const auto constant = in.number();
  if (const auto* integer = std::get_if<int64_t>(&constant)) return *integer;
  return std::get<double>(constant);
}

}  // namespace

std::string arg_text(const Arg& arg, const std::function<std::string(ValueId)>& name) {
  return std::visit(ArgText{name}, arg);
}

Arg parse_arg(TextCursor& in, char sigil, const std::function<ValueId()>& value) {
  if (in.accept("undefined")) return ValueId();
  if (in.rest().starts_with(sigil)) return value();
  if (in.accept("none")) return std::monostate();
  if (in.rest().starts_with('"')) return in.quoted_text();
  if (in.accept("t[")) {
    std::vector<ValueId> out;
    in.list("]", [&] { out.push_back(in.accept("undefined") ? ValueId() : value()); });
    return out;
  }
  if (in.accept("f[")) return reals(in);
  if (in.accept("b[")) {
    std::vector<bool> out;
    in.list("]", [&] { out.push_back(in.boolean()); });
    return out;
  }
  if (in.accept("[")) return in.integers("]");
  if (in.accept("read(")) return read_number(in);
  if (in.accept("generator(")) {
    const GeneratorArg out{GeneratorId(in.id())};
    in.expect(")");
    return out;
  }
  if (in.accept("number(")) {
    WrappedNumber out{plain_number<decltype(WrappedNumber::number)>(in)};
    in.expect(")");
    return out;
  }
  for (Symbol::Kind kind : kSymbolKinds)
    if (in.accept(str("{}:", name_of(kind)))) return Symbol{kind, std::string(in.word())};
  return plain_number<Arg>(in);
}

std::string effects_text(const AtenCall& call) {
  std::string out;
  if (!call.writes.empty()) out += str(" writes {}", fmt::join(call.writes, ", "));
  if (call.draws) out += " draws";
  for (const auto& [input, strides] : call.layouts) out += str(" layout {}({})", input, fmt::join(strides, ", "));
  for (const auto& [output, strides] : call.result_layouts)
    out += str(" result layout {}({})", output, fmt::join(strides, ", "));
  if (call.measured) out += str(" workspace {} {}", call.workspace_bytes, call.worker_bytes);
  if (call.rule) out += str(" {}", to_text(*call.rule));
  return out;
}

void parse_effects(TextCursor& in, AtenCall& call) {
  if (in.accept("writes ")) {
    do call.writes.push_back(in.id());
    while (in.accept(","));
  }
  call.draws = in.accept("draws");
  while (in.accept("layout ")) {
    auto& [input, strides] = call.layouts.emplace_back(in.id(), Shape());
    in.expect("(");
    strides = in.integers(")");
  }
  while (in.accept("result layout ")) {
    auto& [output, strides] = call.result_layouts.emplace_back(in.id(), Shape());
    in.expect("(");
    strides = in.integers(")");
  }
  if (in.accept("workspace ")) {
    call.measured = true;
    call.workspace_bytes = in.unsigned_integer();
    call.worker_bytes = in.unsigned_integer();
  }
  if (in.accept("rule ")) call.rule = parse_call_rule(in);
}

Attrs parse_attrs(TextCursor& in) {
  Attrs attrs;
  if (!in.accept("{")) return attrs;
  in.list("}", [&] {
    const std::string name(in.word());
    if (attrs.find(name) != nullptr) in.fail(str("'{}' is given twice", name));
    in.expect("=");
    attrs.set(name, attr_value(in));
  });
  return attrs;
}

DType parse_dtype(TextCursor& in) {
  const std::string_view rest = in.rest();
  const size_t end = std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789EM"), rest.size());
  const auto dtype = dtype_from_name(rest.substr(0, end));
  if (!dtype) in.fail("expected a dtype");
  in.expect(rest.substr(0, end));
  return *dtype;
}

TensorType parse_tensor_type(TextCursor& in) {
  TensorType type;
  type.dtype = parse_dtype(in);
  in.expect("[");
  type.shape = in.integers("]");
  int64_t bytes = size_of(type.dtype);
  for (int64_t size : type.shape)
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes))
      in.fail("a shape is out of range");
  return type;
}

InputKind parse_input_kind(TextCursor& in) {
  for (InputKind kind : kInputKinds)
    if (in.accept(str("{} ", name_of(kind)))) return kind;
  in.fail("expected what kind of input this is");
}

Phase parse_phase(TextCursor& in) {
  for (auto phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate})
    if (in.accept(str("{} ", name_of(phase)))) return phase;
  in.fail("expected a phase");
}

std::string source_text(const Source& source) { return str("| {} {}", name_of(source.phase), quoted(source.module)); }

Source parse_source(TextCursor& in) {
  in.expect("|");
  Source source;
  source.phase = parse_phase(in);
  source.module = in.quoted_text();
  return source;
}

}  // namespace stepc
