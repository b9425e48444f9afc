// Text form of a Schedule, one line a thing; what is as it mostly is has no word.
//
//   stepc.schedule 1
//   features bf16, avx512                          of a GPU instead: device cuda sm_90
//   threads 2
//   mesh dp_shard=2                                of one device: none
//   arena 8192
//   live bound 8192
//   layout "best_fit"
//   numbers 1
//   generator "default"
//   state none                                     or its bytes: 0a0b
//   buffer b0: input 128 of 0
//   buffer b1: arena 256 at 64
//   buffer b2: own 256
//   buffer b3: constant 4 = 0000803f
//   operand %0: f32[4, 8] in b0
//   operand %1: f32[8, 4](1, 8)+2 in b0 conj neg   strides where it is not contiguous, then the offset
//   input 0: parameter "weight" %0 written part of <8/dp_shard, 8>
//   i0: op exp (%0) -> (%2) {value=1.0} scratch 64 at 512 work(32.0, 0.0, 256.0) | forward "proj" why "no group"
//   i1: aten aten::frob_ (%0, %2) -> (%0) args(#0, [1, 2], t[#1, undefined]) results(#0) writes 0 workspace 64 0
//     allocations [64 at 0, 128 own] worker scratch 64 at 512 call 7 number 0 | update ""
//   i2: matmul mm (%0, %1, %3) -> (%4) product 0^T x 1, 2 epilogues 0, none, none, none tile inputs 3(8, 1)
//     tile outputs 0(8, 1) share | backward ""
//   i3: generated mul.add (%0) -> (%2) program 0 stream 1 | forward ""
//   i4: guard "" () -> () number 0 expects true | forward ""
//   i9: loss linear_cross_entropy (%0, %1, %2) -> (%3, %4, %5, %6) chunks 1024 programs 0, 1 | forward ""
//   i5: event "" () -> () event 2 | update ""
//   i6: save_generator "" () -> () generator 0 state 1 | forward ""
//   i7: collective all_gather (%0) -> (%5) {axes=[0], ranks=2} stream 1 mark 0 | forward ""
//   i8: wait wait (%5, %0) -> (%6) mark 0 | forward ""
//   output return %2                               or none; "part of" here too
//   output rebind none gradient "weight"
//   output number none = read(0, double)
//   host call 7 arg 2 instruction 1 inputs 3, 4 integer 5
//   program 0
//     stepc.loops 1
//     ...
//   nodes 0
//     stepc.graph 1
//     ...
//
// An instruction is one line (here broken to fit). '#k' among the arguments of an ATen call is its read k, among its
// results its write k.
#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <span>

#include "base/check.h"
#include "base/hash.h"
#include "ir/text/arg_text.h"
#include "ir/text/part_text.h"
#include "ir/text/text_cursor.h"
#include "schedule/schedule.h"

namespace stepc {

namespace {

constexpr std::array<std::string_view, 4> kBufferKinds = {"input", "constant", "arena", "own"};
constexpr std::array<std::string_view, 20> kInstructionKinds = {
    "generated", "nodes", "matmul", "attention",      "loss",           "op",         "aten", "copy",   "guard",
    "event",     "pause", "seed",   "save_generator", "load_generator", "collective", "wait", "record", "send",
    "receive",   "call"};
constexpr std::array<std::string_view, 3> kOutputKinds = {"return", "rebind", "number"};

// ---- printing

std::string operand_name(OperandId id) { return id.valid() ? str("%{}", id) : "none"; }

std::string names(const std::vector<OperandId>& operands) {
  std::vector<std::string> parts;
  for (OperandId id : operands) parts.push_back(operand_name(id));
  return str("({})", fmt::join(parts, ", "));
}

std::string op_text(const std::string& op) {
  const bool is_word = !op.empty() && std::ranges::all_of(op, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == ':' || c == '.';
  });
  return is_word ? op : quoted(op);
}

std::string place_name(ValueId place) { return str("#{}", place); }

std::string args_text(const std::vector<Arg>& args) {
  std::vector<std::string> parts;
  for (const Arg& arg : args) parts.push_back(arg_text(arg, place_name));
  return str("({})", fmt::join(parts, ", "));
}

// What the text leaves out; nullopt where that cannot be counted.
std::optional<Shape> strides_left_out(const Shape& sizes) {
  Shape strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;)
    if (__builtin_mul_overflow(strides[d], sizes[d], &strides[d - 1])) return std::nullopt;
  return strides;
}

std::string buffer_text(const Buffer& buffer) {
  std::string out = str("{} {}", name_of(buffer.kind), buffer.bytes);
  if (buffer.kind == Buffer::Kind::kInput || buffer.input != 0) out += str(" of {}", buffer.input);
  if (buffer.kind == Buffer::Kind::kArena || buffer.offset != 0) out += str(" at {}", buffer.offset);
  if (buffer.space == Space::kDevice) out += " device";
  if (!buffer.content.empty()) out += str(" = {}", hex_text(buffer.content));
  return out;
}

std::string operand_text(const Operand& operand) {
  std::string out = to_text(TensorType{operand.dtype, operand.sizes});
  if (strides_left_out(operand.sizes) != operand.strides) out += str("({})", fmt::join(operand.strides, ", "));
  if (operand.offset != 0) out += str("+{}", operand.offset);
  out += operand.buffer.valid() ? str(" in b{}", operand.buffer) : " in none";
  if (operand.conj) out += " conj";
  if (operand.neg) out += " neg";
  return out;
}

std::string program_name(uint32_t program) { return program == kNoProgram ? "none" : str("{}", program); }

std::string tile_buffers_text(const std::vector<TileBuffer>& buffers) {
  std::vector<std::string> parts;
  for (const TileBuffer& buffer : buffers)
    parts.push_back(
        str("{}({}, {}){}", buffer.place, buffer.row_stride, buffer.column_stride, buffer.is_share ? " share" : ""));
  return str("{}", fmt::join(parts, ", "));
}

std::string matmul_text(const MatmulCall& call) {
  std::vector<std::string> parts;
  for (const MatmulCall::Product& product : call.products)
    parts.push_back(str("{}{}", product.right, product.transposed ? "^T" : ""));
  std::string out = str(" product {}{} x {}", call.left, call.transposed ? "^T" : "",
                        parts.empty() ? "none" : str("{}", fmt::join(parts, ", ")));
  if (!call.epilogue_programs.empty()) {
    parts.clear();
    for (uint32_t program : call.epilogue_programs) parts.push_back(program_name(program));
    out += str(" epilogues {}", fmt::join(parts, ", "));
  }
  if (!call.epilogue_inputs.empty()) out += str(" tile inputs {}", tile_buffers_text(call.epilogue_inputs));
  if (!call.epilogue_outputs.empty()) out += str(" tile outputs {}", tile_buffers_text(call.epilogue_outputs));
  return out;
}

std::string loss_text(const ChunkedLoss& loss) {
  return str(" chunks {} programs {}, {}", loss.tokens, loss.program, program_name(loss.last));
}

std::string allocations_text(const std::vector<PlannedAllocation>& allocations) {
  std::vector<std::string> parts;
  for (const PlannedAllocation& one : allocations)
    parts.push_back(str("{}{}{}{}", one.bytes, one.own ? " own" : "",
                        !one.own || one.offset != 0 ? str(" at {}", one.offset) : std::string(),
                        one.space == Space::kDevice ? " device" : ""));
  return str(" allocations [{}]", fmt::join(parts, ", "));
}

// What is behind an instruction's operands, but for where it comes from.
std::string details_text(const Instruction& one) {
  std::string out;
  if (!one.attrs.empty()) out += str(" {}", to_text(one.attrs));
  if (one.aten) {
    out += " args" + args_text(one.aten->args);
    if (!one.aten->results.empty()) out += " results" + args_text(one.aten->results);
    out += effects_text(*one.aten);
  }
  if (one.program != kNoProgram) out += str(" program {}", one.program);
  if (one.nodes) out += str(" nodes {}", *one.nodes);
  if (one.matmul) out += matmul_text(*one.matmul);
  if (one.loss) out += loss_text(*one.loss);
  if (!one.allocations.empty()) out += allocations_text(one.allocations);
  if (one.scratch != Scratch()) out += str(" scratch {} at {}", one.scratch.bytes, one.scratch.offset);
  if (one.worker_scratch != Scratch())
    out += str(" worker scratch {} at {}", one.worker_scratch.bytes, one.worker_scratch.offset);
  if (one.stream != 0) out += str(" stream {}", one.stream);
  if (one.mark) out += str(" mark {}", *one.mark);
  if (one.call.valid()) out += str(" call {}", one.call);
  if (one.number) out += str(" number {}", *one.number);
  if (one.expected != Arg()) out += " expects " + arg_text(one.expected, place_name);
  const bool is_event = one.kind == Instruction::Kind::kEvent || one.kind == Instruction::Kind::kPause;
  if (is_event || one.event != 0) out += str(" event {}", one.event);
  if (one.in_place) out += " in place";
  const bool is_state = one.kind == Instruction::Kind::kSaveGenerator || one.kind == Instruction::Kind::kLoadGenerator;
  if (is_state || one.generator != 0) out += str(" generator {}", one.generator);
  if (is_state || one.state != 0) out += str(" state {}", one.state);
  if (one.work != Work())
    out += str(" work({}, {}, {})", constant_text(one.work.flops), constant_text(one.work.narrow_flops),
               constant_text(one.work.bytes));
  return out;
}

std::string instruction_text(const Instruction& one) {
  return str("{} {} {} -> {}{} {}{}", name_of(one.kind), op_text(one.op), names(one.reads), names(one.writes),
             details_text(one), source_text(one.source), one.why.empty() ? "" : " why " + quoted(one.why));
}

std::string output_text(const ScheduleOutput& output, const Mesh& mesh) {
  std::string out = str("{} {}", kOutputKinds[static_cast<size_t>(output.kind)], operand_name(output.operand));
  const bool is_default = output.owner == ScheduleOutput().owner && output.key.empty();
  if (output.kind == ScheduleOutput::Kind::kRebind || !is_default)
    out += str(" {} {}", name_of(output.owner), quoted(output.key));
  if (output.value != Arg()) out += " = " + arg_text(output.value, place_name);
  return out + part_text(output.part, mesh);
}

std::string host_number_text(const HostNumber& number) {
  std::string out = number.call.valid() ? str("call {}", number.call) : "call none";
  out += str(" arg {}", number.arg);
  if (number.instruction) out += str(" instruction {}", *number.instruction);
  if (!number.inputs.empty()) out += str(" inputs {}", fmt::join(number.inputs, ", "));
  if (number.integer) out += str(" integer {}", *number.integer);
  return out;
}

std::string indented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += str("  {}\n", text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// ---- parsing

class ScheduleParser {
 public:
  explicit ScheduleParser(std::string_view text) : in_("schedule text", text) {}

  Schedule parse() {
    in_.next_line();
    in_.expect("stepc.schedule 1");
    in_.end_of_line();
    while (in_.next_line()) {
      if (in_.at_end_of_line() || in_.rest().starts_with('#')) continue;
      parse_line();
      in_.end_of_line();
      if (starts_program_) parse_program();
      if (starts_nodes_) parse_nodes();
    }
    return std::move(schedule_);
  }

 private:
  void parse_line() {
    if (in_.accept("input ")) return parse_input();
    if (in_.accept("i")) return parse_instruction();
    if (in_.accept("buffer ")) return parse_buffer();
    if (in_.accept("operand ")) return parse_operand();
    if (in_.accept("output ")) return parse_output();
    if (in_.accept("host ")) return parse_host_number();
    parse_head();
  }

  void parse_head() {
    if (in_.accept("features ")) {
      parse_features();
    } else if (in_.accept("device cuda sm_")) {
      const int64_t sm = in_.integer();
      if (sm < kOldestSm || sm > kMostSm) in_.fail(str("sm_{}", sm));
      schedule_.features.sm = static_cast<int>(sm);
    } else if (in_.accept("threads ")) {
      const int64_t threads = in_.integer();
      if (threads < 1 || threads > INT32_MAX) in_.fail(str("{} threads", threads));
      schedule_.threads = static_cast<int>(threads);
    } else if (in_.accept("mesh ")) {
      if (!schedule_.mesh.axes.empty() || !schedule_.inputs.empty() || !schedule_.outputs.empty())
        in_.fail("the mesh stands once, before inputs and outputs");
      schedule_.mesh = parse_mesh(in_);
    } else if (in_.accept("memory ")) {
      schedule_.device = std::string(in_.word());
      in_.expect("from ");
      schedule_.device_begin = in_.unsigned_integer();
    } else if (in_.accept("arena ")) {
      schedule_.arena_bytes = in_.unsigned_integer();
    } else if (in_.accept("live bound ")) {
      schedule_.live_lower_bound_bytes = in_.unsigned_integer();
    } else if (in_.accept("layout ")) {
      schedule_.layout_algorithm = in_.quoted_text();
    } else if (in_.accept("numbers ")) {
      schedule_.numbers = in_.id();
    } else if (in_.accept("generator ")) {
      schedule_.generators.push_back(in_.quoted_text());
    } else if (in_.accept("state ")) {
      schedule_.states.push_back(in_.hex_bytes());
    } else if (in_.accept("program ")) {
      expect_number(schedule_.programs.size());
      starts_program_ = true;
    } else if (in_.accept("nodes ")) {
      expect_number(schedule_.nodes.size());
      starts_nodes_ = true;
    } else {
      in_.fail("unknown line");
    }
  }

  [[nodiscard]] char first() const { return in_.rest().empty() ? '\0' : in_.rest().front(); }

  // The next of its kind.
  void expect_number(size_t number) {
    if (in_.id() != number) in_.fail(str("expected number {}", number));
  }
  uint32_t below(size_t count, std::string_view what) {
    const uint32_t number = in_.id();
    if (number >= count) in_.fail(str("there is no {} {}", what, number));
    return number;
  }
  OperandId operand() {
    if (in_.accept("none")) return {};
    in_.expect("%");
    return OperandId(below(schedule_.operands.size(), "operand"));
  }
  std::vector<OperandId> operand_list() {
    std::vector<OperandId> out;
    in_.expect("(");
    in_.list(")", [&] { out.push_back(operand()); });
    return out;
  }
  Arg arg() {
    return parse_arg(in_, '#', [&] {
      in_.expect("#");
      return ValueId(in_.id());
    });
  }
  std::vector<Arg> args() {
    std::vector<Arg> out;
    in_.expect("(");
    in_.list(")", [&] { out.push_back(arg()); });
    return out;
  }
  template <size_t N>
  size_t kind(const std::array<std::string_view, N>& kinds, std::string_view of) {
    const std::string_view name = in_.word();
    const auto found = std::ranges::find(kinds, name);
    if (found == kinds.end()) in_.fail(str("'{}' is no kind of {}", name, of));
    return static_cast<size_t>(found - kinds.begin());
  }

  void parse_features() {
    if (in_.accept("none")) return;
    do {
      const std::string_view name = in_.word();
      const auto found = std::ranges::find(kFeatureNames, name, &FeatureName::name);
      if (found == kFeatureNames.end()) in_.fail(str("there is no feature '{}'", name));
      schedule_.features.*found->there = true;
    } while (in_.accept(","));
  }

  void parse_buffer() {
    in_.expect("b");
    expect_number(schedule_.buffers.size());
    in_.expect(":");
    Buffer buffer;
    buffer.kind = static_cast<Buffer::Kind>(kind(kBufferKinds, "buffer"));
    buffer.bytes = in_.unsigned_integer();
    if (in_.accept("of ")) buffer.input = in_.id();
    if (in_.accept("at ")) buffer.offset = in_.unsigned_integer();
    if (in_.accept("device")) buffer.space = Space::kDevice;
    if (in_.accept("=")) buffer.content = in_.hex_bytes();
    schedule_.buffers.push_back(std::move(buffer));
  }

  void parse_operand() {
    in_.expect("%");
    expect_number(schedule_.operands.size());
    in_.expect(":");
    Operand operand;
    TensorType type = parse_tensor_type(in_);
    operand.dtype = type.dtype;
    operand.sizes = std::move(type.shape);
    if (in_.accept("(")) {
      operand.strides = in_.integers(")");
      if (operand.strides.size() != operand.sizes.size()) in_.fail("as many strides as sizes are needed");
    } else {
      operand.strides = *strides_left_out(operand.sizes);
    }
    if (in_.accept("+")) operand.offset = in_.integer();
    in_.expect("in ");
    if (!in_.accept("none")) {
      in_.expect("b");
      operand.buffer = BufferId(below(schedule_.buffers.size(), "buffer"));
    }
    operand.conj = in_.accept("conj");
    operand.neg = in_.accept("neg");
    schedule_.operands.push_back(std::move(operand));
  }

  void parse_input() {
    expect_number(schedule_.inputs.size());
    in_.expect(":");
    ScheduleInput input;
    input.kind = parse_input_kind(in_);
    input.key = in_.quoted_text();
    input.operand = operand();
    input.written = in_.accept("written");
    input.part = parse_part(in_, schedule_.mesh);
    schedule_.inputs.push_back(std::move(input));
  }

  void parse_instruction() {
    expect_number(schedule_.instructions.size());
    in_.expect(":");
    Instruction one;
    one.kind = static_cast<Instruction::Kind>(kind(kInstructionKinds, "instruction"));
    one.op = in_.rest().starts_with('"') ? in_.quoted_text() : std::string(in_.word());
    one.reads = operand_list();
    in_.expect("->");
    one.writes = operand_list();
    one.attrs = parse_attrs(in_);
    if (in_.accept("args")) {
      one.aten.emplace().args = args();
      if (in_.accept("results")) one.aten->results = args();
      parse_effects(in_, *one.aten);
    }
    if (in_.accept("program ")) one.program = in_.id();
    if (in_.accept("nodes ")) one.nodes = in_.id();
    if (in_.accept("product ")) one.matmul = matmul();
    if (in_.accept("chunks ")) one.loss = loss();
    if (in_.accept("allocations ")) one.allocations = allocations();
    if (in_.accept("scratch ")) one.scratch = scratch();
    if (in_.accept("worker scratch ")) one.worker_scratch = scratch();
    parse_numbers(one);
    one.source = parse_source(in_);
    if (in_.accept("why ")) one.why = in_.quoted_text();
    schedule_.instructions.push_back(std::move(one));
  }

  void parse_numbers(Instruction& one) {
    if (in_.accept("stream ")) one.stream = in_.id();
    if (in_.accept("mark ")) one.mark = in_.id();
    if (in_.accept("call ")) one.call = CallId(in_.id());
    if (in_.accept("number ")) one.number = in_.id();
    if (in_.accept("expects ")) one.expected = arg();
    if (in_.accept("event ")) one.event = in_.id();
    one.in_place = in_.accept("in place");
    if (in_.accept("generator ")) one.generator = in_.id();
    if (in_.accept("state ")) one.state = in_.id();
    if (!in_.accept("work(")) return;
    one.work.flops = in_.real();
    in_.expect(",");
    one.work.narrow_flops = in_.real();
    in_.expect(",");
    one.work.bytes = in_.real();
    in_.expect(")");
  }

  Scratch scratch() {
    Scratch out;
    out.bytes = in_.unsigned_integer();
    in_.expect("at ");
    out.offset = in_.unsigned_integer();
    return out;
  }

  std::vector<PlannedAllocation> allocations() {
    std::vector<PlannedAllocation> out;
    in_.expect("[");
    in_.list("]", [&] {
      PlannedAllocation& one = out.emplace_back();
      one.bytes = in_.unsigned_integer();
      one.own = in_.accept("own");
      if (in_.accept("at "))
        one.offset = in_.unsigned_integer();
      else if (!one.own)
        in_.fail("expected where it is in the arena, or 'own'");
      if (in_.accept("device")) one.space = Space::kDevice;
    });
    return out;
  }

  MatmulCall matmul() {
    MatmulCall out;
    out.left = in_.id();
    out.transposed = in_.accept("^T");
    in_.expect("x ");
    if (!in_.accept("none")) {
      do {
        MatmulCall::Product& product = out.products.emplace_back();
        product.right = in_.id();
        product.transposed = in_.accept("^T");
      } while (in_.accept(","));
    }
    if (in_.accept("epilogues ")) {
      do out.epilogue_programs.push_back(in_.accept("none") ? kNoProgram : in_.id());
      while (in_.accept(","));
    }
    if (in_.accept("tile inputs ")) out.epilogue_inputs = tile_buffers();
    if (in_.accept("tile outputs ")) out.epilogue_outputs = tile_buffers();
    return out;
  }
  ChunkedLoss loss() {
    ChunkedLoss out;
    out.tokens = in_.integer();
    in_.expect("programs ");
    out.program = in_.id();
    in_.expect(",");
    if (!in_.accept("none")) out.last = in_.id();
    return out;
  }
  std::vector<TileBuffer> tile_buffers() {
    std::vector<TileBuffer> out;
    do {
      TileBuffer& buffer = out.emplace_back();
      buffer.place = in_.id();
      in_.expect("(");
      buffer.row_stride = in_.integer();
      in_.expect(",");
      buffer.column_stride = in_.integer();
      in_.expect(")");
      buffer.is_share = in_.accept("share");
    } while (in_.accept(","));
    return out;
  }

  void parse_output() {
    ScheduleOutput output;
    output.kind = static_cast<ScheduleOutput::Kind>(kind(kOutputKinds, "output"));
    output.operand = operand();
    if (!in_.at_end_of_line() && first() != '=' && !in_.rest().starts_with("part of ")) {
      output.owner = parse_input_kind(in_);
      output.key = in_.quoted_text();
    }
    if (in_.accept("=")) output.value = arg();
    output.part = parse_part(in_, schedule_.mesh);
    schedule_.outputs.push_back(std::move(output));
  }

  void parse_host_number() {
    HostNumber number;
    in_.expect("call ");
    if (!in_.accept("none")) number.call = CallId(in_.id());
    in_.expect("arg ");
    number.arg = in_.id();
    if (in_.accept("instruction ")) number.instruction = in_.id();
    if (in_.accept("inputs ")) {
      do number.inputs.push_back(in_.id());
      while (in_.accept(","));
    }
    if (in_.accept("integer ")) number.integer = in_.integer();
    schedule_.host_numbers.push_back(std::move(number));
  }

  void parse_program() {
    starts_program_ = false;
    try {
      schedule_.programs.push_back(parse_loop_program(in_.indented_lines()));
    } catch (const UserError& error) {
      in_.fail(str("program {}: {}", schedule_.programs.size(), error.what()));
    }
  }

  void parse_nodes() {
    starts_nodes_ = false;
    try {
      schedule_.nodes.push_back(parse_graph(in_.indented_lines()));
    } catch (const UserError& error) {
      in_.fail(str("nodes {}: {}", schedule_.nodes.size(), error.what()));
    }
  }

  TextCursor in_;
  Schedule schedule_;
  bool starts_program_ = false;
  bool starts_nodes_ = false;
};

}  // namespace

std::string_view name_of(Buffer::Kind kind) { return kBufferKinds[static_cast<size_t>(kind)]; }
std::string_view name_of(Instruction::Kind kind) { return kInstructionKinds[static_cast<size_t>(kind)]; }

namespace {
std::string text_of(const Schedule& schedule, std::string_view device) {
  std::string out = "stepc.schedule 1\n";
  out += schedule.features.sm > 0 ? str("device {}\n", to_text(schedule.features))
                                  : str("features {}\n", to_text(schedule.features));
  out += str("threads {}\n", schedule.threads);
  if (!schedule.mesh.axes.empty()) out += str("mesh {}\n", to_text(schedule.mesh));
  if (!device.empty()) out += str("memory {} from {}\n", device, schedule.device_begin);
  out += str("arena {}\nlive bound {}\nlayout {}\nnumbers {}\n", schedule.arena_bytes, schedule.live_lower_bound_bytes,
             quoted(schedule.layout_algorithm), schedule.numbers);
  for (const std::string& generator : schedule.generators) out += str("generator {}\n", quoted(generator));
  for (const std::string& state : schedule.states) out += str("state {}\n", hex_text(state));
  for (size_t k = 0; k < schedule.buffers.size(); ++k)
    out += str("buffer b{}: {}\n", k, buffer_text(schedule.buffers[k]));
  for (size_t k = 0; k < schedule.operands.size(); ++k)
    out += str("operand %{}: {}\n", k, operand_text(schedule.operands[k]));
  for (size_t k = 0; k < schedule.inputs.size(); ++k) {
    const ScheduleInput& input = schedule.inputs[k];
    out += str("input {}: {} {} {}{}{}\n", k, name_of(input.kind), quoted(input.key), operand_name(input.operand),
               input.written ? " written" : "", part_text(input.part, schedule.mesh));
  }
  for (size_t k = 0; k < schedule.instructions.size(); ++k)
    out += str("i{}: {}\n", k, instruction_text(schedule.instructions[k]));
  for (const ScheduleOutput& output : schedule.outputs) out += str("output {}\n", output_text(output, schedule.mesh));
  for (const HostNumber& number : schedule.host_numbers) out += str("host {}\n", host_number_text(number));
  for (size_t k = 0; k < schedule.programs.size(); ++k)
    out += str("program {}\n{}", k, indented(to_text(schedule.programs[k])));
  for (size_t k = 0; k < schedule.nodes.size(); ++k)
    out += str("nodes {}\n{}", k, indented(to_text(schedule.nodes[k])));
  return out;
}

}  // namespace

std::string to_text(const Schedule& schedule) { return text_of(schedule, schedule.device); }

Schedule parse_schedule(std::string_view text) { return ScheduleParser(text).parse(); }

std::string hash_of(const Schedule& schedule) {
  const std::string_view device = schedule.device;
  const std::string text = text_of(schedule, device.substr(0, device.find(':')));
  return hash_text(hash_bytes(std::as_bytes(std::span(text))));
}

}  // namespace stepc
