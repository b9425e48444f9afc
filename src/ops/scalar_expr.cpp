#include "ops/scalar_expr.h"

#include <cmath>
#include <map>
#include <type_traits>

#include "base/check.h"
#include "ops/integer_power.h"

namespace stepc {

namespace {
struct Row {
  Primitive primitive;
  std::string_view name;
  int operands;
};
constexpr Row kRows[] = {
    {Primitive::kArgument, "argument", 0},
    {Primitive::kConstant, "constant", 0},
    {Primitive::kAttr, "attr", 0},
    {Primitive::kNeg, "neg", 1},
    {Primitive::kAbs, "abs", 1},
    {Primitive::kSign, "sign", 1},
    {Primitive::kExp, "exp", 1},
    {Primitive::kLog, "log", 1},
    {Primitive::kLog1p, "log1p", 1},
    {Primitive::kExpm1, "expm1", 1},
    {Primitive::kSqrt, "sqrt", 1},
    {Primitive::kRsqrt, "rsqrt", 1},
    {Primitive::kSin, "sin", 1},
    {Primitive::kCos, "cos", 1},
    {Primitive::kTan, "tan", 1},
    {Primitive::kTanh, "tanh", 1},
    {Primitive::kErf, "erf", 1},
    {Primitive::kFloor, "floor", 1},
    {Primitive::kCeil, "ceil", 1},
    {Primitive::kRound, "round", 1},
    {Primitive::kTrunc, "trunc", 1},
    {Primitive::kIsNan, "is_nan", 1},
    {Primitive::kNot, "not", 1},
    {Primitive::kBitNot, "bit_not", 1},
    {Primitive::kAdd, "add", 2},
    {Primitive::kSub, "sub", 2},
    {Primitive::kMul, "mul", 2},
    {Primitive::kDiv, "div", 2},
    {Primitive::kFloorDiv, "floor_div", 2},
    {Primitive::kRemainder, "remainder", 2},
    {Primitive::kFmod, "fmod", 2},
    {Primitive::kPow, "pow", 2},
    {Primitive::kAtan2, "atan2", 2},
    {Primitive::kMin, "min", 2},
    {Primitive::kMax, "max", 2},
    {Primitive::kEq, "eq", 2},
    {Primitive::kNe, "ne", 2},
    {Primitive::kLt, "lt", 2},
    {Primitive::kLe, "le", 2},
    {Primitive::kAnd, "and", 2},
    {Primitive::kOr, "or", 2},
    {Primitive::kXor, "xor", 2},
    {Primitive::kBitAnd, "bit_and", 2},
    {Primitive::kBitOr, "bit_or", 2},
    {Primitive::kBitXor, "bit_xor", 2},
    {Primitive::kSelect, "select", 3},
};
const Row& row_of(Primitive primitive) {
  const Row& row = kRows[static_cast<size_t>(primitive)];
  INTERNAL_CHECK(row.primitive == primitive, "the table of primitives is out of order at '{}'", row.name);
  return row;
}
}  // namespace

std::string_view name_of(Primitive primitive) { return row_of(primitive).name; }
int operand_count(Primitive primitive) { return row_of(primitive).operands; }

struct Scalar::Part {
  ScalarStep step;
  std::vector<std::shared_ptr<const Part>> operands;
};

Scalar::Scalar(double constant)
    : part_(std::make_shared<Part>(Part{{Primitive::kConstant, {-1, -1, -1}, constant, {}}, {}})) {}
Scalar Scalar::argument(int index) {
  return Scalar(std::make_shared<const Part>(Part{{Primitive::kArgument, {index, -1, -1}, 0, {}}, {}}));
}
Scalar Scalar::attr(std::string_view name) {
  return Scalar(std::make_shared<const Part>(Part{{Primitive::kAttr, {-1, -1, -1}, 0, name}, {}}));
}
Scalar Scalar::apply(Primitive primitive, const std::vector<Scalar>& operands) {
  Part part{{primitive, {-1, -1, -1}, 0, {}}, {}};
  for (const Scalar& operand : operands) part.operands.push_back(operand.part_);
  return Scalar(std::make_shared<const Part>(std::move(part)));
}

// Numbers the parts of an expression, each once.
class ScalarWriter {
 public:
  static ScalarExpr write(const Scalar& scalar) {
    ScalarWriter writer;
    writer.place(scalar.part_.get());
    return std::move(writer.expr_);
  }

 private:
  int place(const Scalar::Part* part) {
    if (const auto found = placed_.find(part); found != placed_.end()) return found->second;
    ScalarStep step = part->step;
    for (size_t i = 0; i < part->operands.size(); ++i) step.operands[i] = place(part->operands[i].get());
    for (size_t i = 0; i < expr_.steps.size(); ++i) {
      const ScalarStep& other = expr_.steps[i];
      if (other.primitive == step.primitive && other.operands == step.operands && other.constant == step.constant &&
          other.attr == step.attr)
        return static_cast<int>(i);
    }
    expr_.steps.push_back(step);
    const int index = static_cast<int>(expr_.steps.size()) - 1;
    placed_[part] = index;
    return index;
  }

  ScalarExpr expr_;
  std::map<const Scalar::Part*, int> placed_;  // looked up, never iterated
};

ScalarExpr scalar_expr(ScalarFn body) {
  const ScalarArgs arguments;
  return ScalarWriter::write(body(arguments));
}

std::string to_text(const ScalarExpr& expr) {
  std::string out;
  for (size_t i = 0; i < expr.steps.size(); ++i) {
    const ScalarStep& step = expr.steps[i];
    out += str("{}: {}", i, name_of(step.primitive));
    if (step.primitive == Primitive::kArgument) out += str(" {}", step.operands[0]);
    if (step.primitive == Primitive::kConstant) out += str(" {}", step.constant);
    if (step.primitive == Primitive::kAttr) out += str(" {}", step.attr);
    for (int k = 0; k < operand_count(step.primitive); ++k) out += str(" {}", step.operands[static_cast<size_t>(k)]);
    out += "\n";
  }
  return out;
}

std::string formula_text(const ScalarExpr& expr) {
  std::vector<std::string> texts;
  for (const ScalarStep& step : expr.steps) {
    std::vector<std::string> operands;
    for (int k = 0; k < operand_count(step.primitive); ++k)
      operands.push_back(texts[static_cast<size_t>(step.operands[static_cast<size_t>(k)])]);
    if (step.primitive == Primitive::kArgument)
      texts.push_back(std::string(1, static_cast<char>('a' + step.operands[0])));
    else if (step.primitive == Primitive::kConstant)
      texts.push_back(str("{}", step.constant));
    else if (step.primitive == Primitive::kAttr)
      texts.emplace_back(step.attr);
    else
      texts.push_back(str("{}({})", name_of(step.primitive), fmt::join(operands, ", ")));
  }
  return texts.back();
}

namespace {

// Comparisons, logic and selection, which real numbers and integers have alike.
template <class T>
T choose(Primitive primitive, T a, T b, T c) {
  switch (primitive) {
    case Primitive::kEq:
      return a == b ? 1 : 0;
    case Primitive::kNe:
      return a != b ? 1 : 0;
    case Primitive::kLt:
      return a < b ? 1 : 0;
    case Primitive::kLe:
      return a <= b ? 1 : 0;
    case Primitive::kAnd:
      return a != 0 && b != 0 ? 1 : 0;
    case Primitive::kOr:
      return a != 0 || b != 0 ? 1 : 0;
    case Primitive::kXor:
      return (a != 0) != (b != 0) ? 1 : 0;
    case Primitive::kSelect:
      return a != 0 ? b : c;
    default:
      INTERNAL_CHECK(false, "{} has no meaning on {}", name_of(primitive),
                     std::is_integral_v<T> ? "integers" : "real numbers");
  }
  return 0;
}

double apply(Primitive primitive, double a, double b, double c) {
  switch (primitive) {
    case Primitive::kNeg:
      return -a;
    case Primitive::kAbs:
      return std::abs(a);
    case Primitive::kSign:
      return std::isnan(a) ? a : static_cast<double>((a > 0) - (a < 0));
    case Primitive::kExp:
      return std::exp(a);
    case Primitive::kLog:
      return std::log(a);
    case Primitive::kLog1p:
      return std::log1p(a);
    case Primitive::kExpm1:
      return std::expm1(a);
    case Primitive::kSqrt:
      return std::sqrt(a);
    case Primitive::kRsqrt:
      return 1.0 / std::sqrt(a);
    case Primitive::kSin:
      return std::sin(a);
    case Primitive::kCos:
      return std::cos(a);
    case Primitive::kTan:
      return std::tan(a);
    case Primitive::kTanh:
      return std::tanh(a);
    case Primitive::kErf:
      return std::erf(a);
    case Primitive::kFloor:
      return std::floor(a);
    case Primitive::kCeil:
      return std::ceil(a);
    case Primitive::kRound:
      return std::nearbyint(a);
    case Primitive::kTrunc:
      return std::trunc(a);
    case Primitive::kIsNan:
      return std::isnan(a) ? 1 : 0;
    case Primitive::kNot:
      return a == 0 ? 1 : 0;
    case Primitive::kAdd:
      return a + b;
    case Primitive::kSub:
      return a - b;
    case Primitive::kMul:
      return a * b;
    case Primitive::kDiv:
      return a / b;
    case Primitive::kFloorDiv:
      return std::floor(a / b);
    case Primitive::kRemainder: {
      const double rest = std::fmod(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case Primitive::kFmod:
      return std::fmod(a, b);
    case Primitive::kPow:
      return std::pow(a, b);
    case Primitive::kAtan2:
      return std::atan2(a, b);
    case Primitive::kMin:
      return std::isnan(a) ? a : std::isnan(b) ? b : std::min(a, b);
    case Primitive::kMax:
      return std::isnan(a) ? a : std::isnan(b) ? b : std::max(a, b);
    default:
      return choose(primitive, a, b, c);
  }
}

int64_t wrapped(uint64_t value) { return static_cast<int64_t>(value); }

int64_t floor_divide(int64_t a, int64_t b) {
  INTERNAL_CHECK(b != 0, "an integer is divided by zero");
  if (b == -1) return wrapped(-static_cast<uint64_t>(a));
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t apply(Primitive primitive, int64_t a, int64_t b, int64_t c) {
  const auto ua = static_cast<uint64_t>(a);
  const auto ub = static_cast<uint64_t>(b);
  switch (primitive) {
    case Primitive::kNeg:
      return wrapped(-ua);
    case Primitive::kAbs:
      return a < 0 ? wrapped(-ua) : a;
    case Primitive::kSign:
      return (a > 0) - (a < 0);
    case Primitive::kFloor:
    case Primitive::kCeil:
    case Primitive::kRound:
    case Primitive::kTrunc:
      return a;
    case Primitive::kIsNan:
      return 0;
    case Primitive::kNot:
      return a == 0 ? 1 : 0;
    case Primitive::kBitNot:
      return ~a;
    case Primitive::kAdd:
      return wrapped(ua + ub);
    case Primitive::kSub:
      return wrapped(ua - ub);
    case Primitive::kMul:
      return wrapped(ua * ub);
    case Primitive::kFloorDiv:
      return floor_divide(a, b);
    case Primitive::kRemainder:
      return wrapped(ua - ub * static_cast<uint64_t>(floor_divide(a, b)));
    case Primitive::kFmod:
      INTERNAL_CHECK(b != 0, "an integer is divided by zero");
      return b == -1 ? 0 : a % b;
    case Primitive::kPow:
      return integer_power(a, b);
    case Primitive::kMin:
      return std::min(a, b);
    case Primitive::kMax:
      return std::max(a, b);
    case Primitive::kBitAnd:
      return a & b;
    case Primitive::kBitOr:
      return a | b;
    case Primitive::kBitXor:
      return a ^ b;
    default:
      return choose(primitive, a, b, c);
  }
}

template <class T>
T evaluate_steps(const ScalarExpr& expr, const std::vector<T>& arguments, const Attrs& attrs) {
  std::array<T, 64> values{};
  INTERNAL_CHECK_LE(expr.steps.size(), values.size());
  for (size_t i = 0; i < expr.steps.size(); ++i) {
    const ScalarStep& step = expr.steps[i];
    const auto operand = [&](size_t k) {
      return step.operands[k] < 0 ? T() : values[static_cast<size_t>(step.operands[k])];
    };
    if (step.primitive == Primitive::kArgument)
      values[i] = arguments[static_cast<size_t>(step.operands[0])];
    else if (step.primitive == Primitive::kConstant)
      values[i] = static_cast<T>(step.constant);
    else if (step.primitive == Primitive::kAttr)
      values[i] = static_cast<T>(attrs.number(step.attr));
    else
      values[i] = apply(step.primitive, operand(0), operand(1), operand(2));
  }
  return values[expr.steps.size() - 1];
}

}  // namespace

double evaluate(const ScalarExpr& expr, const std::vector<double>& arguments, const Attrs& attrs) {
  return evaluate_steps(expr, arguments, attrs);
}
int64_t evaluate(const ScalarExpr& expr, const std::vector<int64_t>& arguments, const Attrs& attrs) {
  return evaluate_steps(expr, arguments, attrs);
}

}  // namespace stepc
