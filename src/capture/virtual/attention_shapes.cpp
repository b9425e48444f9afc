// The CPU flash attention kernel and oneDNN's recurrent layer, backward (its forward has a workspace of a size that
// only oneDNN knows, so that is rehearsed). Attention works on (batch, seq, heads, dim) and hands its results out
// transposed.
#include <ATen/Operators.h>

#include "capture/virtual/shape_kernels.h"

namespace stepc {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// (batch, heads, seq, dim) on memory of (batch, seq, heads, dim).
Tensor heads_inside(const Tensor& q, int64_t dim) {
  return dense({q.size(0), q.size(2), q.size(1), dim}, q.scalar_type()).transpose(1, 2);
}

std::tuple<Tensor, Tensor> flash(const Tensor& q, const Tensor&, const Tensor&, double, bool, const OptionalTensor&,
                                 std::optional<double>) {
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {dense_like(q), dense({q.size(0), q.size(2), q.size(1)}, type).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor&, const Tensor&, double, bool, const OptionalTensor&,
                                                  std::optional<double>) {
  return {heads_inside(q, q.size(3)), heads_inside(k, k.size(3)), heads_inside(v, v.size(3))};
}

// oneDNN accumulates gradients in float32 whatever the layer's element type.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> rnn_backward(
    const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& w4, const Tensor& hx,
    const Tensor& cx, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, bool, int64_t, int64_t, int64_t, bool, bool, bool, at::IntArrayRef, bool, const Tensor&) {
  const auto gradient = [](const Tensor& of) { return dense(of.sizes(), at::kFloat); };
  return {gradient(x), gradient(w1), gradient(w2), gradient(w3), gradient(w4), gradient(hx), gradient(cx)};
}

}  // namespace

ShapeKernels attention_shapes() {
  return {
      shape_kernel<at::_ops::_scaled_dot_product_flash_attention_for_cpu>(flash),
      shape_kernel<at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward>(flash_backward),
      shape_kernel<at::_ops::mkldnn_rnn_layer_backward>(rnn_backward),
  };
}

}  // namespace stepc
