#include "loops/loop_program.h"

#include <algorithm>

#include "base/check.h"
#include "ir/text_cursor.h"

namespace stepc {

namespace {
struct Row {
  LoopOp op;
  std::string_view name;
  size_t operands;
};
constexpr Row kRows[] = {
    {LoopOp::kLoop, "loop", 0},
    {LoopOp::kEnd, "end", 0},
    {LoopOp::kAccumulator, "accumulator", 0},
    {LoopOp::kAccumulate, "accumulate", 2},
    {LoopOp::kAccumulateProduct, "accumulate_product", 3},
    {LoopOp::kFinish, "finish", 1},
    {LoopOp::kConstant, "constant", 0},
    {LoopOp::kIndex, "index", 0},
    {LoopOp::kLoad, "load", 0},
    {LoopOp::kStore, "store", 1},
    {LoopOp::kNeg, "neg", 1},
    {LoopOp::kAbs, "abs", 1},
    {LoopOp::kSqrt, "sqrt", 1},
    {LoopOp::kFloor, "floor", 1},
    {LoopOp::kCeil, "ceil", 1},
    {LoopOp::kRound, "round", 1},
    {LoopOp::kTrunc, "trunc", 1},
    {LoopOp::kAdd, "add", 2},
    {LoopOp::kSub, "sub", 2},
    {LoopOp::kMul, "mul", 2},
    {LoopOp::kDiv, "div", 2},
    {LoopOp::kFma, "fma", 3},
    {LoopOp::kScale, "scale", 2},
    {LoopOp::kMin, "min", 2},
    {LoopOp::kMax, "max", 2},
    {LoopOp::kQuotient, "quotient", 2},
    {LoopOp::kBitAnd, "bit_and", 2},
    {LoopOp::kBitOr, "bit_or", 2},
    {LoopOp::kBitXor, "bit_xor", 2},
    {LoopOp::kShiftLeft, "shift_left", 2},
    {LoopOp::kShiftRight, "shift_right", 2},
    {LoopOp::kShiftRightLogical, "shift_right_logical", 2},
    {LoopOp::kEq, "eq", 2},
    {LoopOp::kNe, "ne", 2},
    {LoopOp::kLt, "lt", 2},
    {LoopOp::kLe, "le", 2},
    {LoopOp::kIsNan, "is_nan", 1},
    {LoopOp::kSelect, "select", 3},
    {LoopOp::kConvert, "convert", 1},
    {LoopOp::kRoundTo, "round_to", 1},
    {LoopOp::kBits, "bits", 1},
    {LoopOp::kExp, "exp", 1},
    {LoopOp::kLog, "log", 1},
    {LoopOp::kLog1p, "log1p", 1},
    {LoopOp::kExpm1, "expm1", 1},
    {LoopOp::kRsqrt, "rsqrt", 1},
    {LoopOp::kSin, "sin", 1},
    {LoopOp::kCos, "cos", 1},
    {LoopOp::kTan, "tan", 1},
    {LoopOp::kTanh, "tanh", 1},
    {LoopOp::kErf, "erf", 1},
    {LoopOp::kPow, "pow", 2},
    {LoopOp::kAtan2, "atan2", 2},
    {LoopOp::kFmod, "fmod", 2},
};
const Row& row_of(LoopOp op) {
  const Row& row = kRows[static_cast<size_t>(op)];
  INTERNAL_CHECK(row.op == op, "the table of loop ops is out of order at '{}'", row.name);
  return row;
}
}  // namespace

std::string_view name_of(LoopOp op) { return row_of(op).name; }
size_t operand_count(LoopOp op) { return row_of(op).operands; }

std::string_view name_of(ValueType type) {
  constexpr std::string_view kNames[] = {"f32", "f64", "i32", "i64", "bool"};
  return kNames[static_cast<size_t>(type)];
}
std::string_view name_of(Combine combine) {
  constexpr std::string_view kNames[] = {"sum", "product", "max", "min"};
  return kNames[static_cast<size_t>(combine)];
}

ValueType value_type_of(DType dtype) {
  if (dtype == DType::kBool) return ValueType::kBool;
  if (dtype == DType::kF64) return ValueType::kF64;
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return ValueType::kF32;
  INTERNAL_CHECK(!is_floating(dtype) && !is_complex(dtype), "{} has no loops", name_of(dtype));
  return ValueType::kI64;
}

DType stored_type(ValueType type) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kBool};
  return kTypes[static_cast<size_t>(type)];
}

namespace {

bool is_real(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }
std::string number_text(const LoopInstruction& instruction) {
  return is_real(instruction.type) ? constant_text(instruction.real) : str("{}", instruction.integer);
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
  constexpr std::string_view kKinds[] = {"input", "output", "scratch", "local"};
  std::string text = str("{} {} {}", name_of(buffer.dtype), kKinds[static_cast<size_t>(buffer.kind)], buffer.count);
  if (buffer.kind == LoopBuffer::Kind::kScratch) text += str(" at {}", buffer.scratch_byte);
  return text;
}

}  // namespace

std::string to_text(const LoopProgram& program) {
  std::string out = "stepc.loops 1\n";
  for (size_t b = 0; b < program.buffers.size(); ++b)
    out += str("buffer b{}: {}\n", b, buffer_text(program.buffers[b]));
  for (const auto& [input, output] : program.in_place) out += str("in place b{} b{}\n", input, output);
  for (const LoopPhase& phase : program.phases) {
    out += str("phase items {} grain {}\n", phase.items, phase.grain);
    for (size_t i = 0; i < phase.variables.size(); ++i)
      if (phase.variables[i].kind == LoopVariable::Kind::kDigit)
        out += str("  i{} = {}\n", i, variable_text(phase.variables[i]));
    std::string indent = "  ";
    for (size_t i = 0; i < phase.instructions.size(); ++i) {
      const LoopInstruction& one = phase.instructions[i];
      if (one.op == LoopOp::kEnd) indent.resize(indent.size() - 2);
      const bool has_value = one.op != LoopOp::kLoop && one.op != LoopOp::kEnd && one.op != LoopOp::kStore &&
                             one.op != LoopOp::kAccumulate && one.op != LoopOp::kAccumulateProduct;
      out += str("{}v{}{} = {}\n", indent, i, has_value ? str(": {}", name_of(one.type)) : "",
                 instruction_text(phase, one));
      if (one.op == LoopOp::kLoop) indent += "  ";
    }
  }
  return out;
}

namespace {

class PhaseVerifier {
 public:
  PhaseVerifier(const LoopProgram& program, const LoopPhase& phase)
      : program_(program), phase_(phase), in_scope_(phase.variables.size(), false) {
    for (const LoopVariable& variable : phase.variables)
      extents_.push_back(variable.kind == LoopVariable::Kind::kItem ? std::max<int64_t>(phase.items, 1)
                                                                    : variable.extent);
  }

  void run() {
    INTERNAL_CHECK(!phase_.variables.empty() && phase_.variables[0].kind == LoopVariable::Kind::kItem,
                   "the first variable of a phase is its item");
    INTERNAL_CHECK(phase_.items >= 1 && phase_.grain >= 1, "a phase of {} items", phase_.items);
    for (size_t i = 0; i < phase_.instructions.size(); ++i) {
      at_ = i;
      check(phase_.instructions[i]);
      if (phase_.instructions[i].op != LoopOp::kEnd && phase_.instructions[i].op != LoopOp::kLoop)
        visible_.push_back(static_cast<int32_t>(i));
    }
    INTERNAL_CHECK(open_.empty(), "a loop is not closed");
  }

 private:
  void set_scope(uint32_t loop, bool inside) {
    in_scope_[loop] = inside;
    for (size_t i = 0; i < phase_.variables.size(); ++i)
      if (phase_.variables[i].kind == LoopVariable::Kind::kDigit && phase_.variables[i].source == loop)
        in_scope_[i] = inside;
  }

  const LoopInstruction& argument(const LoopInstruction& one, size_t k) const {
    INTERNAL_CHECK(std::ranges::binary_search(visible_, one.args[k]), "v{} {}: argument v{} is not in scope", at_,
                   name_of(one.op), one.args[k]);
    return phase_.instructions[static_cast<size_t>(one.args[k])];
  }

  void check_position(const LoopInstruction& one) const {
    for (const AffineTerm& term : one.index.terms)
      INTERNAL_CHECK(term.loop < in_scope_.size() && in_scope_[term.loop], "v{}: i{} is not in scope", at_, term.loop);
    if (one.op == LoopOp::kIndex) return;
    INTERNAL_CHECK_LT(one.buffer, program_.buffers.size(), "v{}", at_);
    if (one.args[1] >= 0 && one.op == LoopOp::kLoad) return;  // checked by its condition as it runs
    const AffineRange range = range_of(one.index, extents_);
    INTERNAL_CHECK(0 <= range.low && range.high < program_.buffers[one.buffer].count, "v{}: b{}[{}] reaches {} of {}",
                   at_, one.buffer, to_text(one.index), range.high, program_.buffers[one.buffer].count);
  }

  void check_loop(const LoopInstruction& one) {
    INTERNAL_CHECK_LT(one.loop, phase_.variables.size(), "v{}", at_);
    const LoopVariable& variable = phase_.variables[one.loop];
    INTERNAL_CHECK(variable.kind != LoopVariable::Kind::kDigit, "v{}: i{} has no loop of its own", at_, one.loop);
    INTERNAL_CHECK(!in_scope_[one.loop], "v{}: i{} is looped over twice", at_, one.loop);
    const bool is_item = variable.kind == LoopVariable::Kind::kItem;
    INTERNAL_CHECK(is_item == open_.empty(), "v{}: the item loop is the outermost one", at_);
    set_scope(one.loop, true);
    open_.push_back({one.loop, visible_.size()});
  }

  void check(const LoopInstruction& one) {
    if (one.op == LoopOp::kLoop) return check_loop(one);
    if (one.op == LoopOp::kEnd) {
      INTERNAL_CHECK(!open_.empty(), "v{}: no loop is open", at_);
      set_scope(open_.back().loop, false);
      visible_.resize(open_.back().visible);
      open_.pop_back();
      return;
    }
    if (one.op == LoopOp::kIndex || one.op == LoopOp::kLoad || one.op == LoopOp::kStore) check_position(one);
    if (one.op == LoopOp::kLoad) {
      if (one.args[0] >= 0) INTERNAL_CHECK(argument(one, 0).type == ValueType::kI64, "v{}: an index", at_);
      if (one.args[1] >= 0) INTERNAL_CHECK(argument(one, 1).type == ValueType::kBool, "v{}: a condition", at_);
    }
    for (size_t k = 0; k < operand_count(one.op); ++k) argument(one, k);
    check_types(one);
  }

  void check_types(const LoopInstruction& one) const {
    const auto type = [&](size_t k) { return argument(one, k).type; };
    switch (one.op) {
      case LoopOp::kAccumulateProduct:
        INTERNAL_CHECK(argument(one, 0).combine == Combine::kSum && type(0) == type(2), "v{}", at_);
        [[fallthrough]];
      case LoopOp::kAccumulate:
        INTERNAL_CHECK(argument(one, 0).op == LoopOp::kAccumulator && type(0) == type(1), "v{}", at_);
        break;
      case LoopOp::kSelect:
        INTERNAL_CHECK(type(0) == ValueType::kBool && type(1) == type(2) && type(1) == one.type, "v{} select", at_);
        break;
      case LoopOp::kEq:
      case LoopOp::kNe:
      case LoopOp::kLt:
      case LoopOp::kLe:
        INTERNAL_CHECK(type(0) == type(1) && one.type == ValueType::kBool, "v{} {}", at_, name_of(one.op));
        break;
      case LoopOp::kStore:
        INTERNAL_CHECK(type(0) == value_type_of(program_.buffers[one.buffer].dtype), "v{} store", at_);
        break;
      case LoopOp::kIsNan:
      case LoopOp::kConvert:
      case LoopOp::kRoundTo:
      case LoopOp::kBits:
        break;
      default:
        for (size_t k = 0; k < operand_count(one.op); ++k)
          INTERNAL_CHECK(type(k) == one.type, "v{} {}: argument {} is {} beside {}", at_, name_of(one.op), k,
                         name_of(type(k)), name_of(one.type));
    }
  }

  struct Open {
    uint32_t loop;
    size_t visible;
  };
  const LoopProgram& program_;
  const LoopPhase& phase_;
  std::vector<int64_t> extents_;
  std::vector<bool> in_scope_;
  std::vector<Open> open_;
  std::vector<int32_t> visible_;  // instructions whose values may be used, ascending
  size_t at_ = 0;
};

}  // namespace

void verify(const LoopProgram& program) {
  for (const LoopPhase& phase : program.phases) PhaseVerifier(program, phase).run();
}

}  // namespace stepc
