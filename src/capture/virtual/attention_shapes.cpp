// The CPU flash attention kernel, the three of CUDA, and oneDNN's recurrent layer, backward (its forward has a
// workspace of a size that only oneDNN knows, so that is rehearsed). Attention works on (batch, seq, heads, dim) and
// hands its results out transposed.
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

// ---- CUDA's. The state of a generator is two numbers of 8 bytes; int64 stands for uint64.

Tensor sums_of_rows(const Tensor& q, std::vector<int64_t> behind) {
  behind.insert(behind.begin(), {q.size(0), q.size(1)});
  return dense(behind, at::kFloat);
}
using Nine = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Nine cuda_flash(const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool, std::optional<double>) {
  return {dense_like(q),        sums_of_rows(q, {q.size(2)}), {}, {}, q.size(2), k.size(2), dense({2}, at::kLong),
          dense({}, at::kLong), dense({0}, q.scalar_type())};
}
Nine cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor&, bool, double, bool, bool,
           std::optional<double>) {
  const Tensor out = q.size(3) == v.size(3) ? dense_like(q) : heads_inside(q, v.size(3));
  return {
      out, sums_of_rows(q, {q.size(2), 1}), {}, {}, q.size(2), k.size(2), dense({}, at::kLong), dense({}, at::kLong),
      {}};
}
std::tuple<Tensor, Tensor, Tensor> cuda_flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                                       const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                       c10::SymInt, c10::SymInt, double, bool, const Tensor&,
                                                       const Tensor&, std::optional<double>) {
  return {dense_like(q), dense_like(k), dense_like(v)};
}
std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                                  double, bool, std::optional<double>) {
  return {dense_like(q), dense_like(k), dense_like(v)};
}

// Its sums of rows are for whole blocks of 32 queries.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor&, const Tensor& v,
                                                     const OptionalTensor&, bool sums, double, bool,
                                                     std::optional<double>) {
  constexpr int64_t kBlock = 32;
  const int64_t queries = sums ? (q.size(2) + kBlock - 1) / kBlock * kBlock : 0;
  return {heads_inside(q, v.size(3)), sums_of_rows(q, {queries}), dense({}, at::kLong), dense({}, at::kLong)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor&, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& bias, const Tensor&,
                                                              const Tensor&, const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4> mask, bool, std::optional<double>) {
  return {heads_inside(q, q.size(3)), heads_inside(k, k.size(3)), heads_inside(v, v.size(3)),
          mask[3] && bias.defined() ? dense(bias.sizes(), bias.scalar_type()) : Tensor()};
}

// ----

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
      shape_kernel<at::_ops::_scaled_dot_product_flash_attention>(cuda_flash),
      shape_kernel<at::_ops::_scaled_dot_product_flash_attention_backward>(cuda_flash_backward),
      shape_kernel<at::_ops::_scaled_dot_product_cudnn_attention>(cudnn),
      shape_kernel<at::_ops::_scaled_dot_product_cudnn_attention_backward>(cudnn_backward),
      shape_kernel<at::_ops::_scaled_dot_product_efficient_attention>(efficient),
      shape_kernel<at::_ops::_scaled_dot_product_efficient_attention_backward>(efficient_backward),
      shape_kernel<at::_ops::mkldnn_rnn_layer_backward>(rnn_backward),
  };
}

}  // namespace stepc
