// Elementwise ops on ATen. bf16 and f16 compute in f32 inside ATen's kernels too.
#include <ATen/Functions.h>

#include "aten/constants.h"
#include "runtime/aten_ops/aten_ops.h"

namespace stepc::detail {

namespace {
using Tensors = std::vector<at::Tensor>;
using Types = std::vector<TensorType>;
using at::Tensor;

template <Tensor (*kFn)(const Tensor&)>
Tensors unary(const Tensors& x, const Attrs&, const Types&) {
  return {kFn(x[0])};
}
template <Tensor (*kFn)(const Tensor&, const Tensor&)>
Tensors binary(const Tensors& x, const Attrs&, const Types&) {
  return {kFn(x[0], x[1])};
}

// Wrappers for ATen functions with further arguments (alpha, rounding modes).
Tensor add(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kBool ? at::logical_or(a, b) : at::add(a, b);
}
Tensor sub(const Tensor& a, const Tensor& b) { return at::sub(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return at::div(a, b); }
Tensor floor_div(const Tensor& a, const Tensor& b) { return at::div(a, b, "floor"); }
Tensor square(const Tensor& a) { return at::mul(a, a); }
Tensor gelu(const Tensor& a) { return at::gelu(a, "none"); }
Tensor gelu_tanh(const Tensor& a) { return at::gelu(a, "tanh"); }
Tensor relu_backward(const Tensor& g, const Tensor& x) { return at::threshold_backward(g, x, 0); }
Tensor gelu_backward(const Tensor& g, const Tensor& x) { return at::gelu_backward(g, x, "none"); }
Tensor gelu_tanh_backward(const Tensor& g, const Tensor& x) { return at::gelu_backward(g, x, "tanh"); }

Tensors where(const Tensors& x, const Attrs&, const Types&) { return {at::where(x[0], x[1], x[2])}; }
Tensors cast(const Tensors& x, const Attrs& attrs, const Types&) {
  return {x[0].to(scalar_type_of(attrs.get<DType>("dtype")))};
}
}  // namespace

const AtenOps& elementwise_aten_ops() {
  static const AtenOps kOps = {
      {"neg", unary<at::neg>},
      {"abs", unary<at::abs>},
      {"sign", unary<at::sign>},
      {"square", unary<square>},
      {"reciprocal", unary<at::reciprocal>},
      {"sqrt", unary<at::sqrt>},
      {"rsqrt", unary<at::rsqrt>},
      {"exp", unary<at::exp>},
      {"expm1", unary<at::expm1>},
      {"log", unary<at::log>},
      {"log1p", unary<at::log1p>},
      {"sin", unary<at::sin>},
      {"cos", unary<at::cos>},
      {"tan", unary<at::tan>},
      {"tanh", unary<at::tanh>},
      {"erf", unary<at::erf>},
      {"floor", unary<at::floor>},
      {"ceil", unary<at::ceil>},
      {"round", unary<at::round>},
      {"trunc", unary<at::trunc>},
      {"is_nan", unary<at::isnan>},
      {"logical_not", unary<at::logical_not>},
      {"bitwise_not", unary<at::bitwise_not>},
      {"relu", unary<at::relu>},
      {"sigmoid", unary<at::sigmoid>},
      {"silu", unary<at::silu>},
      {"gelu", unary<gelu>},
      {"gelu_tanh", unary<gelu_tanh>},
      {"cast", cast},
      {"add", binary<add>},
      {"sub", binary<sub>},
      {"mul", binary<at::mul>},
      {"div", binary<div>},
      {"floor_div", binary<floor_div>},
      {"remainder", binary<at::remainder>},
      {"fmod", binary<at::fmod>},
      {"pow", binary<at::pow>},
      {"atan2", binary<at::atan2>},
      {"maximum", binary<at::maximum>},
      {"minimum", binary<at::minimum>},
      {"eq", binary<at::eq>},
      {"ne", binary<at::ne>},
      {"lt", binary<at::lt>},
      {"le", binary<at::le>},
      {"logical_and", binary<at::logical_and>},
      {"logical_or", binary<at::logical_or>},
      {"logical_xor", binary<at::logical_xor>},
      {"bitwise_and", binary<at::bitwise_and>},
      {"bitwise_or", binary<at::bitwise_or>},
      {"bitwise_xor", binary<at::bitwise_xor>},
      {"where", where},
      {"relu_backward", binary<relu_backward>},
      {"sigmoid_backward", binary<at::sigmoid_backward>},
      {"tanh_backward", binary<at::tanh_backward>},
      {"silu_backward", binary<at::silu_backward>},
      {"gelu_backward", binary<gelu_backward>},
      {"gelu_tanh_backward", binary<gelu_tanh_backward>},
  };
  return kOps;
}

}  // namespace stepc::detail
