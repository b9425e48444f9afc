// Normalisation, forward and backward, as the CPU kernels allocate their results: mixed precision keeps the statistics
// in the parameters' float32.
#include <ATen/EmptyTensor.h>
#include <ATen/Operators.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

bool has(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// The element type of the statistics of `x` under parameters of another type.
ScalarType statistics_type(const Tensor& x, const OptionalTensor& parameter) {
  const bool low = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return low && has(parameter) && parameter->scalar_type() == at::kFloat ? at::kFloat : x.scalar_type();
}

Tensor if_asked(bool asked, const Tensor& tensor) { return asked ? tensor : Tensor(); }

// ---- layer norm

Three layer_norm(const Tensor& x, c10::SymIntArrayRef shape, const OptionalTensor& weight, const OptionalTensor& bias,
                 double) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const ScalarType type = statistics_type(x, has(weight) ? weight : bias);
  return {dense(x.sizes(), x.scalar_type()), dense(sizes, type), dense(sizes, type)};
}

Three layer_norm_backward(const Tensor&, const Tensor& x, c10::SymIntArrayRef, const Tensor&, const Tensor&,
                          const OptionalTensor& weight, const OptionalTensor& bias, std::array<bool, 3> mask) {
  // A gradient for a missing weight is asked for by nobody.
  return {if_asked(mask[0], dense(x.sizes(), x.scalar_type())),
          mask[1] && has(weight) ? dense(weight->sizes(), weight->scalar_type()) : Tensor(),
          mask[2] && has(bias) ? dense(bias->sizes(), bias->scalar_type()) : Tensor()};
}

// ---- CUDA's root mean square norm

using Two = std::tuple<Tensor, Tensor>;

Two rms_norm(const Tensor& x, at::IntArrayRef shape, const OptionalTensor&, std::optional<double>) {
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const bool wide = x.scalar_type() == at::kDouble;
  return {dense(x.sizes(), x.scalar_type()), dense(sizes, wide ? at::kDouble : at::kFloat)};
}

Two rms_norm_backward(const Tensor&, const Tensor& x, at::IntArrayRef, const Tensor&, const OptionalTensor& weight,
                      std::array<bool, 2> mask) {
  return {if_asked(mask[0], dense(x.sizes(), x.scalar_type())),
          mask[1] && has(weight) ? dense(weight->sizes(), weight->scalar_type()) : Tensor()};
}

// ---- group norm

Three group_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, c10::SymInt n, c10::SymInt,
                 c10::SymInt, int64_t groups, double) {
  const ScalarType type = statistics_type(x, has(weight) ? weight : bias);
  const std::vector<int64_t> sizes = {n.expect_int(), groups};
  return {suggested_like(x, x.scalar_type()), dense(sizes, type), dense(sizes, type)};
}

Three group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&, const OptionalTensor& weight,
                          c10::SymInt, c10::SymInt channels, c10::SymInt, int64_t, std::array<bool, 3> mask) {
  const ScalarType type = has(weight) ? weight->scalar_type() : x.scalar_type();
  const std::vector<int64_t> sizes = {channels.expect_int()};
  return {if_asked(mask[0], suggested_like(x, x.scalar_type())), if_asked(mask[1], dense(sizes, type)),
          if_asked(mask[2], dense(sizes, type))};
}

// ---- batch norm

// The kernel for contiguous tensors prefers the plain format where a tensor is contiguous in two (no pixels, one
// channel), the other kernel what the strides suggest.
Tensor normalised(const Tensor& x, bool contiguous_kernel) {
  const bool plain = contiguous_kernel && x.is_contiguous();
  return plain ? dense(x.sizes(), x.scalar_type()) : suggested_like(x, x.scalar_type());
}

bool is_contiguous_or_missing(const OptionalTensor& parameter) { return !has(parameter) || parameter->is_contiguous(); }

Three batch_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& mean,
                 const OptionalTensor& variance, bool training, double, double) {
  const OptionalTensor& parameter = has(weight) ? weight : has(bias) ? bias : mean;
  const ScalarType type = statistics_type(x, parameter);
  const std::vector<int64_t> sizes = {training ? x.size(1) : 0};
  const bool contiguous_kernel = is_contiguous_or_missing(weight) && is_contiguous_or_missing(bias) &&
                                 is_contiguous_or_missing(mean) && is_contiguous_or_missing(variance);
  return {normalised(x, contiguous_kernel), dense(sizes, type), dense(sizes, type)};
}

Three batch_norm_backward(const Tensor& grad, const Tensor& x, const OptionalTensor& weight, const OptionalTensor& mean,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, double,
                          std::array<bool, 3> mask) {
  const ScalarType type = statistics_type(x, has(weight) ? weight : mean);
  const std::vector<int64_t> sizes = {x.size(1)};
  const bool same_format = x.suggest_memory_format() == grad.suggest_memory_format();
  return {if_asked(mask[0], normalised(x, same_format && grad.is_contiguous())), if_asked(mask[1], dense(sizes, type)),
          if_asked(mask[2], dense(sizes, type))};
}

// ---- weight norm

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, int64_t) {
  const ScalarType type = v.scalar_type() == at::kBFloat16 ? at::kFloat : g.scalar_type();
  return {dense(v.sizes(), v.scalar_type()), at::detail::empty_strided_meta(g.sizes(), g.strides(), type)};
}

std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor&, const Tensor& v, const Tensor& g, const Tensor&,
                                                int64_t) {
  return {dense(v.sizes(), v.scalar_type()), dense(g.sizes(), g.scalar_type())};
}

}  // namespace

ShapeKernels norm_shapes() {
  return {
      shape_kernel<at::_ops::native_layer_norm>(layer_norm),
      shape_kernel<at::_ops::native_layer_norm_backward>(layer_norm_backward),
      shape_kernel<at::_ops::_fused_rms_norm>(rms_norm),
      shape_kernel<at::_ops::_fused_rms_norm_backward>(rms_norm_backward),
      shape_kernel<at::_ops::native_group_norm>(group_norm),
      shape_kernel<at::_ops::native_group_norm_backward>(group_norm_backward),
      shape_kernel<at::_ops::native_batch_norm>(batch_norm),
      shape_kernel<at::_ops::native_batch_norm_backward>(batch_norm_backward),
      shape_kernel<at::_ops::_weight_norm_interface>(weight_norm),
      shape_kernel<at::_ops::_weight_norm_interface_backward>(weight_norm_backward),
  };
}

}  // namespace stepc
