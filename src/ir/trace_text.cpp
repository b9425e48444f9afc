// Text form of a Trace. One line a storage, an external, a call, an allocation; a value's type stands where the value
// is first named:
//
//   stepc.trace 1
//   storage s0 bytes=4096 external
//   %0: f32[32, 32] @s0 = parameter "model.weight"
//   %2: f32[32, 32](1, 32) @s0 = alias
//   call 0 %3: f32[8, 32] @s2 = aten::mm(%1, %2) | forward "model"
//     alloc 1024 @s2 [0, 9)
//     scratch 65536 [1, 2)
//   call 1 = aten::add_.Tensor(%0, %3, alpha) writes %0 | update ""
//   rebind gradient "model.weight" none
//   return %5
//   numbers read(7, double), 3
//   ticks 12
//
// Constants: none, true, 3, 2.5 (always with a point or exponent), (1.0+2.0j), "text", [1, 2], f[1.0], b[true],
// dtype:bf16, number(2), [%1, none]. What the host has to do with the step stands before the calls:
//
//   data "0" 3f800000                              bytes of the constant "0"
//   generator "default"
//   state 0 initial | resumed | state 0 after 12 | state 0 constant 0a0b     of generator 0; states are numbered in
//   order load 1 before 17 read 7 guard "model.py:12" event shadow "optimizer" [20, 40) runs 20, 21
//     finds gradient "model.weight" %9          and `gives %4` at a pause
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "ir/trace.h"

namespace stepc {

namespace {

// ---- printing

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Shortest text that reads back to the same double and is not an integer's.
std::string number_text(double value) {
  std::string text = str("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

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

constexpr std::string_view kEventKinds[] = {"shadow", "eager", "pause"};
constexpr std::string_view kReadKinds[] = {"bool", "int", "double"};

class Printer {
 public:
  explicit Printer(const Trace& trace) : trace_(trace), typed_(trace.values.size(), false) {}

  std::string print() {
    out_ = "stepc.trace 1\n";
    for (size_t s = 0; s < trace_.storages.size(); ++s) {
      const Storage& storage = trace_.storages[s];
      out_ += str("storage s{} bytes={}{}{}\n", s, storage.bytes, storage.external ? " external" : "",
                  storage.escapes ? " escapes" : "");
    }
    for (const External& external : trace_.externals)
      out_ += str("{} = {} {}\n", define(external.value), stepc::name_of(external.owner), quoted(external.key));
    print_host_side();
    size_t allocation = 0;
    size_t scratch = 0;
    for (size_t c = 0; c < trace_.calls.size(); ++c) {
      print_call(c);
      for (; allocation < trace_.allocations.size() && trace_.allocations[allocation].call.index() == c; ++allocation)
        print_allocation(trace_.allocations[allocation]);
      for (; scratch < trace_.scratch.size() && trace_.scratch[scratch].call.index() == c; ++scratch)
        out_ += str("  scratch {} [{}, {})\n", trace_.scratch[scratch].bytes, trace_.scratch[scratch].first,
                    trace_.scratch[scratch].last);
    }
    for (ValueId value : trace_.outputs) define_alias(value);
    for (const Rebinding& rebinding : trace_.rebindings) define_alias(rebinding.value);
    for (const Rebinding& rebinding : trace_.rebindings) print_rebinding("rebind", rebinding);
    if (!trace_.outputs.empty()) {
      std::vector<std::string> names;
      for (ValueId value : trace_.outputs) names.push_back(name(value));
      out_ += str("return {}\n", fmt::join(names, ", "));
    }
    if (!trace_.numbers.empty()) {
      std::vector<std::string> numbers;
      for (const Arg& number : trace_.numbers) numbers.push_back(text_of(number, false));
      out_ += str("numbers {}\n", fmt::join(numbers, ", "));
    }
    out_ += str("ticks {}\n", trace_.ticks);
    return std::move(out_);
  }

 private:
  static std::string name(ValueId id) { return id.valid() ? str("%{}", id) : "none"; }

  static std::string hex(const std::string& bytes) {
    std::string out;
    for (const char byte : bytes) out += str("{:02x}", static_cast<unsigned char>(byte));
    return out.empty() ? "none" : out;
  }

  void print_rebinding(std::string_view word, const Rebinding& rebinding) {
    out_ += str("{} {} {} {}\n", word, stepc::name_of(rebinding.owner), quoted(rebinding.key), name(rebinding.value));
  }

  void print_host_side() {
    for (const Constant& constant : trace_.constants)
      out_ += str("data {} {}\n", quoted(constant.key), hex(constant.bytes));
    for (const std::string& key : trace_.generators) out_ += str("generator {}\n", quoted(key));
    for (const GeneratorState& state : trace_.states) {
      out_ += str("state {} ", state.generator);
      if (state.kind == GeneratorState::Kind::kInitial) out_ += "initial\n";
      if (state.kind == GeneratorState::Kind::kResumed) out_ += "resumed\n";
      if (state.kind == GeneratorState::Kind::kAfterCall) out_ += str("after {}\n", state.call);
      if (state.kind == GeneratorState::Kind::kConstant) out_ += str("constant {}\n", hex(state.bytes));
    }
    for (const GeneratorLoad& load : trace_.loads) out_ += str("load {} before {}\n", load.state, load.before);
    for (const HostRead& read : trace_.reads)
      out_ += str("read {}{}{} {}\n", read.call, read.guard ? " guard" : "", read.decides ? " decides" : "",
                  quoted(read.source));
    for (const HostEvent& event : trace_.events) {
      for (const Rebinding& gradient : event.gradients) define_alias(gradient.value);
      for (ValueId value : event.outputs) define_alias(value);
      out_ += str("event {} {} [{}, {})", kEventKinds[static_cast<size_t>(event.kind)], quoted(event.key), event.begin,
                  event.end);
      if (!event.own_calls.empty()) out_ += str(" runs {}", fmt::join(event.own_calls, ", "));
      out_ += "\n";
      for (const Rebinding& gradient : event.gradients) print_rebinding("  finds", gradient);
      for (ValueId value : event.outputs) out_ += str("  gives {}\n", name(value));
    }
  }

  // "%3: f32[8, 32](1, 8)+64 @s2 conj" at the first mention, "%3" afterwards.
  std::string define(ValueId id) {
    if (!id.valid() || typed_[id.index()]) return name(id);
    typed_[id.index()] = true;
    const Value& value = trace_.values[id.index()];
    std::string text = str("%{}: {}[{}]", id, stepc::name_of(value.dtype), fmt::join(value.sizes, ", "));
    if (!is_contiguous(value)) text += str("({})", fmt::join(value.strides, ", "));
    if (value.offset != 0) text += str("+{}", value.offset);
    text += str(" @s{}", value.storage);
    if (value.conj) text += " conj";
    if (value.neg) text += " neg";
    return text;
  }

  void define_alias(ValueId id) {
    if (id.valid() && !typed_[id.index()]) out_ += define(id) + " = alias\n";
  }

  template <class T>
  static std::string scalar_text(const T& value) {
    if constexpr (std::is_same_v<T, bool>)
      return value ? "true" : "false";
    else if constexpr (std::is_same_v<T, double>)
      return number_text(value);
    else if constexpr (std::is_same_v<T, std::complex<double>>)
      return str("({}, {})", number_text(value.real()), number_text(value.imag()));
    else
      return str("{}", value);
  }

  template <class T>
  static std::string list_text(std::string_view prefix, const std::vector<T>& values) {
    std::vector<std::string> parts;
    for (const auto& value : values) parts.push_back(scalar_text(static_cast<T>(value)));
    return str("{}[{}]", prefix, fmt::join(parts, ", "));
  }

  std::string text_of(const Arg& arg, bool result) {
    struct Visitor {
      Printer& printer;
      bool result;
      std::string operator()(std::monostate) const { return "none"; }
      std::string operator()(bool v) const { return scalar_text(v); }
      std::string operator()(int64_t v) const { return scalar_text(v); }
      std::string operator()(double v) const { return scalar_text(v); }
      std::string operator()(const std::complex<double>& v) const { return scalar_text(v); }
      std::string operator()(const std::string& v) const { return quoted(v); }
      std::string operator()(const std::vector<int64_t>& v) const { return list_text("", v); }
      std::string operator()(const std::vector<double>& v) const { return list_text("f", v); }
      std::string operator()(const std::vector<bool>& v) const { return list_text("b", v); }
      std::string operator()(const Symbol& v) const { return str("{}:{}", name_of(v.kind), v.text); }
      std::string operator()(const WrappedNumber& v) const {
        return "number(" + std::visit([](const auto& n) { return scalar_text(n); }, v.number) + ")";
      }
      std::string operator()(ValueId v) const {
        if (!v.valid()) return "undefined";
        return result ? printer.define(v) : name(v);
      }
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
    return std::visit(Visitor{*this, result}, arg);
  }

  void print_call(size_t index) {
    const Call& call = trace_.calls[index];
    for_each_value(call.args, [&](ValueId value) { define_alias(value); });
    std::vector<std::string> args;
    std::vector<std::string> results;
    for (const Arg& arg : call.args) args.push_back(text_of(arg, false));
    for (const Arg& result : call.results) results.push_back(text_of(result, true));
    out_ += str("call {} {}{}= {}({})", index, fmt::join(results, "; "), results.empty() ? "" : " ", call.op,
                fmt::join(args, ", "));
    if (!call.writes.empty()) {
      std::vector<std::string> writes;
      for (ValueId value : call.writes) writes.push_back(name(value));
      out_ += str(" writes {}", fmt::join(writes, ", "));
    }
    out_ += str(" | {} {}\n", stepc::name_of(call.phase), quoted(call.module));
  }

  void print_allocation(const Allocation& allocation) {
    out_ += str("  alloc {}{} [{}, {}){}\n", allocation.bytes,
                allocation.storage.valid() ? str(" @s{}", allocation.storage) : "", allocation.first, allocation.last,
                allocation.kept ? " kept" : "");
  }

  const Trace& trace_;
  std::vector<bool> typed_;
  std::string out_;
};

// ---- parsing

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Trace parse() {
    next_line();
    expect("stepc.trace 1");
    end_of_line();
    while (next_line()) parse_line();
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i]) fail(str("%{} is used and never defined", i));
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    user_error("trace text, line {}: {}, at '{}'", line_number_, what, line_.substr(0, 40));
  }

  bool next_line() {
    if (position_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', position_), text_.size());
    line_ = text_.substr(position_, end - position_);
    position_ = end + 1;
    ++line_number_;
    skip_space();
    return true;
  }
  void skip_space() { line_.remove_prefix(std::min(line_.find_first_not_of(' '), line_.size())); }
  bool accept(std::string_view token) {
    if (line_.substr(0, token.size()) != token) return false;
    line_.remove_prefix(token.size());
    skip_space();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(str("expected '{}'", token));
  }
  void end_of_line() {
    if (!line_.empty()) fail("unexpected text at the end of the line");
  }

  int64_t integer() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), value);
    if (error != std::errc()) fail("expected an integer");
    line_.remove_prefix(static_cast<size_t>(end - line_.data()));
    skip_space();
    return value;
  }
  size_t index(size_t limit = size_t{1} << 31) {
    const int64_t value = integer();
    if (value < 0 || static_cast<size_t>(value) >= limit) fail(str("index {} is out of range", value));
    return static_cast<size_t>(value);
  }
  std::string_view word() {
    size_t end = 0;
    while (end < line_.size() && (std::isalnum(static_cast<unsigned char>(line_[end])) != 0 || line_[end] == '_' ||
                                  line_[end] == ':' || line_[end] == '.'))
      ++end;
    if (end == 0) fail("expected a name");
    const std::string_view found = line_.substr(0, end);
    line_.remove_prefix(end);
    skip_space();
    return found;
  }
  std::string quoted_text() {
    if (line_.empty() || line_[0] != '"') fail("expected a quoted text");
    std::string out;
    for (size_t i = 1; i < line_.size(); ++i) {
      if (line_[i] == '"') {
        line_.remove_prefix(i + 1);
        skip_space();
        return out;
      }
      if (line_[i] == '\\' && i + 1 < line_.size()) {
        ++i;
        out += line_[i] == 'n' ? '\n' : line_[i];
      } else {
        out += line_[i];
      }
    }
    fail("a quoted text does not end");
  }

  template <class F>
  void list(std::string_view close, F&& element) {
    if (accept(close)) return;
    do element();
    while (accept(","));
    expect(close);
  }
  std::vector<int64_t> integers(std::string_view close) {
    std::vector<int64_t> out;
    list(close, [&] { out.push_back(integer()); });
    return out;
  }

  StorageId storage() {
    expect("s");
    return StorageId(index(trace_.storages.size()));
  }

  // A value's name, followed by its type when this is the first mention.
  ValueId value() {
    if (accept("none") || accept("undefined")) return {};
    expect("%");
    // No honest text names more values than it has characters.
    const size_t id = index(text_.size());
    if (id >= trace_.values.size()) {
      trace_.values.resize(id + 1);
      defined_.resize(id + 1, false);
    }
    if (accept(":")) {
      if (defined_[id]) fail(str("%{} is defined twice", id));
      trace_.values[id] = value_type();
      defined_[id] = true;
    }
    return ValueId(id);
  }
  Value value_type() {
    Value value;
    size_t end = 0;
    while (end < line_.size() && std::isalnum(static_cast<unsigned char>(line_[end])) != 0) ++end;
    const auto dtype = dtype_from_name(line_.substr(0, end));
    if (!dtype) fail("expected a dtype");
    line_.remove_prefix(end);
    value.dtype = *dtype;
    expect("[");
    value.sizes = integers("]");
    if (accept("(")) {
      value.strides = integers(")");
      if (value.strides.size() != value.sizes.size()) fail("as many strides as sizes are needed");
    } else {
      value.strides.assign(value.sizes.size(), 1);
      for (size_t d = value.sizes.size(); d-- > 1;)
        if (__builtin_mul_overflow(value.strides[d], value.sizes[d], &value.strides[d - 1])) fail("a size overflows");
    }
    if (accept("+")) value.offset = integer();
    expect("@");
    value.storage = storage();
    value.conj = accept("conj");
    value.neg = accept("neg");
    return value;
  }

  std::variant<int64_t, double> number() {
    for (const auto& [token, special] :
         {std::pair<std::string_view, double>{"inf", HUGE_VAL}, {"-inf", -HUGE_VAL}, {"nan", NAN}, {"-nan", -NAN}})
      if (accept(token)) return special;
    const size_t end = std::min(line_.find_first_not_of("+-0123456789.e"), line_.size());
    const std::string_view digits = line_.substr(0, end);
    if (digits.find_first_of(".e") == std::string_view::npos) return integer();
    double value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size()) fail("expected a number");
    line_.remove_prefix(end);
    skip_space();
    return value;
  }
  double real() {
    const auto value = number();
    if (const auto* real = std::get_if<double>(&value)) return *real;
    fail("expected a number with a point");
  }
  std::complex<double> complex() {
    const double re = real();
    expect(",");
    const double im = real();
    expect(")");
    return {re, im};
  }

  Arg argument() {
    if (accept("undefined")) return ValueId();
    if (accept("none")) return std::monostate();
    if (accept("true")) return true;
    if (accept("false")) return false;
    if (line_.starts_with('%')) return value();
    if (line_.starts_with('"')) return quoted_text();
    if (accept("(")) return complex();
    if (accept("t[")) {
      std::vector<ValueId> out;
      list("]", [&] { out.push_back(value()); });
      return out;
    }
    if (accept("f[")) {
      std::vector<double> out;
      list("]", [&] { out.push_back(real()); });
      return out;
    }
    if (accept("b[")) {
      std::vector<bool> out;
      list("]", [&] { out.push_back(boolean()); });
      return out;
    }
    if (accept("[")) return integers("]");
    if (accept("number(")) return wrapped();
    if (accept("read(")) return read_number();
    if (accept("generator(")) {
      const GeneratorArg generator{GeneratorId(index())};
      expect(")");
      return generator;
    }
    for (auto kind : {Symbol::Kind::kDType, Symbol::Kind::kDevice, Symbol::Kind::kLayout, Symbol::Kind::kMemoryFormat})
      if (accept(str("{}:", name_of(kind)))) return Symbol{kind, std::string(word())};
    const auto constant = number();
    if (const auto* integer = std::get_if<int64_t>(&constant)) return *integer;
    return std::get<double>(constant);
  }
  bool boolean() {
    if (accept("true")) return true;
    expect("false");
    return false;
  }
  Arg wrapped() {
    WrappedNumber out;
    if (accept("true")) {
      out.number = true;
    } else if (accept("false")) {
      out.number = false;
    } else if (accept("(")) {
      out.number = complex();
    } else {
      const auto constant = number();
      if (const auto* integer = std::get_if<int64_t>(&constant))
        out.number = *integer;
      else
        out.number = std::get<double>(constant);
    }
    expect(")");
    return out;
  }

  ReadNumber read_number() {
    ReadNumber out;
    out.read = CallId(index());
    expect(",");
    bool found = false;
    for (size_t k = 0; k < std::size(kReadKinds); ++k) {
      if (found || !accept(kReadKinds[k])) continue;
      out.kind = static_cast<ReadNumber::Kind>(k);
      found = true;
    }
    if (!found) fail("expected bool, int or double");
    if (accept(",")) {
      expect("wrapped");
      out.wrapped = true;
    }
    expect(")");
    return out;
  }

  std::string hex_bytes() {
    std::string out;
    if (accept("none")) return out;
    const auto digit = [&](char c) -> int {
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      fail("expected hexadecimal digits");
    };
    if (line_.size() % 2 != 0) fail("a byte has two hexadecimal digits");
    for (size_t i = 0; i < line_.size(); i += 2) out += static_cast<char>(digit(line_[i]) * 16 + digit(line_[i + 1]));
    line_ = {};
    return out;
  }

  Rebinding rebinding() {
    Rebinding out;
    out.owner = owner();
    out.key = quoted_text();
    out.value = value();
    return out;
  }

  void parse_state() {
    GeneratorState state;
    state.generator = GeneratorId(index());
    if (accept("after")) {
      state.kind = GeneratorState::Kind::kAfterCall;
      state.call = CallId(index());
    } else if (accept("constant")) {
      state.kind = GeneratorState::Kind::kConstant;
      state.bytes = hex_bytes();
    } else if (accept("resumed")) {
      state.kind = GeneratorState::Kind::kResumed;
    } else {
      expect("initial");
    }
    trace_.states.push_back(std::move(state));
  }

  void parse_event() {
    HostEvent event;
    bool found = false;
    for (size_t k = 0; k < std::size(kEventKinds); ++k) {
      if (found || !accept(kEventKinds[k])) continue;
      event.kind = static_cast<HostEvent::Kind>(k);
      found = true;
    }
    if (!found) fail("expected shadow, eager or pause");
    event.key = quoted_text();
    expect("[");
    event.begin = CallId(index());
    expect(",");
    event.end = CallId(index());
    expect(")");
    if (accept("runs")) {
      do event.own_calls.emplace_back(index());
      while (accept(","));
    }
    trace_.events.push_back(std::move(event));
  }

  std::pair<int64_t, int64_t> range() {
    expect("[");
    const int64_t first = integer();
    expect(",");
    const int64_t last = integer();
    expect(")");
    return {first, last};
  }

  void parse_line() {
    if (line_.empty() || line_.starts_with('#')) return;
    if (accept("storage ")) return parse_storage();
    if (accept("call ")) return parse_call();
    if (accept("alloc ")) return parse_allocation();
    if (accept("scratch ")) return parse_scratch();
    if (accept("rebind ")) {
      trace_.rebindings.push_back(rebinding());
    } else if (accept("finds ")) {
      if (trace_.events.empty()) fail("no event stands before this line");
      trace_.events.back().gradients.push_back(rebinding());
    } else if (accept("gives ")) {
      if (trace_.events.empty()) fail("no event stands before this line");
      trace_.events.back().outputs.push_back(value());
    } else if (accept("data ")) {
      std::string key = quoted_text();
      trace_.constants.push_back({std::move(key), hex_bytes()});
    } else if (accept("generator ")) {
      trace_.generators.push_back(quoted_text());
    } else if (accept("state ")) {
      parse_state();
    } else if (accept("load ")) {
      const StateId state(index());
      expect("before");
      trace_.loads.push_back({CallId(index()), state});
    } else if (accept("read ")) {
      const CallId call(index());
      const bool guard = accept("guard");
      const bool decides = accept("decides");
      trace_.reads.push_back({call, guard, decides, quoted_text()});
    } else if (accept("event ")) {
      parse_event();
    } else if (accept("numbers ")) {
      do trace_.numbers.push_back(argument());
      while (accept(","));
    } else if (accept("return ")) {
      do trace_.outputs.push_back(value());
      while (accept(","));
    } else if (accept("ticks ")) {
      trace_.ticks = integer();
    } else if (line_.starts_with('%')) {
      const ValueId id = value();
      expect("=");
      if (!accept("alias")) {
        trace_.externals.push_back({owner(), {}, id});
        trace_.externals.back().key = quoted_text();
      }
    } else {
      fail("unknown line");
    }
    end_of_line();
  }
  Owner owner() {
    for (auto owner : {Owner::kParameter, Owner::kGradient, Owner::kBuffer, Owner::kOptimizerState, Owner::kBatch,
                       Owner::kCaptured, Owner::kConstant, Owner::kIncoming})
      if (accept(str("{} ", stepc::name_of(owner)))) return owner;
    fail("expected 'alias' or an owner");
  }
  void parse_storage() {
    expect("s");
    if (index() != trace_.storages.size()) fail("storages are numbered from 0 in order");
    expect("bytes=");
    Storage storage;
    storage.bytes = static_cast<uint64_t>(integer());
    storage.external = accept("external");
    storage.escapes = accept("escapes");
    trace_.storages.push_back(storage);
    end_of_line();
  }
  void parse_call() {
    if (index() != trace_.calls.size()) fail("calls are numbered from 0 in order");
    Call call;
    if (!accept("=")) {
      do call.results.push_back(result());
      while (accept(";"));
      expect("=");
    }
    const size_t open = std::min(line_.find('('), line_.size());
    call.op = std::string(trim(line_.substr(0, open)));
    line_.remove_prefix(open);
    expect("(");
    list(")", [&] { call.args.push_back(argument()); });
    if (accept("writes ")) {
      do call.writes.push_back(value());
      while (accept(","));
    }
    expect("|");
    bool found = false;
    for (auto phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate}) {
      if (found || !accept(str("{} ", stepc::name_of(phase)))) continue;
      call.phase = phase;
      found = true;
    }
    if (!found) fail("expected a phase");
    call.module = quoted_text();
    end_of_line();
    trace_.calls.push_back(std::move(call));
  }
  Arg result() {
    if (accept("t[")) {
      std::vector<ValueId> out;
      list("]", [&] { out.push_back(value()); });
      return out;
    }
    if (line_.starts_with('%')) return value();
    return argument();
  }
  CallId last_call() {
    if (trace_.calls.empty()) fail("no call stands before this line");
    return CallId(trace_.calls.size() - 1);
  }
  void parse_allocation() {
    Allocation allocation;
    allocation.call = last_call();
    allocation.bytes = static_cast<uint64_t>(integer());
    if (accept("@")) allocation.storage = storage();
    std::tie(allocation.first, allocation.last) = range();
    allocation.kept = accept("kept");
    trace_.allocations.push_back(allocation);
    end_of_line();
  }
  void parse_scratch() {
    WorkerScratch scratch;
    scratch.call = last_call();
    scratch.bytes = static_cast<uint64_t>(integer());
    std::tie(scratch.first, scratch.last) = range();
    trace_.scratch.push_back(scratch);
    end_of_line();
  }

  std::string_view text_;
  std::string_view line_;
  size_t position_ = 0;
  int line_number_ = 0;
  Trace trace_;
  std::vector<bool> defined_;
};

}  // namespace

std::string to_text(const Trace& trace) { return Printer(trace).print(); }
Trace parse_trace(std::string_view text) { return Parser(text).parse(); }

}  // namespace stepc
