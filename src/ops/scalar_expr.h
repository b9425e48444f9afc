// ScalarExpr: what an elementwise op computes for one element, as a few steps over primitives that every code generator
// can print. Rows of the op table write it with ordinary operators:
//
//   [](const ScalarArgs& x) { return x[0] / (1.0 + exp(-x[0])); }     // silu
//
// becomes   0: argument 0   1: neg 0   2: exp 1   3: constant 1.0   4: add 3 2   5: div 0 4
//
// Steps compute in the operands' type; bf16 and f16 compute in f32. A comparison gives a bool, select takes one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attrs.h"

namespace stepc {

enum class Primitive : uint8_t {
  kArgument,
  kConstant,
  kAttr,
  kNeg,
  kAbs,
  kSign,
  kExp,
  kLog,
  kLog1p,
  kExpm1,
  kSqrt,
  kRsqrt,
  kSin,
  kCos,
  kTan,
  kTanh,
  kErf,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kIsNan,
  kNot,
  kBitNot,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kRemainder,
  kFmod,
  kPow,
  kAtan2,
  kMin,
  kMax,
  kEq,
  kNe,
  kLt,
  kLe,
  kAnd,
  kOr,
  kXor,
  kBitAnd,
  kBitOr,
  kBitXor,
  kSelect,
};
std::string_view name_of(Primitive primitive);
int operand_count(Primitive primitive);

struct ScalarStep {
  Primitive primitive = Primitive::kConstant;
  std::array<int, 3> operands = {-1, -1, -1};  // earlier steps; kArgument: its number in operands[0]
  double constant = 0;                         // kConstant
  std::string_view attr;                       // kAttr: the op's attribute
};

struct ScalarExpr {
  std::vector<ScalarStep> steps;  // the last one is the result
};
std::string to_text(const ScalarExpr& expr);
// One line, operands called a, b, c: "div(a, add(1, exp(neg(a))))".
std::string formula_text(const ScalarExpr& expr);

// A value while an expression is written.
class Scalar {
 public:
  Scalar(double constant);  // NOLINT(google-explicit-constructor): so that bodies read as formulas
  static Scalar argument(int index);
  static Scalar attr(std::string_view name);
  static Scalar apply(Primitive primitive, const std::vector<Scalar>& operands);

 private:
  friend class ScalarWriter;
  struct Part;
  explicit Scalar(std::shared_ptr<const Part> part) : part_(std::move(part)) {}
  std::shared_ptr<const Part> part_;
};

struct ScalarArgs {
  Scalar operator[](int index) const { return Scalar::argument(index); }
};
using ScalarFn = Scalar (*)(const ScalarArgs& x);
ScalarExpr scalar_expr(ScalarFn body);

// What the steps mean, on float (all float types, in double) and integer (integers and bools) elements.
double evaluate(const ScalarExpr& expr, const std::vector<double>& arguments, const Attrs& attrs);
int64_t evaluate(const ScalarExpr& expr, const std::vector<int64_t>& arguments, const Attrs& attrs);

#define STEPC_SCALAR_UNARY(name, primitive) \
  inline Scalar name(const Scalar& a) { return Scalar::apply(Primitive::primitive, {a}); }
#define STEPC_SCALAR_BINARY(name, primitive) \
  inline Scalar name(const Scalar& a, const Scalar& b) { return Scalar::apply(Primitive::primitive, {a, b}); }
STEPC_SCALAR_UNARY(operator-, kNeg)
STEPC_SCALAR_UNARY(operator!, kNot)
STEPC_SCALAR_UNARY(operator~, kBitNot)
STEPC_SCALAR_UNARY(abs, kAbs)
STEPC_SCALAR_UNARY(sign, kSign)
STEPC_SCALAR_UNARY(exp, kExp)
STEPC_SCALAR_UNARY(log, kLog)
STEPC_SCALAR_UNARY(log1p, kLog1p)
STEPC_SCALAR_UNARY(expm1, kExpm1)
STEPC_SCALAR_UNARY(sqrt, kSqrt)
STEPC_SCALAR_UNARY(rsqrt, kRsqrt)
STEPC_SCALAR_UNARY(sin, kSin)
STEPC_SCALAR_UNARY(cos, kCos)
STEPC_SCALAR_UNARY(tan, kTan)
STEPC_SCALAR_UNARY(tanh, kTanh)
STEPC_SCALAR_UNARY(erf, kErf)
STEPC_SCALAR_UNARY(floor, kFloor)
STEPC_SCALAR_UNARY(ceil, kCeil)
STEPC_SCALAR_UNARY(round, kRound)  // to even
STEPC_SCALAR_UNARY(trunc, kTrunc)
STEPC_SCALAR_UNARY(is_nan, kIsNan)
STEPC_SCALAR_BINARY(operator+, kAdd)
STEPC_SCALAR_BINARY(operator-, kSub)
STEPC_SCALAR_BINARY(operator*, kMul)
STEPC_SCALAR_BINARY(operator/, kDiv)
STEPC_SCALAR_BINARY(floor_div, kFloorDiv)
STEPC_SCALAR_BINARY(remainder, kRemainder)  // sign of the divisor
STEPC_SCALAR_BINARY(fmod, kFmod)            // sign of the dividend
STEPC_SCALAR_BINARY(pow, kPow)
STEPC_SCALAR_BINARY(atan2, kAtan2)
STEPC_SCALAR_BINARY(min, kMin)  // NaN wins
STEPC_SCALAR_BINARY(max, kMax)
STEPC_SCALAR_BINARY(operator==, kEq)
STEPC_SCALAR_BINARY(operator!=, kNe)
STEPC_SCALAR_BINARY(operator<, kLt)
STEPC_SCALAR_BINARY(operator<=, kLe)
STEPC_SCALAR_BINARY(operator&&, kAnd)
STEPC_SCALAR_BINARY(operator||, kOr)
STEPC_SCALAR_BINARY(logical_xor, kXor)
STEPC_SCALAR_BINARY(operator&, kBitAnd)
STEPC_SCALAR_BINARY(operator|, kBitOr)
STEPC_SCALAR_BINARY(operator^, kBitXor)
#undef STEPC_SCALAR_UNARY
#undef STEPC_SCALAR_BINARY
inline Scalar select(const Scalar& condition, const Scalar& yes, const Scalar& no) {
  return Scalar::apply(Primitive::kSelect, {condition, yes, no});
}
inline Scalar sigmoid(const Scalar& x) { return 1.0 / (1.0 + exp(-x)); }

}  // namespace stepc
