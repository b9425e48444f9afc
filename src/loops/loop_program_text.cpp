// Text form of a LoopProgram, as the head of loop_program.h shows it. What the text leaves out is as it is made:
// verify() holds a program to that, so the text says all that there is.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "ir/text/text_cursor.h"
#include "loops/loop_program.h"

namespace stepc {

namespace {

constexpr std::string_view kHead = "stepc.loops 1";
constexpr std::string_view kBufferKinds[] = {"input", "output", "scratch", "local"};

// ---- printing

// A NaN other than the two that are spelled so is written as its bits.
std::string real_text(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const bool is_spelled = bits == std::bit_cast<uint64_t>(double{NAN}) || bits == std::bit_cast<uint64_t>(-double{NAN});
  return !std::isnan(value) || is_spelled ? constant_text(value) : str("bits {}", std::bit_cast<int64_t>(value));
}

std::string number_text(const LoopInstruction& instruction) {
  return is_real(instruction.type) ? real_text(instruction.real) : constant_text(instruction.integer);
}

std::string variable_text(const LoopVariable& variable) {
  const std::string_view lanes = variable.vector ? " vector" : "";
  switch (variable.kind) {
    case LoopVariable::Kind::kItem:
      return str("item{}", lanes);
    case LoopVariable::Kind::kCount:
      return str("to {}{}", variable.extent, lanes);
    case LoopVariable::Kind::kChunk:
      return str("chunk {} of {}{}", variable.block, variable.extent, lanes);
    case LoopVariable::Kind::kDigit:
      return str("i{} / {} % {}", variable.source, variable.divisor, variable.extent);
  }
  return {};
}

std::string instruction_text(const LoopPhase& phase, const LoopInstruction& one) {
  std::string text(name_of(one.op));
  for (size_t k = 0; k < operand_count(one.op); ++k) text += str(" v{}", one.args[k]);
  switch (one.op) {
    case LoopOp::kLoop:
      return text + str(" i{} {}", one.loop, variable_text(phase.variables[one.loop]));
    case LoopOp::kConstant:
      return text + " " + number_text(one);
    case LoopOp::kAccumulator:
      return text + str(" {} from {}", name_of(one.combine), number_text(one));
    case LoopOp::kIndex:
      return text + " " + to_text(one.index);
    case LoopOp::kLoad:
      text += str(" b{}[{}", one.buffer, to_text(one.index));
      if (one.args[0] >= 0) text += str(" + v{}*{}", one.args[0], one.indirect);
      return text + "]" + (one.args[1] >= 0 ? str(" where v{}", one.args[1]) : "");
    case LoopOp::kStore:
      return text + str(" to b{}[{}]", one.buffer, to_text(one.index));
    case LoopOp::kRoundTo:
      return text + str(" {}", name_of(one.dtype));
    default:
      return text;
  }
}

std::string buffer_text(const LoopBuffer& buffer) {
  std::string text =
      str("{} {} {}", name_of(buffer.dtype), kBufferKinds[static_cast<size_t>(buffer.kind)], buffer.count);
  if (buffer.kind == LoopBuffer::Kind::kScratch) text += str(" at {}", buffer.scratch_byte);
  return text;
}

// Those without a loop of their own, which no instruction spells out.
std::string other_variables_text(const LoopPhase& phase) {
  std::vector<bool> looped(phase.variables.size(), false);
  for (const LoopInstruction& one : phase.instructions)
    if (one.op == LoopOp::kLoop) looped[one.loop] = true;
  std::string out;
  for (size_t i = 0; i < phase.variables.size(); ++i)
    if (!looped[i]) out += str("  i{} = {}\n", i, variable_text(phase.variables[i]));
  return out;
}

// ---- parsing

class LoopParser {
 public:
  explicit LoopParser(std::string_view text) : in_("loop text", text) {}

  LoopProgram parse() {
    in_.next_line();
    in_.expect(kHead);
    in_.end_of_line();
    while (in_.next_line()) {
      if (in_.at_end_of_line() || in_.rest().starts_with('#')) continue;
      parse_line();
      in_.end_of_line();
    }
    end_phase();
    return std::move(program_);
  }

 private:
  void parse_line() {
    if (in_.accept("phase ")) return parse_phase();
    if (!program_.phases.empty()) return in_.rest().starts_with('i') ? parse_variable() : parse_instruction();
    if (in_.accept("buffer ")) return parse_buffer();
    if (in_.accept("scratch ")) {
      program_.scratch_bytes = in_.integer();
    } else {
      in_.expect("in place ");
      const uint32_t input = numbered("b", program_.buffers.size());
      program_.in_place.emplace_back(input, numbered("b", program_.buffers.size()));
    }
  }

  uint32_t numbered(std::string_view letter, size_t count) {
    in_.expect(letter);
    const int64_t number = in_.integer();
    if (number < 0 || static_cast<size_t>(number) >= count) in_.fail(str("there is no {}{}", letter, number));
    return static_cast<uint32_t>(number);
  }
  // The next of its kind.
  void expect_number(std::string_view letter, size_t number) {
    in_.expect(letter);
    if (in_.integer() != static_cast<int64_t>(number)) in_.fail(str("expected {}{}", letter, number));
  }
  DType dtype() {
    const auto found = dtype_from_name(in_.word());
    if (!found) in_.fail("expected a dtype");
    return *found;
  }

  void parse_buffer() {
    expect_number("b", program_.buffers.size());
    in_.expect(":");
    LoopBuffer buffer;
    buffer.dtype = dtype();
    const std::string_view kind = in_.word();
    const auto* found = std::ranges::find(kBufferKinds, kind);
    if (found == std::end(kBufferKinds)) in_.fail(str("'{}' is no kind of buffer", kind));
    buffer.kind = static_cast<LoopBuffer::Kind>(found - std::begin(kBufferKinds));
    buffer.count = in_.integer();
    if (buffer.kind == LoopBuffer::Kind::kScratch) {
      in_.expect("at ");
      buffer.scratch_byte = in_.integer();
    }
    program_.buffers.push_back(buffer);
  }

  void parse_phase() {
    end_phase();
    LoopPhase& phase = program_.phases.emplace_back();
    in_.expect("items ");
    phase.items = in_.integer();
    in_.expect("grain ");
    phase.grain = in_.integer();
  }
  void end_phase() {
    for (size_t i = 0; i < known_.size(); ++i)
      if (!known_[i]) in_.fail(str("i{} is missing in the phase above", i));
    known_.clear();
  }

  LoopPhase& phase() { return program_.phases.back(); }

  uint32_t variable_number() {
    in_.expect("i");
    return static_cast<uint32_t>(in_.index());
  }
  // Where a variable is looped over twice, both say the same.
  void define(uint32_t number, const LoopVariable& variable) {
    if (number >= known_.size()) {
      known_.resize(number + 1, false);
      phase().variables.resize(number + 1);
    }
    if (known_[number] && phase().variables[number] != variable) in_.fail(str("i{} was something else", number));
    known_[number] = true;
    phase().variables[number] = variable;
  }
  LoopVariable variable() {
    LoopVariable out;
    if (in_.accept("item")) {
      out.kind = LoopVariable::Kind::kItem;
    } else if (in_.accept("to ")) {
      out.extent = in_.integer();
    } else if (in_.accept("chunk ")) {
      out.kind = LoopVariable::Kind::kChunk;
      out.block = in_.integer();
      in_.expect("of ");
      out.extent = in_.integer();
    } else {
      out.kind = LoopVariable::Kind::kDigit;
      out.source = variable_number();
      in_.expect("/ ");
      out.divisor = in_.integer();
      in_.expect("% ");
      out.extent = in_.integer();
      return out;
    }
    out.vector = in_.accept("vector");
    return out;
  }
  void parse_variable() {
    const uint32_t number = variable_number();
    in_.expect("=");
    define(number, variable());
  }

  void parse_instruction() {
    LoopInstruction one;
    expect_number("v", phase().instructions.size());
    const bool has_type = in_.accept(":");
    if (has_type) one.type = type();
    in_.expect("=");
    const std::string_view name = in_.word();
    const auto op = loop_op_from_name(name);
    if (!op) in_.fail(str("there is no loop op '{}'", name));
    one.op = *op;
    if (has_type != has_value(one.op)) in_.fail(str("{} has {} value", name, has_type ? "no" : "a"));
    for (size_t k = 0; k < operand_count(one.op); ++k) one.args[k] = argument();
    if (!has_type && one.args[0] >= 0) one.type = phase().instructions[static_cast<size_t>(one.args[0])].type;
    parse_rest(one);
    phase().instructions.push_back(std::move(one));
  }

  void parse_rest(LoopInstruction& one) {
    switch (one.op) {
      case LoopOp::kLoop:
        one.loop = variable_number();
        define(one.loop, variable());
        break;
      case LoopOp::kConstant:
        parse_number(one);
        break;
      case LoopOp::kAccumulator:
        one.combine = combine();
        in_.expect("from ");
        parse_number(one);
        break;
      case LoopOp::kIndex:
        one.index = affine(nullptr);
        break;
      case LoopOp::kLoad:
        one.buffer = numbered("b", program_.buffers.size());
        in_.expect("[");
        one.index = affine(&one);
        in_.expect("]");
        if (in_.accept("where ")) one.args[1] = argument();
        break;
      case LoopOp::kStore:
        in_.expect("to ");
        one.buffer = numbered("b", program_.buffers.size());
        in_.expect("[");
        one.index = affine(nullptr);
        in_.expect("]");
        break;
      case LoopOp::kRoundTo:
        one.dtype = dtype();
        break;
      default:
        break;
    }
  }

  int32_t argument() { return static_cast<int32_t>(numbered("v", phase().instructions.size())); }
  ValueType type() {
    const std::string_view name = in_.word();
    for (ValueType one : {ValueType::kF32, ValueType::kF64, ValueType::kI32, ValueType::kI64, ValueType::kBool})
      if (name == name_of(one)) return one;
    in_.fail(str("'{}' is no type of a value", name));
  }
  Combine combine() {
    const std::string_view name = in_.word();
    for (Combine one : {Combine::kSum, Combine::kProduct, Combine::kMax, Combine::kMin})
      if (name == name_of(one)) return one;
    in_.fail(str("nothing is combined by '{}'", name));
  }
  void parse_number(LoopInstruction& one) {
    if (!is_real(one.type))
      one.integer = in_.integer();
    else if (in_.accept("bits "))
      one.real = std::bit_cast<double>(in_.integer());
    else
      one.real = in_.real();
  }

  // Terms by loop, then the offset; in a load's also the chosen element.
  Affine affine(LoopInstruction* load) {
    Affine out;
    do {
      if (in_.rest().starts_with('i')) {
        AffineTerm term{variable_number(), 1};
        if (in_.accept("*")) term.stride = in_.integer();
        out.terms.push_back(term);
      } else if (load != nullptr && in_.rest().starts_with('v')) {
        load->args[0] = argument();
        in_.expect("*");
        load->indirect = in_.integer();
      } else {
        if (out.offset != 0) in_.fail("a second offset");
        out.offset = in_.integer();
      }
    } while (in_.accept("+"));
    return out;
  }

  TextCursor in_;
  LoopProgram program_;
  std::vector<bool> known_;  // variables of the last phase
};

}  // namespace

std::string to_text(const LoopProgram& program) {
  std::string out = str("{}\n", kHead);
  for (size_t b = 0; b < program.buffers.size(); ++b)
    out += str("buffer b{}: {}\n", b, buffer_text(program.buffers[b]));
  if (program.scratch_bytes != 0) out += str("scratch {}\n", program.scratch_bytes);
  for (const auto& [input, output] : program.in_place) out += str("in place b{} b{}\n", input, output);
  for (const LoopPhase& phase : program.phases) {
    out += str("phase items {} grain {}\n", phase.items, phase.grain);
    out += other_variables_text(phase);
    std::string indent = "  ";
    for (size_t i = 0; i < phase.instructions.size(); ++i) {
      const LoopInstruction& one = phase.instructions[i];
      if (one.op == LoopOp::kEnd) indent.resize(indent.size() - 2);
      out += str("{}v{}{} = {}\n", indent, i, has_value(one.op) ? str(": {}", name_of(one.type)) : "",
                 instruction_text(phase, one));
      if (one.op == LoopOp::kLoop) indent += "  ";
    }
  }
  return out;
}

LoopProgram parse_loop_program(std::string_view text) {
  LoopProgram program = LoopParser(text).parse();
  const std::string problem = problem_of(program);
  USER_CHECK(problem.empty(), "loop text: {}", problem);
  return program;
}

}  // namespace stepc
