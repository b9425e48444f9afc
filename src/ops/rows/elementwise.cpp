// Elementwise ops: operands broadcast, have one dtype, and each result element is the scalar body of the operands'
// elements at its place.
#include "base/check.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

std::vector<TensorType> infer_same(const OpCall& call) {
  check_same_dtype(call);
  return {typed(call.in(0).dtype, broadcast_shape(call.inputs))};
}
std::vector<TensorType> infer_float(const OpCall& call) {
  INTERNAL_CHECK(is_floating(call.in(0).dtype), "{} is no floating-point type", name_of(call.in(0).dtype));
  return infer_same(call);
}
std::vector<TensorType> infer_bool(const OpCall& call) {
  check_same_dtype(call);
  return {typed(DType::kBool, broadcast_shape(call.inputs))};
}
std::vector<TensorType> infer_where(const OpCall& call) {
  INTERNAL_CHECK_EQ(name_of(call.in(0).dtype), "bool", "the condition");
  check_same_dtype(call, 1);
  return {typed(call.in(1).dtype, broadcast_shape(call.inputs))};
}
std::vector<TensorType> infer_cast(const OpCall& call) {
  return {typed(call.attrs.get<DType>("dtype"), call.in(0).shape)};
}
std::vector<TensorType> infer_integer(const OpCall& call) {
  INTERNAL_CHECK(!is_floating(call.in(0).dtype), "{} is no integer type", name_of(call.in(0).dtype));
  return infer_same(call);
}
// A bool has one bit; its complement is logical_not.
std::vector<TensorType> infer_bits(const OpCall& call) {
  INTERNAL_CHECK(call.in(0).dtype != DType::kBool, "the bits of a bool");
  return infer_integer(call);
}

double one_flop_each(const OpCall&, const std::vector<TensorType>& results) { return count_of(results[0]); }
double ten_flops_each(const OpCall&, const std::vector<TensorType>& results) { return 10 * count_of(results[0]); }

OpDef row(std::string_view name, size_t arity, InferFn infer, ScalarFn body, uint32_t traits = 0) {
  OpDef op;
  op.name = name;
  op.min_inputs = op.max_inputs = arity;
  op.traits = traits | Trait::kElementwise;
  op.infer = infer;
  op.sharding = [](const OpCall& call, const std::vector<TensorType>& results) {
    return elementwise_rule(call.inputs, results);
  };
  op.flops = one_flop_each;
  op.body = body;
  return op;
}
OpDef costly(OpDef op) {  // a transcendental function, by its polynomial
  op.flops = ten_flops_each;
  return op;
}
OpDef with(OpDef op, std::vector<AttrDef> attrs, std::string_view summary) {
  op.attrs = std::move(attrs);
  op.summary = summary;
  return op;
}

constexpr uint32_t kCommutes = static_cast<uint32_t>(Trait::kCommutative);
constexpr uint32_t kLinear = static_cast<uint32_t>(Trait::kLinear);
using X = const ScalarArgs&;

std::vector<OpDef> unary_rows() {
  return {
      row(
          "neg", 1, infer_same, [](X x) { return -x[0]; }, kLinear),
      row("abs", 1, infer_same, [](X x) { return abs(x[0]); }),
      row("sign", 1, infer_same, [](X x) { return sign(x[0]); }),
      row("square", 1, infer_same, [](X x) { return x[0] * x[0]; }),
      row("reciprocal", 1, infer_float, [](X x) { return 1.0 / x[0]; }),
      row("sqrt", 1, infer_float, [](X x) { return sqrt(x[0]); }),
      row("rsqrt", 1, infer_float, [](X x) { return rsqrt(x[0]); }),
      costly(row("exp", 1, infer_float, [](X x) { return exp(x[0]); })),
      costly(row("expm1", 1, infer_float, [](X x) { return expm1(x[0]); })),
      costly(row("log", 1, infer_float, [](X x) { return log(x[0]); })),
      costly(row("log1p", 1, infer_float, [](X x) { return log1p(x[0]); })),
      costly(row("sin", 1, infer_float, [](X x) { return sin(x[0]); })),
      costly(row("cos", 1, infer_float, [](X x) { return cos(x[0]); })),
      costly(row("tan", 1, infer_float, [](X x) { return tan(x[0]); })),
      costly(row("tanh", 1, infer_float, [](X x) { return tanh(x[0]); })),
      costly(row("erf", 1, infer_float, [](X x) { return erf(x[0]); })),
      row("floor", 1, infer_same, [](X x) { return floor(x[0]); }),
      row("ceil", 1, infer_same, [](X x) { return ceil(x[0]); }),
      row("round", 1, infer_same, [](X x) { return round(x[0]); }),
      row("trunc", 1, infer_same, [](X x) { return trunc(x[0]); }),
      row("is_nan", 1, infer_bool, [](X x) { return is_nan(x[0]); }),
      row("logical_not", 1, infer_bool, [](X x) { return !x[0]; }),
      row("bitwise_not", 1, infer_bits, [](X x) { return ~x[0]; }),
      row("relu", 1, infer_same, [](X x) { return max(x[0], 0.0); }),
      costly(row("sigmoid", 1, infer_float, [](X x) { return sigmoid(x[0]); })),
      costly(row("silu", 1, infer_float, [](X x) { return x[0] / (1.0 + exp(-x[0])); })),
      costly(
          with(row("gelu", 1, infer_float, [](X x) { return 0.5 * x[0] * (1.0 + erf(x[0] * 0.70710678118654752440)); }),
               {}, "x times the normal distribution's probability below x")),
      costly(with(row("gelu_tanh", 1, infer_float,
                      [](X x) {
                        const Scalar inner = 0.79788456080286535588 * (x[0] + 0.044715 * x[0] * x[0] * x[0]);
                        return 0.5 * x[0] * (1.0 + tanh(inner));
                      }),
                  {}, "gelu by its usual approximation")),
      with(row(
               "cast", 1, infer_cast, [](X x) { return x[0]; }, kLinear),
           {{"dtype", AttrKind::kDType, {}}}, "rounds to the dtype; a number becomes false by being 0"),
  };
}

std::vector<OpDef> binary_rows() {
  return {
      row(
          "add", 2, infer_same, [](X x) { return x[0] + x[1]; }, kCommutes | kLinear),
      row(
          "sub", 2, infer_same, [](X x) { return x[0] - x[1]; }, kLinear),
      row(
          "mul", 2, infer_same, [](X x) { return x[0] * x[1]; }, kCommutes | Trait::kScales),
      row(
          "div", 2, infer_float, [](X x) { return x[0] / x[1]; }, static_cast<uint32_t>(Trait::kScales)),
      with(row("floor_div", 2, infer_same, [](X x) { return floor_div(x[0], x[1]); }), {}, "rounds down"),
      with(row("remainder", 2, infer_same, [](X x) { return remainder(x[0], x[1]); }), {}, "has the divisor's sign"),
      with(row("fmod", 2, infer_same, [](X x) { return fmod(x[0], x[1]); }), {}, "has the dividend's sign"),
      costly(row("pow", 2, infer_same, [](X x) { return pow(x[0], x[1]); })),
      costly(row("atan2", 2, infer_float, [](X x) { return atan2(x[0], x[1]); })),
      with(row(
               "maximum", 2, infer_same, [](X x) { return max(x[0], x[1]); }, kCommutes),
           {}, "NaN wins"),
      with(row(
               "minimum", 2, infer_same, [](X x) { return min(x[0], x[1]); }, kCommutes),
           {}, "NaN wins"),
      row(
          "eq", 2, infer_bool, [](X x) { return x[0] == x[1]; }, kCommutes),
      row(
          "ne", 2, infer_bool, [](X x) { return x[0] != x[1]; }, kCommutes),
      row("lt", 2, infer_bool, [](X x) { return x[0] < x[1]; }),
      row("le", 2, infer_bool, [](X x) { return x[0] <= x[1]; }),
      row(
          "logical_and", 2, infer_bool, [](X x) { return x[0] && x[1]; }, kCommutes),
      row(
          "logical_or", 2, infer_bool, [](X x) { return x[0] || x[1]; }, kCommutes),
      row(
          "logical_xor", 2, infer_bool, [](X x) { return logical_xor(x[0], x[1]); }, kCommutes),
      row(
          "bitwise_and", 2, infer_integer, [](X x) { return x[0] & x[1]; }, kCommutes),
      row(
          "bitwise_or", 2, infer_integer, [](X x) { return x[0] | x[1]; }, kCommutes),
      row(
          "bitwise_xor", 2, infer_integer, [](X x) { return x[0] ^ x[1]; }, kCommutes),
      with(row("where", 3, infer_where, [](X x) { return select(x[0], x[1], x[2]); }), {},
           "the second where the first is true, else the third"),
  };
}

// Derivatives that have a better form than what the chain rule gives.
std::vector<OpDef> backward_rows() {
  return {
      with(row("relu_backward", 2, infer_same, [](X x) { return select(0.0 < x[1], x[0], 0.0); }), {},
           "(gradient, x or relu(x))"),
      with(row("sigmoid_backward", 2, infer_float, [](X x) { return x[0] * x[1] * (1.0 - x[1]); }), {},
           "(gradient, sigmoid(x))"),
      with(row("tanh_backward", 2, infer_float, [](X x) { return x[0] * (1.0 - x[1] * x[1]); }), {},
           "(gradient, tanh(x))"),
      costly(with(row("silu_backward", 2, infer_float,
                      [](X x) {
                        const Scalar s = sigmoid(x[1]);
                        return x[0] * s * (1.0 + x[1] * (1.0 - s));
                      }),
                  {}, "(gradient, x)")),
      costly(with(row("gelu_backward", 2, infer_float,
                      [](X x) {
                        const Scalar below = 0.5 * (1.0 + erf(x[1] * 0.70710678118654752440));
                        const Scalar density = 0.39894228040143267794 * exp(-0.5 * x[1] * x[1]);
                        return x[0] * (below + x[1] * density);
                      }),
                  {}, "(gradient, x)")),
      costly(with(row("gelu_tanh_backward", 2, infer_float,
                      [](X x) {
                        const Scalar square = x[1] * x[1];
                        const Scalar t = tanh(0.79788456080286535588 * x[1] * (1.0 + 0.044715 * square));
                        const Scalar slope = 0.79788456080286535588 * (1.0 + 3 * 0.044715 * square);
                        return x[0] * (0.5 * (1.0 + t) + 0.5 * x[1] * (1.0 - t * t) * slope);
                      }),
                  {}, "(gradient, x)")),
  };
}

}  // namespace

OpFamily elementwise_ops() {
  OpFamily family{"elementwise", "One element from the operands' elements at the same place; operands broadcast.", {}};
  for (auto rows : {unary_rows(), binary_rows(), backward_rows()})
    for (OpDef& op : rows) family.ops.push_back(std::move(op));
  return family;
}

}  // namespace stepc
