#include "loops/lower/scalar_writer.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/check.h"

namespace stepc {

namespace {

using LoopValue = PhaseWriter::Value;

class BodyWriter {
 public:
  BodyWriter(PhaseWriter& writer, ValueType number) : w_(writer), number_(number) {}

  LoopValue write(const ScalarExpr& expr, const Attrs& attrs, const std::vector<LoopValue>& arguments) {
    std::vector<LoopValue> values;
    for (const ScalarStep& step : expr.steps) {
      if (step.primitive == Primitive::kArgument) {
        values.push_back(arguments[static_cast<size_t>(step.operands[0])]);
      } else if (step.primitive == Primitive::kConstant) {
        values.push_back(number(step.constant));
      } else if (step.primitive == Primitive::kAttr) {
        values.push_back(number(attrs.number(step.attr)));
      } else {
        std::vector<LoopValue> operands;
        for (int k = 0; k < operand_count(step.primitive); ++k)
          operands.push_back(values[static_cast<size_t>(step.operands[static_cast<size_t>(k)])]);
        values.push_back(real() ? real_step(step.primitive, operands) : integer_step(step.primitive, operands));
      }
    }
    return values.back();
  }

 private:
  [[nodiscard]] bool real() const { return number_ != ValueType::kI64; }
  LoopValue number(double value) {
    return real() ? w_.constant(number_, value) : w_.integer(ValueType::kI64, static_cast<int64_t>(value));
  }
  LoopValue numeric(LoopValue value) { return w_.convert(value, number_); }
  LoopValue truth(LoopValue value) {
    return w_.type(value) == ValueType::kBool ? value : w_.compute(LoopOp::kNe, {value, number_like(value, 0)});
  }
  LoopValue number_like(LoopValue value, double constant) {
    const ValueType type = w_.type(value);
    return type == ValueType::kI64 ? w_.integer(type, static_cast<int64_t>(constant)) : w_.constant(type, constant);
  }
  LoopValue op(LoopOp op, std::vector<LoopValue> args) {
    for (LoopValue& arg : args) arg = numeric(arg);
    return w_.compute(op, std::move(args));
  }
  LoopValue choose(LoopValue condition, LoopValue yes, LoopValue no) {
    return w_.compute(LoopOp::kSelect, {truth(condition), numeric(yes), numeric(no)});
  }
  LoopValue flip(LoopValue condition) {
    return w_.compute(LoopOp::kBitXor, {condition, w_.integer(ValueType::kBool, 1)});
  }

  // Steps that mean the same on all numbers.
  std::optional<LoopValue> shared_step(Primitive primitive, const std::vector<LoopValue>& args) {
    switch (primitive) {
      case Primitive::kNeg:
        return op(LoopOp::kNeg, args);
      case Primitive::kAbs:
        return op(LoopOp::kAbs, args);
      case Primitive::kAdd:
        return op(LoopOp::kAdd, args);
      case Primitive::kSub:
        return op(LoopOp::kSub, args);
      case Primitive::kMul:
        return op(LoopOp::kMul, args);
      case Primitive::kMin:
        return op(LoopOp::kMin, args);
      case Primitive::kMax:
        return op(LoopOp::kMax, args);
      case Primitive::kEq:
        return op(LoopOp::kEq, args);
      case Primitive::kNe:
        return op(LoopOp::kNe, args);
      case Primitive::kLt:
        return op(LoopOp::kLt, args);
      case Primitive::kLe:
        return op(LoopOp::kLe, args);
      case Primitive::kNot:
        return flip(truth(args[0]));
      case Primitive::kAnd:
        return w_.compute(LoopOp::kBitAnd, {truth(args[0]), truth(args[1])});
      case Primitive::kOr:
        return w_.compute(LoopOp::kBitOr, {truth(args[0]), truth(args[1])});
      case Primitive::kXor:
        return w_.compute(LoopOp::kBitXor, {truth(args[0]), truth(args[1])});
      case Primitive::kSelect:
        return choose(args[0], args[1], args[2]);
      default:
        return std::nullopt;
    }
  }

  LoopValue sign_of(LoopValue x) {
    const LoopValue zero = number(0);
    const LoopValue below = choose(op(LoopOp::kLt, {x, zero}), number(-1), real() ? choose(is_nan(x), x, zero) : zero);
    return choose(op(LoopOp::kLt, {zero, x}), number(1), below);
  }
  LoopValue is_nan(LoopValue x) { return w_.compute(LoopOp::kIsNan, {numeric(x)}); }

  // In f64, where the quotient of two f32 and its remainder are exact enough to be rounded once.
  LoopValue in_double(LoopOp op, const std::vector<LoopValue>& args) {
    std::vector<LoopValue> wide;
    for (LoopValue arg : args) wide.push_back(w_.convert(numeric(arg), ValueType::kF64));
    return w_.compute(op, wide);
  }
  LoopValue remainder_of(const std::vector<LoopValue>& args) {
    const LoopValue rest = in_double(LoopOp::kFmod, args);
    const LoopValue divisor = w_.convert(numeric(args[1]), ValueType::kF64);
    const LoopValue zero = w_.constant(ValueType::kF64, 0);
    const LoopValue signs_differ =
        w_.compute(LoopOp::kBitXor, {w_.compute(LoopOp::kLt, {rest, zero}), w_.compute(LoopOp::kLt, {divisor, zero})});
    const LoopValue corrects = w_.compute(LoopOp::kBitAnd, {w_.compute(LoopOp::kNe, {rest, zero}), signs_differ});
    const LoopValue moved = w_.compute(LoopOp::kAdd, {rest, divisor});
    return w_.convert(w_.compute(LoopOp::kSelect, {corrects, moved, rest}), number_);
  }

  // Small whole exponents are multiplications.
  LoopValue power_of(const std::vector<LoopValue>& args) {
    if (const std::optional<double> exponent = w_.constant_value(args[1])) {
      if (*exponent == 1) return numeric(args[0]);
      const LoopValue square = op(LoopOp::kMul, {args[0], args[0]});
      if (*exponent == 2) return square;
      if (*exponent == 3) return op(LoopOp::kMul, {square, args[0]});
      if (*exponent == 4) return op(LoopOp::kMul, {square, square});
    }
    return w_.convert(in_double(LoopOp::kPow, args), number_);
  }

  LoopValue real_step(Primitive primitive, const std::vector<LoopValue>& args) {
    if (const auto value = shared_step(primitive, args)) return *value;
    switch (primitive) {
      case Primitive::kSign:
        return sign_of(args[0]);
      case Primitive::kIsNan:
        return is_nan(args[0]);
      case Primitive::kExp:
        return op(LoopOp::kExp, args);
      case Primitive::kLog:
        return op(LoopOp::kLog, args);
      case Primitive::kLog1p:
        return op(LoopOp::kLog1p, args);
      case Primitive::kExpm1:
        return op(LoopOp::kExpm1, args);
      case Primitive::kSqrt:
        return op(LoopOp::kSqrt, args);
      case Primitive::kRsqrt:
        return op(LoopOp::kRsqrt, args);
      case Primitive::kSin:
        return op(LoopOp::kSin, args);
      case Primitive::kCos:
        return op(LoopOp::kCos, args);
      case Primitive::kTan:
        return w_.convert(in_double(LoopOp::kTan, args), number_);
      case Primitive::kTanh:
        return op(LoopOp::kTanh, args);
      case Primitive::kErf:
        return op(LoopOp::kErf, args);
      case Primitive::kFloor:
        return op(LoopOp::kFloor, args);
      case Primitive::kCeil:
        return op(LoopOp::kCeil, args);
      case Primitive::kRound:
        return op(LoopOp::kRound, args);
      case Primitive::kTrunc:
        return op(LoopOp::kTrunc, args);
      case Primitive::kDiv:
        return op(LoopOp::kDiv, args);
      case Primitive::kFloorDiv:
        return w_.convert(w_.compute(LoopOp::kFloor, {in_double(LoopOp::kDiv, args)}), number_);
      case Primitive::kRemainder:
        return remainder_of(args);
      case Primitive::kFmod:
        return w_.convert(in_double(LoopOp::kFmod, args), number_);
      case Primitive::kPow:
        return power_of(args);
      case Primitive::kAtan2:
        return w_.convert(in_double(LoopOp::kAtan2, args), number_);
      default:
        INTERNAL_CHECK(false, "{} has no loops on real numbers", name_of(primitive));
    }
    return args[0];
  }

  // Never divides by 0 or -1: the machine traps on the first and, for the smallest integer, on the second.
  LoopValue floor_quotient(LoopValue a, LoopValue b) {
    const LoopValue zero = number(0);
    const LoopValue minus = op(LoopOp::kEq, {b, number(-1)});
    const LoopValue safe = choose(w_.compute(LoopOp::kBitOr, {minus, op(LoopOp::kEq, {b, zero})}), number(1), b);
    const LoopValue quotient = op(LoopOp::kQuotient, {a, safe});
    const LoopValue rest = op(LoopOp::kSub, {a, op(LoopOp::kMul, {quotient, safe})});
    const LoopValue signs_differ =
        w_.compute(LoopOp::kBitXor, {op(LoopOp::kLt, {a, zero}), op(LoopOp::kLt, {safe, zero})});
    const LoopValue below = w_.compute(LoopOp::kBitAnd, {op(LoopOp::kNe, {rest, zero}), signs_differ});
    const LoopValue floored = choose(below, op(LoopOp::kSub, {quotient, number(1)}), quotient);
    return choose(minus, op(LoopOp::kNeg, {a}), floored);
  }
  LoopValue truncated_rest(LoopValue a, LoopValue b) {
    const LoopValue unsafe =
        w_.compute(LoopOp::kBitOr, {op(LoopOp::kEq, {b, number(-1)}), op(LoopOp::kEq, {b, number(0)})});
    const LoopValue safe = choose(unsafe, number(1), b);
    return op(LoopOp::kSub, {a, op(LoopOp::kMul, {op(LoopOp::kQuotient, {a, safe}), safe})});
  }

  LoopValue integer_step(Primitive primitive, const std::vector<LoopValue>& operands) {
    if (const auto value = shared_step(primitive, operands)) return *value;
    std::vector<LoopValue> args;
    for (LoopValue operand : operands) args.push_back(numeric(operand));
    switch (primitive) {
      case Primitive::kSign:
        return sign_of(args[0]);
      case Primitive::kFloor:
      case Primitive::kCeil:
      case Primitive::kRound:
      case Primitive::kTrunc:
        return args[0];
      case Primitive::kIsNan:
        return w_.integer(ValueType::kBool, 0);
      case Primitive::kBitNot:
        return op(LoopOp::kBitXor, {args[0], number(-1)});
      case Primitive::kFloorDiv:
        return floor_quotient(args[0], args[1]);
      case Primitive::kRemainder:
        return op(LoopOp::kSub, {args[0], op(LoopOp::kMul, {args[1], floor_quotient(args[0], args[1])})});
      case Primitive::kFmod:
        return truncated_rest(args[0], args[1]);
      case Primitive::kPow:
        return op(LoopOp::kPow, args);
      case Primitive::kBitAnd:
        return op(LoopOp::kBitAnd, args);
      case Primitive::kBitOr:
        return op(LoopOp::kBitOr, args);
      case Primitive::kBitXor:
        return op(LoopOp::kBitXor, args);
      default:
        INTERNAL_CHECK(false, "{} has no loops on integers", name_of(primitive));
    }
    return args[0];
  }

  PhaseWriter& w_;
  ValueType number_;
};

// Truth is being unlike 0, also for 0.5 and for NaN.
LoopValue as_result(PhaseWriter& w, LoopValue value, DType result) {
  if (result != DType::kBool) {
    const bool narrow = value_type_of(result) == ValueType::kI64;
    return narrow ? w.round_to(value, result) : w.convert(value, value_type_of(result));
  }
  if (w.type(value) == ValueType::kBool) return value;
  const bool whole = w.type(value) == ValueType::kI64;
  const LoopValue zero = whole ? w.integer(ValueType::kI64, 0) : w.constant(w.type(value), 0);
  return w.compute(LoopOp::kNe, {value, zero});
}

// 32-bit words live in the low halves of i64 values.
class PhiloxWriter {
 public:
  explicit PhiloxWriter(PhaseWriter& writer) : w_(writer) {}

  std::array<LoopValue, 4> words(LoopValue seed, LoopValue step, int64_t stream, LoopValue index) {
    std::array<LoopValue, 4> counter = {low(index), high(index), word(stream & 0xFFFFFFFF), low(step)};
    std::array<LoopValue, 2> key = {low(seed), high(seed)};
    for (int round = 0; round < 10; ++round) {
      const LoopValue a = w_.compute(LoopOp::kMul, {word(0xD2511F53), counter[0]});
      const LoopValue b = w_.compute(LoopOp::kMul, {word(0xCD9E8D57), counter[2]});
      counter = {either(either(high(b), counter[1]), key[0]), low(b), either(either(high(a), counter[3]), key[1]),
                 low(a)};
      key = {low(w_.compute(LoopOp::kAdd, {key[0], word(0x9E3779B9)})),
             low(w_.compute(LoopOp::kAdd, {key[1], word(0xBB67AE85)}))};
    }
    return counter;
  }
  // From 0 to below 1, in steps of 2^-24.
  LoopValue unit(LoopValue drawn, ValueType type) {
    const LoopValue top = w_.compute(LoopOp::kShiftRightLogical, {drawn, word(8)});
    return w_.compute(LoopOp::kMul, {w_.convert(top, type), w_.constant(type, 0x1p-24)});
  }

 private:
  LoopValue word(int64_t value) { return w_.integer(ValueType::kI64, value); }
  LoopValue low(LoopValue value) { return w_.compute(LoopOp::kBitAnd, {value, word(0xFFFFFFFF)}); }
  LoopValue high(LoopValue value) { return w_.compute(LoopOp::kShiftRightLogical, {value, word(32)}); }
  LoopValue either(LoopValue a, LoopValue b) { return w_.compute(LoopOp::kBitXor, {a, b}); }

  PhaseWriter& w_;
};

}  // namespace

LoopValue write_body(PhaseWriter& w, const OpDef& op, const std::vector<TensorType>& inputs, const Attrs& attrs,
                     const std::vector<LoopValue>& arguments, DType result) {
  const AttrValue* target = attrs.find("dtype");
  if (target != nullptr && result != DType::kBool) return w.round_to(arguments[0], result);  // a cast
  ValueType number = ValueType::kI64;
  for (const TensorType& input : inputs)
    if (is_floating(input.dtype)) number = value_type_of(input.dtype);
  return as_result(w, BodyWriter(w, number).write(scalar_expr(op.body), attrs, arguments), result);
}

LoopValue write_draw(PhaseWriter& w, bool normal, LoopValue seed, LoopValue step, int64_t stream, LoopValue index,
                     DType result) {
  PhiloxWriter philox(w);
  const std::array<LoopValue, 4> words = philox.words(seed, step, stream, index);
  const ValueType type = value_type_of(result);
  const LoopValue uniform = philox.unit(words[0], type);
  if (!normal) return uniform;
  const LoopValue rest = w.compute(LoopOp::kSub, {w.constant(type, 1), uniform});
  const LoopValue radius =
      w.compute(LoopOp::kSqrt, {w.compute(LoopOp::kMul, {w.constant(type, -2), w.compute(LoopOp::kLog, {rest})})});
  const LoopValue angle =
      w.compute(LoopOp::kMul, {w.constant(type, 2 * std::numbers::pi), philox.unit(words[1], type)});
  return w.compute(LoopOp::kMul, {radius, w.compute(LoopOp::kCos, {angle})});
}

}  // namespace stepc
