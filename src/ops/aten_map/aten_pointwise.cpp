// ATen map: pointwise calls. Arithmetic is done in the promoted type of the operands and rounded to what the call gave.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

// The name of an op as an argument of a template.
template <size_t kSize>
struct OpName {
  std::array<char, kSize> text{};
  consteval OpName(const char (&name)[kSize]) { std::ranges::copy(name, text.begin()); }  // NOLINT: a name is given
  [[nodiscard]] constexpr std::string_view name() const { return {text.data(), kSize - 1}; }
};

template <OpName kOp>
Ids unary(M& m) {
  const DType dtype = m.promoted({0});
  return {m.as_result(m.b.add(
      kOp.name(), {m.tensor(0, is_floating(m.result(0).dtype) && !is_floating(dtype) ? m.result(0).dtype : dtype)}))};
}
template <OpName kOp>
Ids binary(M& m) {
  return {m.as_result(m.b.add(kOp.name(), {m.tensor(0, m.promoted({0, 1})), m.tensor(1, m.promoted({0, 1}))}))};
}

bool is_number_beside_0(const Arg& arg) {
  if (const auto* integer = std::get_if<int64_t>(&arg)) return *integer != 0;
  const auto* wrapped = std::get_if<WrappedNumber>(&arg);
  const auto* integer = wrapped == nullptr ? nullptr : std::get_if<int64_t>(&wrapped->number);
  return integer != nullptr && *integer != 0;
}
// ATen's kernels raise where an integer is divided by 0.
template <OpName kOp>
Ids quotient(M& m) {
  if (!is_floating(m.promoted({0, 1})) && !is_number_beside_0(m.args()[1]))
    M::unmapped("division of integers by what may be 0");
  return binary<kOp>(m);
}
template <OpName kOp>  // gt(a, b) is lt(b, a)
Ids swapped(M& m) {
  return {m.as_result(m.b.add(kOp.name(), {m.tensor(1, m.promoted({0, 1})), m.tensor(0, m.promoted({0, 1}))}))};
}
template <OpName kOp>
Ids logical(M& m) {
  return {m.as_result(m.b.add(kOp.name(), {m.tensor(0, DType::kBool), m.tensor(1, DType::kBool)}))};
}

bool is_one(const M& m, size_t i) {
  if (!m.has(i)) return true;
  const Arg& arg = m.args()[i];
  if (const auto* integer = std::get_if<int64_t>(&arg)) return *integer == 1;
  if (const auto* real = std::get_if<double>(&arg)) return *real == 1.0;
  return false;
}
// a + alpha b
Ids scaled_sum(M& m, std::string_view op, size_t a, size_t b) {
  const DType dtype = m.promoted({0, 1});
  TensorId second = m.tensor(b, dtype);
  if (!is_one(m, 2)) second = m.b.add("mul", {second, m.tensor(2, dtype)});
  TensorId first = m.tensor(a, dtype);
  return {m.as_result(m.b.add(op, {first, second}))};
}
Ids add(M& m) { return scaled_sum(m, "add", 0, 1); }
Ids sub(M& m) { return scaled_sum(m, "sub", 0, 1); }
Ids rsub(M& m) {
  const DType dtype = m.promoted({0, 1});
  TensorId taken = m.tensor(0, dtype);
  if (!is_one(m, 2)) taken = m.b.add("mul", {taken, m.tensor(2, dtype)});
  return {m.as_result(m.b.add("sub", {m.tensor(1, dtype), taken}))};
}

DType float_type(M& m) {
  const DType dtype = m.promoted({0, 1});
  return is_floating(dtype) ? dtype : m.result(0).dtype;
}
Ids div(M& m) {
  const DType dtype = float_type(m);
  return {m.as_result(m.b.add("div", {m.tensor(0, dtype), m.tensor(1, dtype)}))};
}
Ids div_mode(M& m) {
  const std::string mode = m.text(2, "");
  if (mode.empty()) return div(m);
  const DType dtype = m.promoted({0, 1});
  if (mode == "floor" && !is_floating(dtype)) return quotient<"floor_div">(m);
  if (!is_floating(dtype)) M::unmapped("truncating division of integers");
  const TensorId quotient = m.b.add("div", {m.tensor(0, dtype), m.tensor(1, dtype)});
  return {m.as_result(m.b.add(mode == "floor" ? "floor" : "trunc", {quotient}))};
}
Ids pow(M& m) {
  const DType dtype = m.promoted({0, 1});
  return {m.as_result(m.b.add("pow", {m.tensor(0, dtype), m.tensor(1, dtype)}))};
}
Ids where(M& m) {
  const DType dtype = m.promoted({1, 2});
  return {m.as_result(m.b.add("where", {m.tensor(0, DType::kBool), m.tensor(1, dtype), m.tensor(2, dtype)}))};
}
Ids masked_fill(M& m) {
  const DType dtype = m.result(0).dtype;
  return {m.as_result(m.b.add("where", {m.tensor(1, DType::kBool), m.tensor(2, dtype), m.tensor(0, dtype)}))};
}
Ids clamp(M& m) {
  const DType dtype = m.promoted({0, 1, 2});
  TensorId x = m.tensor(0, dtype);
  if (m.has(1)) x = m.b.add("maximum", {x, m.tensor(1, dtype)});
  if (m.has(2)) x = m.b.add("minimum", {x, m.tensor(2, dtype)});
  return {m.as_result(x)};
}

// x + value a b, x + value a / b
Ids add_product(M& m, std::string_view op) {
  const DType dtype = m.promoted({0, 1, 2});
  TensorId product = m.b.add(op, {m.tensor(1, dtype), m.tensor(2, dtype)});
  if (!is_one(m, 3)) product = m.b.add("mul", {product, m.tensor(3, dtype)});
  return {m.as_result(m.b.add("add", {m.tensor(0, dtype), product}))};
}
Ids addcmul(M& m) { return add_product(m, "mul"); }
Ids addcdiv(M& m) { return add_product(m, "div"); }
Ids lerp(M& m) {
  const DType dtype = m.promoted({0, 1});
  const TensorId from = m.tensor(0, dtype);
  const TensorId way = m.b.add("sub", {m.tensor(1, dtype), from});
  return {m.as_result(m.b.add("add", {from, m.b.add("mul", {way, m.tensor(2, dtype)})}))};
}

Ids gelu(M& m) { return {m.b.add(m.text(1, "none") == "tanh" ? "gelu_tanh" : "gelu", {m.tensor(0)})}; }
Ids gelu_backward(M& m) {
  return {m.b.add(m.text(2, "none") == "tanh" ? "gelu_tanh_backward" : "gelu_backward", {m.tensor(0), m.tensor(1)})};
}
template <OpName kOp>
Ids same_binary(M& m) {  // (gradient, x) of one dtype
  return {m.as_result(m.b.add(kOp.name(), {m.tensor(0), m.tensor(1, m.b.dtype(m.tensor(0)))}))};
}
Ids threshold_backward(M& m) {
  if (m.real(2) != 0) M::unmapped("a threshold other than 0");
  return {m.as_result(m.b.add("relu_backward", {m.tensor(0), m.tensor(1)}))};
}
Ids logical_not(M& m) { return {m.as_result(m.b.add("logical_not", {m.tensor(0)}))}; }
Ids bitwise_not(M& m) {
  const TensorId x = m.tensor(0);
  return {m.b.add(m.b.dtype(x) == DType::kBool ? "logical_not" : "bitwise_not", {x})};
}
Ids is_inf(M& m) {
  const TensorId x = m.b.add("abs", {m.tensor(0)});
  return {m.b.add("eq", {x, m.b.full(HUGE_VAL, m.b.dtype(x))})};
}
Ids identity(M& m) { return {m.as_result(m.tensor(0))}; }
Ids copy(M& m) { return {m.as_result(m.tensor(1))}; }
Ids fill(M& m) { return {m.as_result(m.tensor(1, m.result(0).dtype))}; }
Ids zeros(M& m) { return {m.b.full(0, m.result(0).dtype, m.result(0).shape)}; }
Ids ones(M& m) { return {m.b.full(1, m.result(0).dtype, m.result(0).shape)}; }
template <size_t kValue>
Ids full(M& m) {
  return {m.as_result(m.tensor(kValue, m.result(0).dtype))};
}
Ids arange(M& m, size_t start, size_t step) {
  AttrValue first = int64_t{0};
  AttrValue by = int64_t{1};
  const auto number = [&](size_t i) -> AttrValue {
    if (const auto* integer = std::get_if<int64_t>(&m.args()[i])) return *integer;
    return m.real(i);
  };
  if (start != SIZE_MAX) first = number(start);
  if (step != SIZE_MAX) by = number(step);
  return {m.b.add("iota", {},
                  {{"shape", m.result(0).shape},
                   {"dtype", m.result(0).dtype},
                   {"dim", int64_t{0}},
                   {"start", first},
                   {"step", by}})};
}
Ids arange_end(M& m) { return arange(m, SIZE_MAX, SIZE_MAX); }
Ids arange_start(M& m) { return arange(m, 0, SIZE_MAX); }
Ids arange_step(M& m) { return arange(m, 0, 2); }
Ids arange_start_out(M& m) { return arange(m, 0, 2); }

Ids native_dropout(M& m) {
  const double p = m.real(1);
  const TensorId x = m.tensor(0);
  if (!m.flag(2, true) || p == 0) return {x, m.b.full(1, DType::kBool, m.b.shape(x))};
  const TensorId draw = m.random("random_uniform", m.b.shape(x), DType::kF32);
  const TensorId keep = m.b.add("le", {m.b.full(p, DType::kF32), draw});
  const DType dtype = m.b.dtype(x);
  const TensorId scaled = m.b.add("mul", {x, m.b.full(p == 1 ? 0 : 1 / (1 - p), dtype)});
  return {m.b.add("where", {keep, scaled, m.b.full(0, dtype)}), keep};
}
Ids native_dropout_backward(M& m) {
  const DType dtype = m.b.dtype(m.tensor(0));
  const TensorId scaled = m.b.add("mul", {m.tensor(0), m.tensor(2, dtype)});
  return {m.b.add("where", {m.tensor(1, DType::kBool), scaled, m.b.full(0, dtype)})};
}
Ids bernoulli_p(M& m) {  // (self, p): 1 with probability p
  const TensorId draw = m.random("random_uniform", m.result(0).shape, DType::kF32);
  return {m.as_result(m.b.add("lt", {draw, m.tensor(1, DType::kF32)}))};
}
Ids rand(M& m) { return {m.random("random_uniform", m.result(0).shape, m.result(0).dtype)}; }
Ids randn(M& m) { return {m.random("random_normal", m.result(0).shape, m.result(0).dtype)}; }
Ids randint(M& m) {  // (high): whole numbers from 0 to below it
  constexpr int64_t kDrawn = int64_t{1} << 24;
  if (m.integer(0) > kDrawn) M::unmapped("more numbers than a draw has");
  const TensorId draw = m.random("random_uniform", m.result(0).shape, DType::kF32);
  const TensorId scaled = m.b.add("mul", {draw, m.b.full(static_cast<double>(m.integer(0)), DType::kF32)});
  return {m.b.cast(scaled, m.result(0).dtype)};
}
Ids normal(M& m) {  // (self, mean, std)
  const DType dtype = m.result(0).dtype;
  const TensorId draw = m.random("random_normal", m.result(0).shape, dtype);
  return {m.b.add("add", {m.b.add("mul", {draw, m.b.full(m.real(2, 1.0), dtype)}), m.b.full(m.real(1, 0.0), dtype)})};
}
Ids uniform(M& m) {  // (self, from, to)
  const DType dtype = m.result(0).dtype;
  const TensorId draw = m.random("random_uniform", m.result(0).shape, dtype);
  const double from = m.real(1, 0.0);
  const TensorId scaled = m.b.add("mul", {draw, m.b.full(m.real(2, 1.0) - from, dtype)});
  return {m.b.add("add", {scaled, m.b.full(from, dtype)})};
}

}  // namespace

std::vector<AtenRow> aten_pointwise_rows() {
  return {
      {"neg", unary<"neg">},
      {"abs", unary<"abs">},
      {"sign", unary<"sign">},
      {"sgn", unary<"sign">},
      {"reciprocal", unary<"reciprocal">},
      {"sqrt", unary<"sqrt">},
      {"rsqrt", unary<"rsqrt">},
      {"exp", unary<"exp">},
      {"expm1", unary<"expm1">},
      {"log", unary<"log">},
      {"log1p", unary<"log1p">},
      {"sin", unary<"sin">},
      {"cos", unary<"cos">},
      {"tan", unary<"tan">},
      {"tanh", unary<"tanh">},
      {"erf", unary<"erf">},
      {"floor", unary<"floor">},
      {"ceil", unary<"ceil">},
      {"round", unary<"round">},
      {"trunc", unary<"trunc">},
      {"isnan", unary<"is_nan">},
      {"isinf", is_inf},
      {"bitwise_not", bitwise_not},
      {"logical_not", logical_not},
      {"relu", unary<"relu">},
      {"sigmoid", unary<"sigmoid">},
      {"silu", unary<"silu">},
      {"gelu", gelu},
      {"add.Tensor", add},
      {"add.Scalar", add},
      {"sub.Tensor", sub},
      {"sub.Scalar", sub},
      {"rsub.Scalar", rsub},
      {"rsub.Tensor", rsub},
      {"mul.Tensor", binary<"mul">},
      {"mul.Scalar", binary<"mul">},
      {"div.Tensor", div},
      {"div.Scalar", div},
      {"div.Tensor_mode", div_mode},
      {"div.Scalar_mode", div_mode},
      {"floor_divide", quotient<"floor_div">},
      {"remainder.Tensor", quotient<"remainder">},
      {"remainder.Scalar", quotient<"remainder">},
      {"fmod.Tensor", quotient<"fmod">},
      {"fmod.Scalar", quotient<"fmod">},
      {"pow.Tensor_Tensor", pow},
      {"pow.Tensor_Scalar", pow},
      {"pow.Scalar", pow},
      {"atan2", binary<"atan2">},
      {"maximum", binary<"maximum">},
      {"minimum", binary<"minimum">},
      {"eq.Tensor", binary<"eq">},
      {"eq.Scalar", binary<"eq">},
      {"ne.Tensor", binary<"ne">},
      {"ne.Scalar", binary<"ne">},
      {"lt.Tensor", binary<"lt">},
      {"lt.Scalar", binary<"lt">},
      {"le.Tensor", binary<"le">},
      {"le.Scalar", binary<"le">},
      {"gt.Tensor", swapped<"lt">},
      {"gt.Scalar", swapped<"lt">},
      {"ge.Tensor", swapped<"le">},
      {"ge.Scalar", swapped<"le">},
      {"logical_and", logical<"logical_and">},
      {"logical_or", logical<"logical_or">},
      {"logical_xor", logical<"logical_xor">},
      {"bitwise_and.Tensor", binary<"bitwise_and">},
      {"bitwise_and.Scalar", binary<"bitwise_and">},
      {"bitwise_or.Tensor", binary<"bitwise_or">},
      {"bitwise_or.Scalar", binary<"bitwise_or">},
      {"bitwise_xor.Tensor", binary<"bitwise_xor">},
      {"bitwise_xor.Scalar", binary<"bitwise_xor">},
      {"where.self", where},
      {"where.ScalarSelf", where},
      {"where.ScalarOther", where},
      {"where.Scalar", where},
      {"masked_fill.Scalar", masked_fill},
      {"masked_fill.Tensor", masked_fill},
      {"clamp", clamp},
      {"clamp.Tensor", clamp},
      {"clamp_min", binary<"maximum">},
      {"clamp_min.Tensor", binary<"maximum">},
      {"clamp_min.Scalar", binary<"maximum">},
      {"clamp_max", binary<"minimum">},
      {"clamp_max.Tensor", binary<"minimum">},
      {"clamp_max.Scalar", binary<"minimum">},
      {"addcmul", addcmul},
      {"addcmul.Scalar", addcmul},
      {"addcdiv", addcdiv},
      {"addcdiv.Scalar", addcdiv},
      {"lerp.Scalar", lerp},
      {"lerp.Tensor", lerp},
      {"sigmoid_backward", same_binary<"sigmoid_backward">},
      {"tanh_backward", same_binary<"tanh_backward">},
      {"silu_backward", same_binary<"silu_backward">},
      {"gelu_backward", gelu_backward},
      {"threshold_backward", threshold_backward},
      {"clone", identity},
      {"contiguous", identity},
      {"_to_copy", identity},
      {"copy", copy},
      {"fill.Scalar", fill},
      {"fill.Tensor", fill},
      {"zero", zeros},
      {"empty.memory_format", zeros},
      {"empty_like", zeros},
      {"empty_strided", zeros},
      {"new_empty", zeros},
      {"new_empty_strided", zeros},
      {"zeros", zeros},
      {"zeros_like", zeros},
      {"new_zeros", zeros},
      {"ones", ones},
      {"ones_like", ones},
      {"new_ones", ones},
      {"full", full<1>},
      {"full_like", full<1>},
      {"new_full", full<2>},
      {"scalar_tensor", full<0>},
      {"arange", arange_end},
      {"arange.start", arange_start},
      {"arange.start_step", arange_step},
      {"arange.start_out", arange_start_out},
      {"native_dropout", native_dropout},
      {"native_dropout_backward", native_dropout_backward},
      {"bernoulli.float", bernoulli_p},
      {"bernoulli.p", bernoulli_p},
      {"rand", rand},
      {"rand_like", rand},
      {"randint", randint},
      {"randn", randn},
      {"randn_like", randn},
      {"normal", normal},
      {"uniform", uniform},
  };
}

}  // namespace stepc
