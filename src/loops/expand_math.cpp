// The coefficients are least maximal errors on the reduced ranges that stand beside them (Lawson's iteration).
#include "loops/expand_math.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include "base/check.h"

namespace stepc {

namespace {

using LoopValue = int32_t;

bool is_expanded(const LoopInstruction& one) {
  switch (one.op) {
    case LoopOp::kExp:
    case LoopOp::kLog:
    case LoopOp::kLog1p:
    case LoopOp::kExpm1:
    case LoopOp::kSin:
    case LoopOp::kCos:
    case LoopOp::kTanh:
    case LoopOp::kErf:
      return one.type == ValueType::kF32;
    case LoopOp::kRsqrt:
      return one.type == ValueType::kF32 || one.type == ValueType::kF64;
    default:
      return false;
  }
}

// Appends instructions; numbers are f32 unless another type is named.
class MathWriter {
 public:
  explicit MathWriter(std::vector<LoopInstruction>& out) : out_(out) {}

  LoopValue function(const LoopInstruction& one, LoopValue x) {
    switch (one.op) {
      case LoopOp::kExp:
        return exp(x);
      case LoopOp::kLog:
        return special_log(x, log(x));
      case LoopOp::kLog1p:
        return log1p(x);
      case LoopOp::kExpm1:
        return expm1(x);
      case LoopOp::kSin:
        return sine(x, 0);
      case LoopOp::kCos:
        return sine(x, 1);
      case LoopOp::kTanh:
        return tanh(x);
      case LoopOp::kErf:
        return erf(x);
      default:
        return make(LoopOp::kDiv, one.type, {number(1, one.type), make(LoopOp::kSqrt, one.type, {x})});
    }
  }

 private:
  LoopValue make(LoopOp op, ValueType type, std::initializer_list<LoopValue> args) {
    LoopInstruction one;
    one.op = op;
    one.type = type;
    std::ranges::copy(args, one.args.begin());
    return append(one);
  }
  LoopValue append(const LoopInstruction& one) {
    out_.push_back(one);
    return static_cast<LoopValue>(out_.size() - 1);
  }
  LoopValue number(double value, ValueType type = ValueType::kF32) {
    LoopInstruction one;
    one.type = type;
    one.real = value;
    return append(one);
  }
  LoopValue whole(int64_t value, ValueType type = ValueType::kI32) {
    LoopInstruction one;
    one.type = type;
    one.integer = value;
    return append(one);
  }
  LoopValue add(LoopValue a, LoopValue b) { return make(LoopOp::kAdd, ValueType::kF32, {a, b}); }
  LoopValue sub(LoopValue a, LoopValue b) { return make(LoopOp::kSub, ValueType::kF32, {a, b}); }
  LoopValue mul(LoopValue a, LoopValue b) { return make(LoopOp::kMul, ValueType::kF32, {a, b}); }
  LoopValue div(LoopValue a, LoopValue b) { return make(LoopOp::kDiv, ValueType::kF32, {a, b}); }
  LoopValue fma(LoopValue a, LoopValue b, LoopValue c) { return make(LoopOp::kFma, ValueType::kF32, {a, b, c}); }
  LoopValue less(LoopValue a, LoopValue b) { return make(LoopOp::kLt, ValueType::kBool, {a, b}); }
  LoopValue equal(LoopValue a, LoopValue b) { return make(LoopOp::kEq, ValueType::kBool, {a, b}); }
  LoopValue select(LoopValue condition, LoopValue yes, LoopValue no) {
    return make(LoopOp::kSelect, ValueType::kF32, {condition, yes, no});
  }
  LoopValue magnitude(LoopValue x) { return make(LoopOp::kAbs, ValueType::kF32, {x}); }
  LoopValue clamp(LoopValue x, double low, double high) {  // NaN stays
    const LoopValue below = select(less(number(high), x), number(high), x);
    return select(less(below, number(low)), number(low), below);
  }
  LoopValue with_sign_of(LoopValue x, LoopValue positive) {
    return select(less(x, number(0)), make(LoopOp::kNeg, ValueType::kF32, {positive}), positive);
  }
  LoopValue integer(LoopOp op, LoopValue a, LoopValue b) { return make(op, ValueType::kI32, {a, b}); }
  LoopValue bits(LoopValue x, ValueType type) { return make(LoopOp::kBits, type, {x}); }
  // Highest power first.
  LoopValue polynomial(LoopValue x, std::initializer_list<double> coefficients) {
    LoopValue sum = -1;
    for (double coefficient : coefficients) {
      const LoopValue next = number(coefficient);
      sum = sum < 0 ? next : fma(sum, x, next);
    }
    return sum;
  }

  // x = n ln 2 + r with a whole n, |r| <= 0.35.
  struct Reduced {
    LoopValue n = -1, r = -1;
  };
  Reduced reduced(LoopValue x) {
    // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
    constexpr float kShift = 12582912;
    const LoopValue shifted = fma(x, number(1.44269504088896340736), number(kShift));
    const LoopValue n = sub(shifted, number(kShift));
    LoopValue r = fma(n, number(-0.693359375), x);  // ln 2 in two parts, the first of few bits
    r = fma(n, number(2.12194440054690582e-4), r);
    return {n, r};
  }
  // exp(r) - 1 on |r| <= 0.35: 4e-9 of exp(r).
  LoopValue small_expm1(LoopValue r) {
    const LoopValue tail = polynomial(r, {0.0013813175, 0.0083694084, 0.0416684602, 0.1666651454, 0.4999999334});
    return fma(mul(r, r), tail, r);
  }
  LoopValue scale(LoopValue x, LoopValue n) { return make(LoopOp::kScale, ValueType::kF32, {x, n}); }

  LoopValue exp(LoopValue x) {
    const Reduced parts = reduced(clamp(x, -104, 89));
    return scale(add(small_expm1(parts.r), number(1)), parts.n);
  }

  LoopValue expm1(LoopValue x) {
    const Reduced parts = reduced(clamp(x, -30, 89));
    const LoopValue power = scale(number(0.5), parts.n);  // half of 2^n: a number for n = 128
    const LoopValue half = fma(power, small_expm1(parts.r), sub(power, number(0.5)));
    return select(less(magnitude(x), number(0x1p-24)), x, add(half, half));
  }

  // For positive x, subnormal ones too: x = 2^e m with m from sqrt(1/2) to sqrt(2).
  LoopValue log(LoopValue x) {
    const LoopValue is_tiny = less(x, number(0x1p-126));
    const LoopValue normal = select(is_tiny, mul(x, number(0x1p23)), x);
    const LoopValue pattern = bits(normal, ValueType::kI32);
    const LoopValue above = integer(LoopOp::kSub, pattern, whole(0x3F3504F3));
    const LoopValue e = integer(LoopOp::kShiftRight, above, whole(23));
    const LoopValue m =
        bits(integer(LoopOp::kSub, pattern, integer(LoopOp::kShiftLeft, e, whole(23))), ValueType::kF32);
    const LoopValue exponent =
        add(make(LoopOp::kConvert, ValueType::kF32, {e}), select(is_tiny, number(-23), number(0)));
    const LoopValue f = sub(m, number(1));
    const LoopValue square = mul(f, f);
    const LoopValue tail = polynomial(f, {0.0674655158, -0.1167562807, 0.1188818999, -0.1240559493, 0.142195493,
                                          -0.1666799455, 0.2000211877, -0.2500001036, 0.3333331304});
    LoopValue sum = mul(mul(f, square), tail);
    sum = fma(exponent, number(-2.12194440054690582e-4), sum);
    sum = fma(number(-0.5), square, sum);
    return fma(exponent, number(0.693359375), add(f, sum));
  }
  LoopValue special_log(LoopValue x, LoopValue value) {
    value = select(less(x, infinity()), value, x);  // infinity and NaN are their own
    value = select(less(x, number(0)), number(std::numeric_limits<double>::quiet_NaN()), value);
    return select(equal(x, number(0)), number(-std::numeric_limits<double>::infinity()), value);
  }
  LoopValue infinity() { return number(std::numeric_limits<double>::infinity()); }

  LoopValue log1p(LoopValue x) {
    const LoopValue u = add(x, number(1));
    const LoopValue lost = sub(x, sub(u, number(1)));  // of x in u
    LoopValue value = add(log(u), div(lost, u));
    value = select(less(magnitude(x), number(0x1p-24)), x, value);
    value = select(less(x, infinity()), value, x);
    value = select(less(x, number(-1)), number(std::numeric_limits<double>::quiet_NaN()), value);
    return select(equal(x, number(-1)), number(-std::numeric_limits<double>::infinity()), value);
  }

  LoopValue tanh(LoopValue x) {
    const LoopValue z = mul(x, x);
    const LoopValue tail = polynomial(z, {-0.0057208, 0.0206537937, -0.0537444295, 0.1333150202, -0.3333328379});
    const LoopValue near_zero = fma(mul(x, z), tail, x);
    const LoopValue size = clamp(magnitude(x), 0, 10);
    const LoopValue far = sub(number(1), div(number(2), add(exp(add(size, size)), number(1))));
    return select(less(z, number(0.39)), near_zero, with_sign_of(x, far));
  }

  LoopValue erf(LoopValue x) {
    const LoopValue s = mul(x, x);
    const LoopValue inner = polynomial(
        s, {8.21541991e-5, -8.10596409e-4, 0.00519779706, -0.0268581042, 0.112836725, -0.376126323, 0.128379166});
    const LoopValue near_zero = fma(x, inner, x);
    const LoopValue t = clamp(magnitude(x), 0, 4);
    const LoopValue outer = polynomial(t, {-5.29694014e-6, 4.99397379e-5, 2.74388467e-5, -0.00286913083, 0.0225756311,
                                           -0.105169509, -0.635673143, -1.12854144, 0});
    const LoopValue far = sub(number(1), exp(outer));
    return select(less(s, number(0.9025)), near_zero, with_sign_of(x, far));
  }

  // sin(x + quarter * pi / 2). The argument is reduced in f64, pi / 2 in three parts of which n times the first two is
  // exact; from 2^27 on, where neighbours are turns apart, as if at 0.
  LoopValue sine(LoopValue x, int64_t quarter) {
    const ValueType wide = ValueType::kF64;
    const LoopValue is_small = less(magnitude(x), number(0x1p27));
    const LoopValue is_number = less(magnitude(x), infinity());
    const LoopValue used =
        select(is_small, x, select(is_number, number(0), number(std::numeric_limits<double>::quiet_NaN())));
    const LoopValue argument = make(LoopOp::kConvert, wide, {used});
    constexpr double kShift = 0x1.8p52;
    const LoopValue turns = make(LoopOp::kMul, wide, {argument, number(0x1.45F306DC9C883p-1, wide)});
    const LoopValue shifted = make(LoopOp::kAdd, wide, {turns, number(kShift, wide)});
    const LoopValue n = make(LoopOp::kSub, wide, {shifted, number(kShift, wide)});
    LoopValue r = argument;
    for (double part : {0x1.921FB4p0, 0x1.4442D0p-24, 0x1.8469898CC5170p-48})
      r = make(LoopOp::kSub, wide, {r, make(LoopOp::kMul, wide, {n, number(part, wide)})});
    const LoopValue angle = make(LoopOp::kConvert, ValueType::kF32, {r});
    const LoopValue count =
        make(LoopOp::kAdd, ValueType::kI64, {bits(shifted, ValueType::kI64), whole(quarter, ValueType::kI64)});
    const LoopValue s = mul(angle, angle);
    const LoopValue odd_tail = polynomial(s, {2.71823707e-6, -1.98393271e-4, 0.00833332936, -0.166666666});
    const LoopValue sin_part = fma(mul(angle, s), odd_tail, angle);
    const LoopValue even_tail = polynomial(s, {-2.72095455e-7, 2.47995117e-5, -0.00138888837, 0.0416666666});
    const LoopValue cos_part = add(fma(number(-0.5), s, number(1)), mul(mul(s, s), even_tail));
    const LoopValue value = select(is_odd(count, 1), cos_part, sin_part);
    return select(is_odd(count, 2), make(LoopOp::kNeg, ValueType::kF32, {value}), value);
  }
  LoopValue is_odd(LoopValue count, int64_t bit) {
    const LoopValue set = make(LoopOp::kBitAnd, ValueType::kI64, {count, whole(bit, ValueType::kI64)});
    return make(LoopOp::kNe, ValueType::kBool, {set, whole(0, ValueType::kI64)});
  }

  std::vector<LoopInstruction>& out_;
};

std::vector<LoopInstruction> expanded(const std::vector<LoopInstruction>& before) {
  std::vector<LoopInstruction> after;
  std::vector<int32_t> place;
  for (LoopInstruction one : before) {
    for (int32_t& arg : one.args)
      if (arg >= 0) arg = place[static_cast<size_t>(arg)];
    if (is_expanded(one)) {
      place.push_back(MathWriter(after).function(one, one.args[0]));
    } else {
      place.push_back(static_cast<int32_t>(after.size()));
      after.push_back(std::move(one));
    }
  }
  return after;
}

// A product that one sum in its own block reads is part of it. Where a product is taken twice it stays.
void contract(std::vector<LoopInstruction>& instructions) {
  std::vector<int> uses(instructions.size(), 0);
  std::vector<int32_t> block(instructions.size(), -1);
  std::vector<int32_t> open = {-1};
  for (size_t i = 0; i < instructions.size(); ++i) {
    const LoopInstruction& one = instructions[i];
    if (one.op == LoopOp::kEnd) open.pop_back();
    block[i] = open.back();
    if (one.op == LoopOp::kLoop) open.push_back(static_cast<int32_t>(i));
    for (int32_t arg : one.args)
      if (arg >= 0) ++uses[static_cast<size_t>(arg)];
  }
  const auto sums = [&](const LoopInstruction& one) {
    const bool adds_up =
        one.op == LoopOp::kAccumulate && instructions[static_cast<size_t>(one.args[0])].combine == Combine::kSum;
    return is_real(one.type) && (one.op == LoopOp::kAdd || adds_up);
  };
  for (size_t i = 0; i < instructions.size(); ++i) {
    LoopInstruction& sum = instructions[i];
    if (!sums(sum)) continue;
    for (size_t k = 0; k < 2; ++k) {
      const auto p = static_cast<size_t>(sum.args[k]);
      const LoopInstruction& product = instructions[p];
      if (product.op != LoopOp::kMul || uses[p] != 1 || block[p] != block[i]) continue;
      if (sum.op == LoopOp::kAdd) {
        sum.op = LoopOp::kFma;
        sum.args = {product.args[0], product.args[1], sum.args[1 - k]};
      } else {
        sum.op = LoopOp::kAccumulateProduct;
        sum.args = {sum.args[0], product.args[0], product.args[1]};
      }
      uses[p] = 0;
      break;
    }
  }
  // What is not read any more goes.
  std::vector<LoopInstruction> kept;
  std::vector<int32_t> place(instructions.size(), -1);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].op == LoopOp::kMul && uses[i] == 0) continue;
    LoopInstruction one = std::move(instructions[i]);
    for (int32_t& arg : one.args)
      if (arg >= 0) arg = place[static_cast<size_t>(arg)];
    place[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(one));
  }
  instructions = std::move(kept);
}

}  // namespace

LoopProgram expand_math(const LoopProgram& program) {
  LoopProgram out = program;
  for (LoopPhase& phase : out.phases) {
    phase.instructions = expanded(phase.instructions);
    contract(phase.instructions);
  }
  return out;
}

}  // namespace stepc
