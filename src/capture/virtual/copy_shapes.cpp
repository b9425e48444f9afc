// Copies, joins and the backward functions of views: operators that move elements about.
#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalFormat = std::optional<c10::MemoryFormat>;

std::vector<int64_t> numbers(c10::SymIntArrayRef values) { return C10_AS_INTARRAYREF_SLOW(values).vec(); }

Tensor in_format(const Tensor& x, ScalarType dtype, OptionalFormat format) {
  if (format.value_or(c10::MemoryFormat::Preserve) == c10::MemoryFormat::Preserve) return dense_like(x, dtype);
  return dense(x.sizes(), dtype, *format);
}

Tensor clone(const Tensor& x, OptionalFormat format) { return in_format(x, x.scalar_type(), format); }

Tensor to_copy(const Tensor& x, std::optional<ScalarType> dtype, std::optional<c10::Layout>, std::optional<c10::Device>,
               std::optional<bool>, bool, OptionalFormat format) {
  return in_format(x, dtype.value_or(x.scalar_type()), format);
}

Tensor stack(at::TensorList tensors, int64_t dim) {
  ScalarType dtype = tensors[0].scalar_type();
  for (const Tensor& tensor : tensors) dtype = c10::promoteTypes(dtype, tensor.scalar_type());
  std::vector<int64_t> sizes = tensors[0].sizes().vec();
  dim = at::maybe_wrap_dim(dim, tensors[0].dim() + 1);
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(tensors.size()));
  return dense(sizes, dtype);
}

Tensor repeat(const Tensor& x, c10::SymIntArrayRef repeats) {
  std::vector<int64_t> sizes = numbers(repeats);
  const size_t lead = sizes.size() - static_cast<size_t>(x.dim());
  for (size_t i = lead; i < sizes.size(); ++i) sizes[i] *= x.size(static_cast<int64_t>(i - lead));
  return dense(sizes, x.scalar_type());
}

// A cat of two slices; without dimensions of the flattened tensor.
Tensor roll(const Tensor& x, c10::SymIntArrayRef, at::IntArrayRef dims) {
  return dims.empty() ? dense(x.sizes(), x.scalar_type()) : suggested_like(x, x.scalar_type());
}

Tensor flip(const Tensor& x, at::IntArrayRef) { return dense_like(x); }

Tensor constant_pad(const Tensor& x, c10::SymIntArrayRef padding, const Scalar&) {
  const std::vector<int64_t> pad = numbers(padding);
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t i = 0; i < pad.size() / 2; ++i) sizes[sizes.size() - 1 - i] += pad[2 * i] + pad[2 * i + 1];
  const bool none = std::all_of(pad.begin(), pad.end(), [](int64_t amount) { return amount <= 0; });
  return none ? dense_like(at::detail::empty_strided_meta(sizes, x.strides(), x.scalar_type()))
              : dense(sizes, x.scalar_type(), x.suggest_memory_format());
}

Tensor pixel_shuffle(const Tensor& x, int64_t factor) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t n = sizes.size();
  sizes[n - 3] /= factor * factor;
  sizes[n - 2] *= factor;
  sizes[n - 1] *= factor;
  return dense(sizes, x.scalar_type(), x.suggest_memory_format());
}
Tensor pixel_unshuffle(const Tensor& x, int64_t factor) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t n = sizes.size();
  sizes[n - 3] *= factor * factor;
  sizes[n - 2] /= factor;
  sizes[n - 1] /= factor;
  return dense(sizes, x.scalar_type(), x.suggest_memory_format());
}

// ---- the whole tensor again, zero outside the view

Tensor zeros_around(const Tensor& grad, c10::SymIntArrayRef sizes) { return dense(numbers(sizes), grad.scalar_type()); }
Tensor select_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t, c10::SymInt) {
  return zeros_around(grad, sizes);
}
Tensor slice_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t, c10::SymInt, c10::SymInt, c10::SymInt) {
  return zeros_around(grad, sizes);
}
Tensor unfold_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t, int64_t, int64_t) {
  return zeros_around(grad, sizes);
}
Tensor diagonal_backward(const Tensor& grad, c10::SymIntArrayRef sizes, int64_t, int64_t, int64_t) {
  return zeros_around(grad, sizes);
}
Tensor select_scatter(const Tensor& x, const Tensor&, int64_t, c10::SymInt) { return dense_like(x); }
Tensor slice_scatter(const Tensor& x, const Tensor&, int64_t, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
                     c10::SymInt) {
  return dense_like(x);
}

}  // namespace

ShapeKernels copy_shapes() {
  return {
      shape_kernel<at::_ops::clone>(clone),
      shape_kernel<at::_ops::_to_copy>(to_copy),
      shape_kernel<at::_ops::stack>(stack),
      shape_kernel<at::_ops::repeat>(repeat),
      shape_kernel<at::_ops::roll>(roll),
      shape_kernel<at::_ops::flip>(flip),
      shape_kernel<at::_ops::constant_pad_nd>(constant_pad),
      shape_kernel<at::_ops::pixel_shuffle>(pixel_shuffle),
      shape_kernel<at::_ops::pixel_unshuffle>(pixel_unshuffle),
      shape_kernel<at::_ops::select_backward>(select_backward),
      shape_kernel<at::_ops::slice_backward>(slice_backward),
      shape_kernel<at::_ops::unfold_backward>(unfold_backward),
      shape_kernel<at::_ops::diagonal_backward>(diagonal_backward),
      shape_kernel<at::_ops::select_scatter>(select_scatter),
      shape_kernel<at::_ops::slice_scatter>(slice_scatter),
  };
}

}  // namespace stepc
