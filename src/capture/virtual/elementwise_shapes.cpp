// Elementwise operators that LibTorch does not describe as structured: their geometry is that of a TensorIterator over
// their arguments, so one is built, and only the element type is ours to say.
#include <ATen/ExpandUtils.h>
#include <ATen/Operators.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor elementwise(ScalarType dtype, std::initializer_list<Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).declare_static_dtype_and_device(dtype, at::kMeta);
  config.add_owned_output(Tensor());
  for (const Tensor& input : inputs) config.add_owned_const_input(input);
  return config.build().output();
}

ScalarType floating(ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::typeMetaToScalarType(c10::get_default_dtype()) : dtype;
}

// ---- one tensor

Tensor same(const Tensor& x) { return elementwise(x.scalar_type(), {x}); }
Tensor same_in_float(const Tensor& x) { return elementwise(floating(x.scalar_type()), {x}); }
Tensor to_bool(const Tensor& x) { return elementwise(at::kBool, {x}); }
Tensor magnitude(const Tensor& x) { return elementwise(c10::toRealValueType(x.scalar_type()), {x}); }
Tensor nan_to_num(const Tensor& x, std::optional<double>, std::optional<double>, std::optional<double>) {
  return same(x);
}
Tensor hardtanh(const Tensor& x, const Scalar&, const Scalar&) { return same(x); }
Tensor logit(const Tensor& x, std::optional<double>) { return same_in_float(x); }
Tensor bernoulli(const Tensor& x, std::optional<at::Generator>) { return dense(x.sizes(), x.scalar_type()); }
Tensor bernoulli_p(const Tensor& x, double, std::optional<at::Generator>) { return dense(x.sizes(), x.scalar_type()); }

// ---- a tensor and a number, which becomes a tensor without dimensions

Tensor with_number(const Tensor& x, const Scalar& number) {
  return elementwise(at::result_type(x, number), {x, dense({}, x.scalar_type())});
}
Tensor with_scaled_number(const Tensor& x, const Scalar& number, const Scalar&) { return with_number(x, number); }
Tensor divided_by_number(const Tensor& x, const Scalar& number) {
  return elementwise(floating(at::result_type(x, number)), {x, dense({}, x.scalar_type())});
}
Tensor divided_by_number_mode(const Tensor& x, const Scalar& number, std::optional<std::string_view> mode) {
  return mode.has_value() ? with_number(x, number) : divided_by_number(x, number);
}

// ---- two tensors and more

Tensor promoted(const Tensor& x, const Tensor& y) { return elementwise(at::result_type(x, y), {x, y}); }
Tensor promoted_scaled(const Tensor& x, const Tensor& y, const Scalar&) { return promoted(x, y); }
Tensor logical(const Tensor& x, const Tensor& y) { return elementwise(at::kBool, {x, y}); }
Tensor like_first(const Tensor& x, const Tensor& y) { return elementwise(x.scalar_type(), {x, y}); }
Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  return elementwise(at::result_type(x, y), {condition, x, y});
}
// A contiguous clone of the expanded tensor, filled in place.
Tensor masked_fill_number(const Tensor& x, const Tensor& mask, const Scalar&) {
  return dense(at::infer_size(x.sizes(), mask.sizes()), x.scalar_type());
}
Tensor masked_fill_tensor(const Tensor& x, const Tensor& mask, const Tensor&) { return masked_fill_number(x, mask, 0); }
Tensor complex_of(const Tensor& x, const Tensor& y) {
  return elementwise(c10::toComplexType(at::result_type(x, y)), {x, y});
}

// ---- activations with more than one result, and backward functions

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& x) {
  return {dense(x.sizes(), x.scalar_type()), dense(x.sizes(), x.scalar_type())};
}
Tensor log_sigmoid_backward(const Tensor& grad, const Tensor& x, const Tensor&) {
  return elementwise(x.scalar_type(), {x, grad});
}
Tensor hardtanh_backward(const Tensor& grad, const Tensor& x, const Scalar&, const Scalar&) {
  return elementwise(x.scalar_type(), {grad, x});
}
Tensor hardswish_backward(const Tensor& grad, const Tensor& x) { return elementwise(x.scalar_type(), {grad, x}); }
Tensor glu_backward(const Tensor&, const Tensor& x, int64_t) { return dense(x.sizes(), x.scalar_type()); }
std::tuple<Tensor, Tensor> prelu_backward(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).add_owned_output(Tensor()).add_owned_output(Tensor());
  for (const Tensor& input : {x, weight, grad}) config.add_owned_const_input(input);
  auto iterator = config.build();
  return {iterator.output(0), iterator.output(1)};
}
std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double, std::optional<bool>) {
  return {elementwise(x.scalar_type(), {x}), dense_like(x, at::kBool)};
}
Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double) {
  return elementwise(grad.scalar_type(), {grad, mask});
}

// ---- losses

Tensor reduced(const Tensor& loss, int64_t reduction) {
  return reduction == at::Reduction::None ? loss : dense({}, loss.scalar_type());
}
// Reduced into the memory of the losses.
Tensor binary_cross_entropy(const Tensor& x, const Tensor&, const OptionalTensor&, int64_t reduction) {
  const Tensor losses = dense_like(x);
  return reduction == at::Reduction::None ? losses : losses.as_strided({}, {});
}
Tensor binary_cross_entropy_backward(const Tensor&, const Tensor& x, const Tensor&, const OptionalTensor&, int64_t) {
  return dense_like(x);
}
Tensor cross_entropy_with_logits(const Tensor&, const Tensor& target, const OptionalTensor&, const OptionalTensor&,
                                 int64_t reduction) {
  return reduced(iterated(target), reduction);
}
Tensor huber_loss(const Tensor& x, const Tensor& target, int64_t reduction, double) {
  return reduced(promoted(x, target), reduction);
}
Tensor loss_backward(const Tensor&, const Tensor& x, const Tensor&, int64_t) {
  return dense(x.sizes(), x.scalar_type());
}
Tensor loss_backward_beta(const Tensor&, const Tensor& x, const Tensor&, int64_t, double) {
  return dense(x.sizes(), x.scalar_type());
}

}  // namespace

at::Tensor iterated(const at::Tensor& tensor) { return same(tensor); }

ShapeKernels elementwise_shapes() {
  return {
      shape_kernel<at::_ops::abs>(magnitude),
      shape_kernel<at::_ops::relu>(same),
      shape_kernel<at::_ops::hardswish>(same),
      shape_kernel<at::_ops::nan_to_num>(nan_to_num),
      shape_kernel<at::_ops::hardtanh>(hardtanh),
      shape_kernel<at::_ops::logit>(logit),
      shape_kernel<at::_ops::logical_not>(to_bool),
      shape_kernel<at::_ops::isnan>(to_bool),
      shape_kernel<at::_ops::isinf>(to_bool),
      shape_kernel<at::_ops::bernoulli>(bernoulli),
      shape_kernel<at::_ops::bernoulli_p>(bernoulli_p),
      shape_kernel<at::_ops::add_Scalar>(with_scaled_number),
      shape_kernel<at::_ops::sub_Scalar>(with_scaled_number),
      shape_kernel<at::_ops::rsub_Scalar>(with_scaled_number),
      shape_kernel<at::_ops::rsub_Tensor>(promoted_scaled),
      shape_kernel<at::_ops::mul_Scalar>(with_number),
      shape_kernel<at::_ops::div_Scalar>(divided_by_number),
      shape_kernel<at::_ops::div_Scalar_mode>(divided_by_number_mode),
      shape_kernel<at::_ops::remainder_Scalar>(with_number),
      shape_kernel<at::_ops::fmod_Scalar>(with_number),
      shape_kernel<at::_ops::bitwise_and_Scalar>(with_number),
      shape_kernel<at::_ops::bitwise_or_Scalar>(with_number),
      shape_kernel<at::_ops::floor_divide>(promoted),
      shape_kernel<at::_ops::logical_and>(logical),
      shape_kernel<at::_ops::logical_or>(logical),
      shape_kernel<at::_ops::logical_xor>(logical),
      shape_kernel<at::_ops::where_self>(where),
      shape_kernel<at::_ops::masked_fill_Scalar>(masked_fill_number),
      shape_kernel<at::_ops::masked_fill_Tensor>(masked_fill_tensor),
      shape_kernel<at::_ops::complex>(complex_of),
      shape_kernel<at::_ops::polar>(complex_of),
      shape_kernel<at::_ops::_prelu_kernel>(like_first),
      shape_kernel<at::_ops::_prelu_kernel_backward>(prelu_backward),
      shape_kernel<at::_ops::log_sigmoid_forward>(log_sigmoid_forward),
      shape_kernel<at::_ops::log_sigmoid_backward>(log_sigmoid_backward),
      shape_kernel<at::_ops::hardtanh_backward>(hardtanh_backward),
      shape_kernel<at::_ops::hardswish_backward>(hardswish_backward),
      shape_kernel<at::_ops::mish_backward>(hardswish_backward),
      shape_kernel<at::_ops::glu_backward>(glu_backward),
      shape_kernel<at::_ops::native_dropout>(native_dropout),
      shape_kernel<at::_ops::native_dropout_backward>(native_dropout_backward),
      shape_kernel<at::_ops::binary_cross_entropy>(binary_cross_entropy),
      shape_kernel<at::_ops::binary_cross_entropy_backward>(binary_cross_entropy_backward),
      shape_kernel<at::_ops::binary_cross_entropy_with_logits>(cross_entropy_with_logits),
      shape_kernel<at::_ops::huber_loss>(huber_loss),
      shape_kernel<at::_ops::mse_loss_backward>(loss_backward),
      shape_kernel<at::_ops::smooth_l1_loss_backward>(loss_backward_beta),
      shape_kernel<at::_ops::huber_loss_backward>(loss_backward_beta),
  };
}

}  // namespace stepc
