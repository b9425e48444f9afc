#include "loops/loop_program.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <tuple>

#include "base/check.h"

namespace stepc {

namespace {
enum class Takes : uint8_t { kAll, kReals, kWhole };
struct Row {
  LoopOp op;
  std::string_view name;
  size_t operands;
  Takes takes = Takes::kAll;
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
    {LoopOp::kSqrt, "sqrt", 1, Takes::kReals},
    {LoopOp::kFloor, "floor", 1, Takes::kReals},
    {LoopOp::kCeil, "ceil", 1, Takes::kReals},
    {LoopOp::kRound, "round", 1, Takes::kReals},
    {LoopOp::kTrunc, "trunc", 1, Takes::kReals},
    {LoopOp::kAdd, "add", 2},
    {LoopOp::kSub, "sub", 2},
    {LoopOp::kMul, "mul", 2},
    {LoopOp::kDiv, "div", 2},
    {LoopOp::kFma, "fma", 3, Takes::kReals},
    {LoopOp::kScale, "scale", 2, Takes::kReals},
    {LoopOp::kMin, "min", 2},
    {LoopOp::kMax, "max", 2},
    {LoopOp::kQuotient, "quotient", 2, Takes::kWhole},
    {LoopOp::kBitAnd, "bit_and", 2, Takes::kWhole},
    {LoopOp::kBitOr, "bit_or", 2, Takes::kWhole},
    {LoopOp::kBitXor, "bit_xor", 2, Takes::kWhole},
    {LoopOp::kShiftLeft, "shift_left", 2, Takes::kWhole},
    {LoopOp::kShiftRight, "shift_right", 2, Takes::kWhole},
    {LoopOp::kShiftRightLogical, "shift_right_logical", 2, Takes::kWhole},
    {LoopOp::kEq, "eq", 2},
    {LoopOp::kNe, "ne", 2},
    {LoopOp::kLt, "lt", 2},
    {LoopOp::kLe, "le", 2},
    {LoopOp::kIsNan, "is_nan", 1, Takes::kReals},
    {LoopOp::kSelect, "select", 3},
    {LoopOp::kConvert, "convert", 1},
    {LoopOp::kRoundTo, "round_to", 1},
    {LoopOp::kBits, "bits", 1},
    {LoopOp::kExp, "exp", 1, Takes::kReals},
    {LoopOp::kLog, "log", 1, Takes::kReals},
    {LoopOp::kLog1p, "log1p", 1, Takes::kReals},
    {LoopOp::kExpm1, "expm1", 1, Takes::kReals},
    {LoopOp::kRsqrt, "rsqrt", 1, Takes::kReals},
    {LoopOp::kSin, "sin", 1, Takes::kReals},
    {LoopOp::kCos, "cos", 1, Takes::kReals},
    {LoopOp::kTan, "tan", 1, Takes::kReals},
    {LoopOp::kTanh, "tanh", 1, Takes::kReals},
    {LoopOp::kErf, "erf", 1, Takes::kReals},
    {LoopOp::kPow, "pow", 2},
    {LoopOp::kAtan2, "atan2", 2, Takes::kReals},
    {LoopOp::kFmod, "fmod", 2, Takes::kReals},
};
const Row& row_of(LoopOp op) {
  const Row& row = kRows[static_cast<size_t>(op)];
  INTERNAL_CHECK(row.op == op, "the table of loop ops is out of order at '{}'", row.name);
  return row;
}
}  // namespace

std::string_view name_of(LoopOp op) { return row_of(op).name; }
size_t operand_count(LoopOp op) { return row_of(op).operands; }
bool has_value(LoopOp op) {
  return op != LoopOp::kLoop && op != LoopOp::kEnd && op != LoopOp::kStore && op != LoopOp::kAccumulate &&
         op != LoopOp::kAccumulateProduct;
}
bool is_access(LoopOp op) { return op == LoopOp::kLoad || op == LoopOp::kStore; }
bool is_accumulation(LoopOp op) { return op == LoopOp::kAccumulate || op == LoopOp::kAccumulateProduct; }
size_t end_of_loop(const LoopPhase& phase, size_t loop) {
  int depth = 0;
  for (size_t i = loop; i < phase.instructions.size(); ++i) {
    if (phase.instructions[i].op == LoopOp::kLoop) ++depth;
    if (phase.instructions[i].op == LoopOp::kEnd && --depth == 0) return i;
  }
  INTERNAL_CHECK(false, "the loop at v{} has no end", loop);
  return 0;
}
std::optional<LoopOp> loop_op_from_name(std::string_view name) {
  const auto* row = std::ranges::find(kRows, name, &Row::name);
  return row == std::end(kRows) ? std::nullopt : std::optional(row->op);
}

std::string_view name_of(ValueType type) {
  constexpr std::string_view kNames[] = {"f32", "f64", "i32", "i64", "bool"};
  return kNames[static_cast<size_t>(type)];
}
bool is_real(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }
std::string_view name_of(Combine combine) {
  constexpr std::string_view kNames[] = {"sum", "product", "max", "min"};
  return kNames[static_cast<size_t>(combine)];
}

namespace {
bool is_computed_in_f32(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }
bool has_loops(DType dtype) { return !is_complex(dtype); }
}  // namespace

ValueType value_type_of(DType dtype) {
  INTERNAL_CHECK(has_loops(dtype), "{} has no loops", name_of(dtype));
  if (dtype == DType::kBool) return ValueType::kBool;
  if (dtype == DType::kF64) return ValueType::kF64;
  return is_computed_in_f32(dtype) ? ValueType::kF32 : ValueType::kI64;
}

DType stored_type(ValueType type) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kBool};
  return kTypes[static_cast<size_t>(type)];
}

bool LoopInstruction::operator==(const LoopInstruction& other) const {
  const auto rest = [](const LoopInstruction& one) {
    return std::tie(one.op, one.type, one.args, one.integer, one.combine, one.dtype, one.loop, one.buffer, one.index,
                    one.indirect);
  };
  return std::bit_cast<uint64_t>(real) == std::bit_cast<uint64_t>(other.real) && rest(*this) == rest(other);
}

namespace {

struct Broken {
  std::string what;
};
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Broken{fmt::format(format, std::forward<Args>(args)...)};
}

class PhaseVerifier {
 public:
  PhaseVerifier(const LoopProgram& program, const LoopPhase& phase)
      : program_(program), phase_(phase), in_scope_(phase.variables.size(), false) {
    for (const LoopVariable& variable : phase.variables)
      extents_.push_back(variable.kind == LoopVariable::Kind::kItem ? std::max<int64_t>(phase.items, 1)
                                                                    : variable.extent);
  }

  void run() {
    require(phase_.items >= 1 && phase_.grain >= 1, "a phase of {} items, grain {}", phase_.items, phase_.grain);
    check_variables();
    for (size_t i = 0; i < phase_.instructions.size(); ++i) {
      at_ = i;
      check(phase_.instructions[i]);
      if (phase_.instructions[i].op != LoopOp::kEnd && phase_.instructions[i].op != LoopOp::kLoop)
        visible_.push_back(static_cast<int32_t>(i));
    }
    require(open_.empty(), "a loop is not closed");
  }

 private:
  void check_variables() const {
    using Kind = LoopVariable::Kind;
    require(!phase_.variables.empty() && phase_.variables[0].kind == Kind::kItem,
            "the first variable of a phase is its item");
    for (size_t i = 0; i < phase_.variables.size(); ++i) {
      const LoopVariable& one = phase_.variables[i];
      require((one.kind == Kind::kItem) == (i == 0), "i{}: a phase has one item", i);
      const bool is_digit = one.kind == Kind::kDigit;
      require(one.extent >= (is_digit ? 1 : 0) && one.block >= 1 && one.divisor >= 1, "i{}: {} turns", i, one.extent);
      if (is_digit)
        require(one.source < i && phase_.variables[one.source].kind != Kind::kDigit, "i{}: a digit of i{}", i,
                one.source);
      LoopVariable known{one.kind, one.extent, one.vector, one.block, one.source, one.divisor};
      if (one.kind == Kind::kItem) known.extent = 1;
      if (one.kind != Kind::kChunk) known.block = 1;
      if (is_digit) known.vector = false;
      if (!is_digit) {
        known.source = 0;
        known.divisor = 1;
      }
      require(known == one, "i{} says what such a variable does not have", i);
    }
  }

  void set_scope(uint32_t loop, bool inside) {
    in_scope_[loop] = inside;
    for (size_t i = 0; i < phase_.variables.size(); ++i)
      if (phase_.variables[i].kind == LoopVariable::Kind::kDigit && phase_.variables[i].source == loop)
        in_scope_[i] = inside;
  }

  const LoopInstruction& argument(const LoopInstruction& one, size_t k) const {
    require(std::ranges::binary_search(visible_, one.args[k]), "v{} {}: argument v{} is not in scope", at_,
            name_of(one.op), one.args[k]);
    return phase_.instructions[static_cast<size_t>(one.args[k])];
  }

  const LoopInstruction& value(const LoopInstruction& one, size_t k) const {
    const LoopInstruction& found = argument(one, k);
    require(has_value(found.op) && found.op != LoopOp::kAccumulator, "v{} {}: v{} is no value", at_, name_of(one.op),
            one.args[k]);
    return found;
  }

  // The values of a form that stays within 64 bits.
  [[nodiscard]] AffineRange checked_range(const Affine& index) const {
    constexpr int64_t kMost = int64_t{1} << 62;
    int64_t reach = 0;
    const auto add = [&](int64_t stride, int64_t turns) {
      int64_t more = 0;
      const bool fits = stride > -kMost && !__builtin_mul_overflow(std::abs(stride), turns, &more) &&
                        !__builtin_add_overflow(reach, more, &reach) && reach < kMost;
      require(fits, "v{}: an index leaves 64 bits", at_);
    };
    add(index.offset, 1);
    for (size_t k = 0; k < index.terms.size(); ++k) {
      const AffineTerm& term = index.terms[k];
      require(term.loop < in_scope_.size() && in_scope_[term.loop], "v{}: i{} is not in scope", at_, term.loop);
      require(term.stride != 0 && (k == 0 || index.terms[k - 1].loop < term.loop), "v{}: terms are not in order", at_);
      add(term.stride, extents_[term.loop]);
    }
    return range_of(index, extents_);
  }

  void check_position(const LoopInstruction& one) const {
    const AffineRange range = checked_range(one.index);
    if (one.op == LoopOp::kIndex) return;
    require(one.buffer < program_.buffers.size(), "v{}: there is no b{}", at_, one.buffer);
    if (one.args[1] >= 0 && one.op == LoopOp::kLoad) return;  // checked by its condition as it runs
    require(0 <= range.low && range.high < program_.buffers[one.buffer].count, "v{}: b{}[{}] reaches {} of {}", at_,
            one.buffer, to_text(one.index), range.low < 0 ? range.low : range.high, program_.buffers[one.buffer].count);
  }

  void check_loop(const LoopInstruction& one) {
    require(one.loop < phase_.variables.size(), "v{}: there is no i{}", at_, one.loop);
    const LoopVariable& variable = phase_.variables[one.loop];
    require(variable.kind != LoopVariable::Kind::kDigit, "v{}: i{} has no loop of its own", at_, one.loop);
    require(!in_scope_[one.loop], "v{}: i{} is looped over twice", at_, one.loop);
    const bool is_item = variable.kind == LoopVariable::Kind::kItem;
    require(is_item == open_.empty(), "v{}: the item loop is the outermost one", at_);
    set_scope(one.loop, true);
    open_.push_back({one.loop, visible_.size()});
  }

  // Fields that an op has no use for are as they are made, so equal texts are equal programs.
  void check_fields(const LoopInstruction& one) const {
    const LoopInstruction made;
    LoopInstruction known = one;
    for (size_t k = operand_count(one.op); k < known.args.size(); ++k)
      if (one.op != LoopOp::kLoad || k > 1) known.args[k] = -1;
    const bool has_number = one.op == LoopOp::kConstant || one.op == LoopOp::kAccumulator;
    if (!has_number || !is_real(one.type)) known.real = made.real;
    if (!has_number || is_real(one.type)) known.integer = made.integer;
    if (one.op != LoopOp::kAccumulator) known.combine = made.combine;
    if (one.op != LoopOp::kRoundTo) known.dtype = made.dtype;
    if (one.op != LoopOp::kLoop) known.loop = made.loop;
    if (!is_access(one.op)) known.buffer = made.buffer;
    if (!is_access(one.op) && one.op != LoopOp::kIndex) known.index = made.index;
    if (one.op != LoopOp::kLoad || one.args[0] < 0) known.indirect = made.indirect;
    if (one.op == LoopOp::kLoop || one.op == LoopOp::kEnd) known.type = made.type;
    require(known == one, "v{} {}: says what such an instruction does not have", at_, name_of(one.op));
  }

  void check(const LoopInstruction& one) {
    check_fields(one);
    if (one.op == LoopOp::kLoop) return check_loop(one);
    if (one.op == LoopOp::kEnd) {
      require(!open_.empty(), "v{}: no loop is open", at_);
      set_scope(open_.back().loop, false);
      visible_.resize(open_.back().visible);
      open_.pop_back();
      return;
    }
    if (one.op == LoopOp::kIndex || one.op == LoopOp::kLoad || one.op == LoopOp::kStore) check_position(one);
    if (one.op == LoopOp::kLoad) {
      if (one.args[0] >= 0) require(value(one, 0).type == ValueType::kI64, "v{}: an index of another type", at_);
      if (one.args[1] >= 0) require(value(one, 1).type == ValueType::kBool, "v{}: a condition of another type", at_);
    }
    const bool is_into =
        one.op == LoopOp::kAccumulate || one.op == LoopOp::kAccumulateProduct || one.op == LoopOp::kFinish;
    for (size_t k = 0; k < operand_count(one.op); ++k)
      if (is_into && k == 0)
        require(argument(one, k).op == LoopOp::kAccumulator, "v{}: v{} is no accumulator", at_, one.args[k]);
      else
        value(one, k);
    check_types(one);
  }

  void check_types(const LoopInstruction& one) const {
    const auto type = [&](size_t k) { return argument(one, k).type; };
    const auto expect = [&](size_t k, ValueType wanted) {
      require(type(k) == wanted, "v{} {}: argument {} is {} beside {}", at_, name_of(one.op), k, name_of(type(k)),
              name_of(wanted));
    };
    const auto takes = row_of(one.op).takes;
    if (takes != Takes::kAll)
      for (size_t k = 0; k < operand_count(one.op); ++k)
        require(is_real(type(k)) == (takes == Takes::kReals), "v{} {}: does not take {}", at_, name_of(one.op),
                name_of(type(k)));
    switch (one.op) {
      case LoopOp::kAccumulateProduct:
        require(argument(one, 0).combine == Combine::kSum, "v{}: products are summed", at_);
        expect(2, one.type);
        [[fallthrough]];
      case LoopOp::kAccumulate:
        expect(0, one.type);
        expect(1, one.type);
        break;
      case LoopOp::kSelect:
        expect(0, ValueType::kBool);
        expect(1, one.type);
        expect(2, one.type);
        break;
      case LoopOp::kEq:
      case LoopOp::kNe:
      case LoopOp::kLt:
      case LoopOp::kLe:
        expect(1, type(0));
        [[fallthrough]];
      case LoopOp::kIsNan:
        require(one.type == ValueType::kBool, "v{} {}: is {}", at_, name_of(one.op), name_of(one.type));
        break;
      case LoopOp::kLoad:
        require(one.type == value_type_of(program_.buffers[one.buffer].dtype), "v{} load: is {}", at_,
                name_of(one.type));
        break;
      case LoopOp::kStore:
        expect(0, value_type_of(program_.buffers[one.buffer].dtype));
        expect(0, one.type);
        break;
      case LoopOp::kRoundTo:
        require(has_loops(one.dtype) && one.type == value_type_of(one.dtype), "v{} round_to: is {}", at_,
                name_of(one.type));
        break;
      case LoopOp::kBits:
        require(size_of(stored_type(type(0))) == size_of(stored_type(one.type)), "v{} bits: {} of {}", at_,
                name_of(one.type), name_of(type(0)));
        break;
      case LoopOp::kIndex:
        require(one.type == ValueType::kI64, "v{} index: is {}", at_, name_of(one.type));
        break;
      case LoopOp::kConvert:
        break;
      default:
        for (size_t k = 0; k < operand_count(one.op); ++k) expect(k, one.type);
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

void check_buffers(const LoopProgram& program) {
  using Kind = LoopBuffer::Kind;
  const auto is_own = [](const LoopBuffer& one) { return one.kind == Kind::kScratch || one.kind == Kind::kLocal; };
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const LoopBuffer& one = program.buffers[b];
    require(has_loops(one.dtype) && one.count >= 0 && one.count < int64_t{1} << 56, "b{}: {} of {}", b, one.count,
            name_of(one.dtype));
    if (b > 0) {
      const LoopBuffer& before = program.buffers[b - 1];
      require(is_own(one) || before.kind <= one.kind, "b{}: inputs come first, then outputs, then what is its own", b);
    }
    if (one.kind != Kind::kScratch) require(one.scratch_byte == 0, "b{}: has no place in the scratch memory", b);
    require(one.scratch_byte >= 0 && one.scratch_byte < int64_t{1} << 62, "b{}: at {}", b, one.scratch_byte);
    if (one.kind == Kind::kScratch)
      require(one.scratch_byte + one.count * size_of(one.dtype) <= program.scratch_bytes,
              "b{}: ends behind the scratch memory of {} bytes", b, program.scratch_bytes);
  }
  require(program.scratch_bytes >= 0, "scratch memory of {} bytes", program.scratch_bytes);
  for (const auto& [input, output] : program.in_place) {
    require(input < program.buffers.size() && program.buffers[input].kind == Kind::kInput, "in place: b{}", input);
    require(output < program.buffers.size() && program.buffers[output].kind == Kind::kOutput, "in place: b{}", output);
  }
}

}  // namespace

std::string problem_of(const LoopProgram& program) {
  try {
    check_buffers(program);
    for (const LoopPhase& phase : program.phases) PhaseVerifier(program, phase).run();
  } catch (const Broken& broken) {
    return broken.what;
  }
  return {};
}

void verify(const LoopProgram& program) {
  const std::string problem = problem_of(program);
  INTERNAL_CHECK(problem.empty(), "{}", problem);
}

}  // namespace stepc
