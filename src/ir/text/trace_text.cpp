// Text form of a Trace. One line a storage, an external, a call, an allocation; a value's type stands where the value
// is first named:
//
//   stepc.trace 1
//   device cuda:0                      (where there is one)
//   storage s0 bytes=4096 external device
//   %0: f32[32, 32] @s0 = parameter "model.weight"
//   %2: f32[32, 32](1, 32) @s0 = alias
//   call 0 %3: f32[8, 32] @s2 = aten::mm(%1, %2) | forward "model"
//     alloc 1024 @s2 [0, 9)
//     scratch 65536 [1, 2)
//   call 1 = aten::add_.Tensor(%0, %3, alpha) writes %0 | update ""
//   call 2 %4: f32[8, 32] @s3 = my::op(%3) rule flops 512.0 dims "m n -> m n" | forward ""     (ir/call_rule.h)
//   rebind gradient "model.weight" none
//   return %5
//   numbers read(7, double), 3
//   ticks 12
//
// Constants: none, true, 3, 2.5 (always with a point or exponent), (1.0+2.0j), "text", [1, 2], f[1.0], b[true],
// dtype:bf16, number(2), [%1, none]. What the host has to do with the step stands before the calls:
//
//   data "0" 3f800000                  bytes of the constant "0"
//   generator "default"                generator 0
//   state 0 initial                    of generator 0; states are numbered in order
//   state 0 resumed
//   state 0 after 12
//   state 0 constant 0a0b
//   load 1 before 17                   state 1 comes back before call 17
//   read 7 guard "model.py:12"         or decides, or both
//   event shadow "optimizer" [20, 40) runs 20, 21
//     finds gradient "model.weight" %9
//   event pause "forward" [40, 40)
//     gives %4
#include <tuple>

#include "base/check.h"
#include "ir/text/arg_text.h"
#include "ir/text/text_cursor.h"
#include "ir/trace.h"

namespace stepc {

namespace {

// ---- printing

constexpr std::string_view kEventKinds[] = {"shadow", "eager", "pause", "read"};

class Printer {
 public:
  explicit Printer(const Trace& trace) : trace_(trace), typed_(trace.values.size(), false) {}

  std::string print() {
    out_ = "stepc.trace 1\n";
    if (!trace_.device.empty()) out_ += str("device {}\n", trace_.device);
    for (size_t s = 0; s < trace_.storages.size(); ++s) {
      const Storage& storage = trace_.storages[s];
      out_ += str("storage s{} bytes={}{}{}{}\n", s, storage.bytes, storage.external ? " external" : "",
                  storage.escapes ? " escapes" : "", storage.space == Space::kDevice ? " device" : "");
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
      for (const Arg& number : trace_.numbers) numbers.push_back(argument(number));
      out_ += str("numbers {}\n", fmt::join(numbers, ", "));
    }
    out_ += str("ticks {}\n", trace_.ticks);
    return std::move(out_);
  }

 private:
  static std::string name(ValueId id) { return id.valid() ? str("%{}", id) : "none"; }

  void print_rebinding(std::string_view word, const Rebinding& rebinding) {
    out_ += str("{} {} {} {}\n", word, stepc::name_of(rebinding.owner), quoted(rebinding.key), name(rebinding.value));
  }

  void print_host_side() {
    for (const Constant& constant : trace_.constants)
      out_ += str("data {} {}\n", quoted(constant.key), hex_text(constant.bytes));
    for (const std::string& key : trace_.generators) out_ += str("generator {}\n", quoted(key));
    for (const GeneratorState& state : trace_.states) {
      out_ += str("state {} ", state.generator);
      if (state.kind == GeneratorState::Kind::kInitial) out_ += "initial\n";
      if (state.kind == GeneratorState::Kind::kResumed) out_ += "resumed\n";
      if (state.kind == GeneratorState::Kind::kAfterCall) out_ += str("after {}\n", state.call);
      if (state.kind == GeneratorState::Kind::kConstant) out_ += str("constant {}\n", hex_text(state.bytes));
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

  std::string argument(const Arg& arg) const {
    return arg_text(arg, [](ValueId id) { return name(id); });
  }
  std::string made(const Arg& arg) {
    return arg_text(arg, [&](ValueId id) { return define(id); });
  }

  void print_call(size_t index) {
    const Call& call = trace_.calls[index];
    for_each_value(call.args, [&](ValueId value) { define_alias(value); });
    std::vector<std::string> args;
    std::vector<std::string> results;
    for (const Arg& arg : call.args) args.push_back(argument(arg));
    for (const Arg& result : call.results) results.push_back(made(result));
    out_ += str("call {} {}{}= {}({})", index, fmt::join(results, "; "), results.empty() ? "" : " ", call.op,
                fmt::join(args, ", "));
    if (!call.writes.empty()) {
      std::vector<std::string> writes;
      for (ValueId value : call.writes) writes.push_back(name(value));
      out_ += str(" writes {}", fmt::join(writes, ", "));
    }
    if (call.rule) out_ += str(" {}", to_text(*call.rule));
    out_ += str(" | {} {}\n", stepc::name_of(call.phase), quoted(call.module));
  }

  void print_allocation(const Allocation& allocation) {
    out_ += str("  alloc {}{} [{}, {}){}{}\n", allocation.bytes,
                allocation.storage.valid() ? str(" @s{}", allocation.storage) : "", allocation.first, allocation.last,
                allocation.kept ? " kept" : "", allocation.space == Space::kDevice ? " device" : "");
  }

  const Trace& trace_;
  std::vector<bool> typed_;
  std::string out_;
};

// ---- parsing

class Parser {
 public:
  explicit Parser(std::string_view text) : in_("trace text", text) {}

  Trace parse() {
    in_.next_line();
    in_.expect("stepc.trace 1");
    in_.end_of_line();
    while (in_.next_line()) parse_line();
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i]) in_.fail(str("%{} is used and never defined", i));
    return std::move(trace_);
  }

 private:
  StorageId storage() {
    in_.expect("s");
    const size_t storage = in_.index();
    if (storage >= trace_.storages.size()) in_.fail(str("index {} is out of range", storage));
    return StorageId(storage);
  }

  // A value's name, followed by its type when this is the first mention.
  ValueId value() {
    if (in_.accept("none") || in_.accept("undefined")) return {};
    in_.expect("%");
    const size_t id = in_.index();
    if (id >= trace_.values.size()) {
      trace_.values.resize(id + 1);
      defined_.resize(id + 1, false);
    }
    if (in_.accept(":")) {
      if (defined_[id]) in_.fail(str("%{} is defined twice", id));
      trace_.values[id] = value_type();
      defined_[id] = true;
    }
    return ValueId(id);
  }
  Value value_type() {
    Value value;
    value.dtype = parse_dtype(in_);
    in_.expect("[");
    value.sizes = in_.integers("]");
    if (in_.accept("(")) {
      value.strides = in_.integers(")");
      if (value.strides.size() != value.sizes.size()) in_.fail("as many strides as sizes are needed");
    } else {
      value.strides.assign(value.sizes.size(), 1);
      for (size_t d = value.sizes.size(); d-- > 1;)
        if (__builtin_mul_overflow(value.strides[d], value.sizes[d], &value.strides[d - 1]))
          in_.fail("a size overflows");
    }
    if (in_.accept("+")) value.offset = in_.integer();
    in_.expect("@");
    value.storage = storage();
    value.conj = in_.accept("conj");
    value.neg = in_.accept("neg");
    return value;
  }

  Arg argument() {
    return parse_arg(in_, '%', [&] { return value(); });
  }

  Rebinding rebinding() {
    Rebinding out;
    out.owner = owner();
    out.key = in_.quoted_text();
    out.value = value();
    return out;
  }

  void parse_state() {
    GeneratorState state;
    state.generator = GeneratorId(in_.id());
    if (in_.accept("after")) {
      state.kind = GeneratorState::Kind::kAfterCall;
      state.call = CallId(in_.id());
    } else if (in_.accept("constant")) {
      state.kind = GeneratorState::Kind::kConstant;
      state.bytes = in_.hex_bytes();
    } else if (in_.accept("resumed")) {
      state.kind = GeneratorState::Kind::kResumed;
    } else {
      in_.expect("initial");
    }
    trace_.states.push_back(std::move(state));
  }

  void parse_event() {
    HostEvent event;
    bool found = false;
    for (size_t k = 0; k < std::size(kEventKinds); ++k) {
      if (found || !in_.accept(kEventKinds[k])) continue;
      event.kind = static_cast<HostEvent::Kind>(k);
      found = true;
    }
    if (!found) in_.fail("expected shadow, eager, pause or read");
    event.key = in_.quoted_text();
    in_.expect("[");
    event.begin = CallId(in_.id());
    in_.expect(",");
    event.end = CallId(in_.id());
    in_.expect(")");
    if (in_.accept("runs")) {
      do event.own_calls.emplace_back(in_.id());
      while (in_.accept(","));
    }
    trace_.events.push_back(std::move(event));
  }

  std::pair<int64_t, int64_t> range() {
    in_.expect("[");
    const int64_t first = in_.integer();
    in_.expect(",");
    const int64_t last = in_.integer();
    in_.expect(")");
    return {first, last};
  }

  void parse_line() {
    if (in_.at_end_of_line() || in_.rest().starts_with('#')) return;
    if (in_.accept("storage ")) return parse_storage();
    if (in_.accept("call ")) return parse_call();
    if (in_.accept("alloc ")) return parse_allocation();
    if (in_.accept("scratch ")) return parse_scratch();
    if (in_.accept("rebind ")) {
      trace_.rebindings.push_back(rebinding());
    } else if (in_.accept("finds ")) {
      if (trace_.events.empty()) in_.fail("no event stands before this line");
      trace_.events.back().gradients.push_back(rebinding());
    } else if (in_.accept("gives ")) {
      if (trace_.events.empty()) in_.fail("no event stands before this line");
      trace_.events.back().outputs.push_back(value());
    } else if (in_.accept("device ")) {
      trace_.device = std::string(in_.word());
    } else if (in_.accept("data ")) {
      std::string key = in_.quoted_text();
      trace_.constants.push_back({std::move(key), in_.hex_bytes()});
    } else if (in_.accept("generator ")) {
      trace_.generators.push_back(in_.quoted_text());
    } else if (in_.accept("state ")) {
      parse_state();
    } else if (in_.accept("load ")) {
      const StateId state(in_.id());
      in_.expect("before");
      trace_.loads.push_back({CallId(in_.id()), state});
    } else if (in_.accept("read ")) {
      const CallId call(in_.id());
      const bool guard = in_.accept("guard");
      const bool decides = in_.accept("decides");
      trace_.reads.push_back({call, guard, decides, in_.quoted_text()});
    } else if (in_.accept("event ")) {
      parse_event();
    } else if (in_.accept("numbers ")) {
      do trace_.numbers.push_back(argument());
      while (in_.accept(","));
    } else if (in_.accept("return ")) {
      do trace_.outputs.push_back(value());
      while (in_.accept(","));
    } else if (in_.accept("ticks ")) {
      trace_.ticks = in_.integer();
    } else if (in_.rest().starts_with('%')) {
      const ValueId id = value();
      in_.expect("=");
      if (!in_.accept("alias")) {
        trace_.externals.push_back({owner(), {}, id});
        trace_.externals.back().key = in_.quoted_text();
      }
    } else {
      in_.fail("unknown line");
    }
    in_.end_of_line();
  }
  Owner owner() {
    for (auto owner : {Owner::kParameter, Owner::kGradient, Owner::kBuffer, Owner::kOptimizerState, Owner::kBatch,
                       Owner::kCaptured, Owner::kConstant, Owner::kIncoming, Owner::kHost})
      if (in_.accept(str("{} ", stepc::name_of(owner)))) return owner;
    in_.fail("expected 'alias' or an owner");
  }
  Space space() { return in_.accept("device") ? Space::kDevice : Space::kHost; }
  void parse_storage() {
    in_.expect("s");
    if (in_.index() != trace_.storages.size()) in_.fail("storages are numbered from 0 in order");
    in_.expect("bytes=");
    Storage storage;
    storage.bytes = in_.unsigned_integer();
    storage.external = in_.accept("external");
    storage.escapes = in_.accept("escapes");
    storage.space = space();
    trace_.storages.push_back(storage);
    in_.end_of_line();
  }
  void parse_call() {
    if (in_.index() != trace_.calls.size()) in_.fail("calls are numbered from 0 in order");
    Call call;
    if (!in_.accept("=")) {
      do call.results.push_back(argument());
      while (in_.accept(";"));
      in_.expect("=");
    }
    call.op = std::string(in_.word());
    in_.expect("(");
    in_.list(")", [&] { call.args.push_back(argument()); });
    if (in_.accept("writes ")) {
      do call.writes.push_back(value());
      while (in_.accept(","));
    }
    if (in_.accept("rule ")) call.rule = parse_call_rule(in_);
    in_.expect("|");
    call.phase = parse_phase(in_);
    call.module = in_.quoted_text();
    in_.end_of_line();
    trace_.calls.push_back(std::move(call));
  }
  CallId last_call() {
    if (trace_.calls.empty()) in_.fail("no call stands before this line");
    return CallId(trace_.calls.size() - 1);
  }
  void parse_allocation() {
    Allocation allocation;
    allocation.call = last_call();
    allocation.bytes = in_.unsigned_integer();
    if (in_.accept("@")) allocation.storage = storage();
    std::tie(allocation.first, allocation.last) = range();
    allocation.kept = in_.accept("kept");
    allocation.space = space();
    trace_.allocations.push_back(allocation);
    in_.end_of_line();
  }
  void parse_scratch() {
    WorkerScratch scratch;
    scratch.call = last_call();
    scratch.bytes = in_.unsigned_integer();
    std::tie(scratch.first, scratch.last) = range();
    trace_.scratch.push_back(scratch);
    in_.end_of_line();
  }

  TextCursor in_;
  Trace trace_;
  std::vector<bool> defined_;
};

}  // namespace

std::string to_text(const Trace& trace) { return Printer(trace).print(); }
Trace parse_trace(std::string_view text) { return Parser(text).parse(); }

}  // namespace stepc
