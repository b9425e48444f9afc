// ATen map: softmax, normalisation, attention and losses, backward passes included.
#include <cmath>

#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

template <bool kLog>
Ids softmax(M& m) {  // (x, dim, half_to_float)
  const TensorId x = m.tensor(0, m.result(0).dtype);
  if (m.b.shape(x).empty()) M::unmapped("softmax of a 0-dim tensor");
  return {m.b.add(kLog ? "log_softmax" : "softmax", {x}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}
template <bool kLog>
Ids softmax_backward(M& m) {  // (gradient, output, dim, input dtype)
  const TensorId gradient = m.tensor(0);
  const TensorId out =
      m.b.add(kLog ? "log_softmax_backward" : "softmax_backward", {gradient, m.tensor(1, m.b.dtype(gradient))},
              {{"dim", M::dim(m.integer(2), m.b.shape(gradient).size())}});
  return {m.as_result(out)};
}
Ids safe_softmax(M& m) {  // (x, dim, dtype): 0 where every score is minus infinity
  const TensorId x = m.tensor(0, m.result(0).dtype);
  const int64_t dim = M::dim(m.integer(1), m.b.shape(x).size());
  const TensorId top = m.b.add("max", {x}, {{"dims", Shape{dim}}, {"keepdim", true}});
  const TensorId empty = m.b.add("eq", {top, m.b.full(-HUGE_VAL, m.b.dtype(x))});
  const TensorId weights = m.b.add("softmax", {x}, {{"dim", dim}});
  return {m.b.add("where", {empty, m.b.full(0, m.b.dtype(x)), weights})};
}

TensorId weight_or(M& m, size_t argument, double otherwise, DType dtype, const Shape& shape) {
  if (!m.has(argument)) return m.b.full(otherwise, dtype, shape);
  return m.b.reshape(m.tensor(argument, dtype), shape);
}
Ids native_layer_norm(M& m) {  // (x, shape, weight, bias, eps)
  const TensorId x = m.tensor(0);
  const Shape shape = m.ints(1);
  const DType dtype = m.b.dtype(x);
  const Ids out = m.b.add_all("layer_norm", {x, weight_or(m, 2, 1, dtype, shape), weight_or(m, 3, 0, dtype, shape)},
                              {{"dims", static_cast<int64_t>(shape.size())}, {"eps", m.real(4)}});
  return {out[0], m.b.cast(out[1], m.result(1).dtype), m.b.cast(out[2], m.result(2).dtype)};
}
Ids native_layer_norm_backward(M& m) {  // (gradient, x, shape, mean, rstd, weight, bias, mask)
  const TensorId x = m.tensor(1);
  const Shape shape = m.ints(2);
  const DType dtype = m.b.dtype(x);
  const DType wide = dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
  const Ids all =
      m.b.add_all("layer_norm_backward",
                  {m.tensor(0, dtype), x, m.tensor(3, wide), m.tensor(4, wide), weight_or(m, 5, 1, dtype, shape)},
                  {{"dims", static_cast<int64_t>(shape.size())}});
  const auto* mask = std::get_if<std::vector<bool>>(&m.args()[7]);
  if (mask == nullptr) M::unmapped("no mask of gradients");
  Ids out;
  for (size_t i = 0; i < 3; ++i)
    if ((*mask)[i] && out.size() < m.result_count()) out.push_back(m.b.cast(all[i], m.result(out.size()).dtype));
  return out;
}

// The last dimensions of `shape`, as many as `of` has.
Attrs last_dims(const Shape& shape, const Shape& of) {
  Shape dims;
  for (size_t d = shape.size() - of.size(); d < shape.size(); ++d) dims.push_back(static_cast<int64_t>(d));
  return {{"dims", dims}, {"keepdim", true}};
}
Ids rms_norm(M& m) {  // (x, shape, weight, eps) -> result, rstd; by parts, which are fused again
  const DType wide = m.result(1).dtype;
  const TensorId x = m.tensor(0, wide);
  const double eps = m.real(3, m.b.dtype(m.tensor(0)) == DType::kF64 ? 0x1p-52 : 0x1p-23);
  const TensorId square = m.b.add("mean", {m.b.add("square", {x})}, last_dims(m.b.shape(x), m.ints(1)));
  const TensorId rstd = m.b.add("rsqrt", {m.b.add("add", {square, m.b.full(eps, wide)})});
  TensorId out = m.b.add("mul", {x, rstd});
  if (m.has(2)) out = m.b.add("mul", {out, m.tensor(2, wide)});
  return {m.b.cast(out, m.result(0).dtype), rstd};
}
Ids rms_norm_backward(M& m) {  // (gradient, x, shape, rstd, weight, mask)
  const auto* wanted = std::get_if<std::vector<bool>>(&m.args()[5]);
  if (wanted == nullptr) M::unmapped("no mask of gradients");
  const TensorId rstd = m.tensor(3);
  const DType wide = m.b.dtype(rstd);
  const TensorId gradient = m.tensor(0, wide);
  const TensorId normed = m.b.add("mul", {m.tensor(1, wide), rstd});
  Ids out;
  if ((*wanted)[0]) {
    const TensorId scaled = m.has(4) ? m.b.add("mul", {gradient, m.tensor(4, wide)}) : gradient;
    const TensorId along = m.b.add("mean", {m.b.add("mul", {scaled, normed})}, last_dims(m.b.shape(normed), m.ints(2)));
    const TensorId across = m.b.add("sub", {scaled, m.b.add("mul", {normed, along})});
    out.push_back(m.b.cast(m.b.add("mul", {across, rstd}), m.result(0).dtype));
  }
  if ((*wanted)[1] && m.has(4)) {
    Shape rows;
    for (size_t d = 0; d + m.ints(2).size() < m.b.shape(normed).size(); ++d) rows.push_back(static_cast<int64_t>(d));
    out.push_back(m.b.cast(m.b.sum(m.b.add("mul", {gradient, normed}), rows), m.result(out.size()).dtype));
  }
  return out;
}

double default_scale(M& m, TensorId q) { return 1 / std::sqrt(static_cast<double>(m.b.shape(q).back())); }

// Where a kernel for attention has its arguments. All begin with q, k, v, and backward with the gradient before them;
// behind result and sums stand states of generators, which are not used without dropout.
constexpr size_t kNowhere = SIZE_MAX;
struct AttentionPlaces {
  size_t dropout, causal, mask, scale;
  size_t result = kNowhere;            // backward: and its sums right behind it
  size_t wanted_gradients = kNowhere;  // backward: which, the mask's last
};
constexpr AttentionPlaces kCpuAttention{3, 4, 5, 6}, kCpuAttentionBackward{6, 7, 8, 9, 4};
constexpr AttentionPlaces kFlash{3, 4, kNowhere, 6}, kFlashBackward{10, 11, kNowhere, 14, 4};
constexpr AttentionPlaces kCudnn{5, 6, 3, 8}, kCudnnBackward{13, 14, 8, 15, 4};
constexpr AttentionPlaces kEfficient{5, 6, 3, 7}, kEfficientBackward{9, 11, 4, 12, 5, 10};

template <AttentionPlaces at>
Ids attention(M& m) {
  if (m.real(at.dropout, 0.0) != 0) M::unmapped("attention with dropout");
  const TensorId q = m.tensor(0);
  Ids operands = {q, m.tensor(1), m.tensor(2)};
  if (at.mask != kNowhere && m.has(at.mask)) operands.push_back(m.tensor(at.mask));
  Ids out = m.b.add_all("attention", operands,
                        {{"scale", m.real(at.scale, default_scale(m, q))}, {"causal", m.flag(at.causal, false)}});
  const Shape sums = m.b.shape(out[1]);  // (batch, heads, queries); a kernel may give them more queries, or a dimension
  const Shape wanted = m.result(1).shape;
  if (element_count(wanted) == 0)
    out[1] = m.b.full(0, m.result(1).dtype, wanted);
  else if (wanted.size() == sums.size() && wanted != sums)
    out[1] = m.b.add("pad", {out[1]}, {{"low", Shape(3, 0)}, {"high", Shape{0, 0, wanted[2] - sums[2]}}});
  else
    out[1] = m.b.reshape(out[1], wanted);
  out[1] = m.b.cast(out[1], m.result(1).dtype);
  for (size_t k = 2; k < m.result_count(); ++k) out.push_back(m.b.full(0, m.result(k).dtype, m.result(k).shape));
  return out;
}
template <AttentionPlaces at>
Ids attention_backward(M& m) {
  if (m.real(at.dropout) != 0) M::unmapped("attention with dropout");
  if (at.wanted_gradients != kNowhere) {
    const auto* wanted = std::get_if<std::vector<bool>>(&m.args()[at.wanted_gradients]);
    if (wanted == nullptr || *wanted != std::vector<bool>{true, true, true, false})
      M::unmapped("the gradient of attention's mask");
  }
  const TensorId q = m.tensor(1);
  Shape rows = m.b.shape(q);
  rows.pop_back();
  TensorId sums = m.tensor(at.result + 1);
  if (m.b.shape(sums).size() == rows.size())
    sums = m.b.shape(sums) == rows ? sums : m.b.slice(sums, Shape(3, 0), rows, Shape(3, 1));
  else
    sums = m.b.reshape(sums, rows);
  Ids operands = {m.tensor(0), q, m.tensor(2), m.tensor(3), m.tensor(at.result), sums};
  if (at.mask != kNowhere && m.has(at.mask)) operands.push_back(m.tensor(at.mask));
  return m.b.add_all("attention_backward", operands,
                     {{"scale", m.real(at.scale, default_scale(m, q))}, {"causal", m.flag(at.causal)}});
}

// Log-probabilities are of one row, of rows, or of an image (nll_loss2d), whose classes are dimension 1.
TensorId rows_of_classes(M& m, TensorId logp) {
  const Shape shape = m.b.shape(logp);
  if (shape.size() == 2) return logp;
  if (shape.size() == 1) return m.b.reshape(logp, {1, shape[0]});
  return m.b.reshape(m.b.transpose(logp, {0, 2, 3, 1}), {shape[0] * shape[2] * shape[3], shape[1]});
}
// Back to log-probabilities of `shape`.
TensorId from_rows_of_classes(M& m, TensorId rows, const Shape& shape) {
  if (shape.size() != 4) return m.b.reshape(rows, shape);
  return m.b.transpose(m.b.reshape(rows, {shape[0], shape[2], shape[3], shape[1]}), {0, 3, 1, 2});
}

// Reduction of ATen's losses: 0 none, 1 mean, 2 sum.
Ids nll_loss_forward(M& m) {  // (logp, target, weight, reduction, ignored) -> loss, total weight
  if (m.has(2)) M::unmapped("class weights");
  const TensorId logp = rows_of_classes(m, m.tensor(0));
  const TensorId target = m.b.reshape(m.tensor(1), {m.b.shape(logp)[0]});
  const Ids rows = m.b.add_all("nll_loss", {logp, target}, {{"ignore_index", m.integer(4)}});
  const DType dtype = m.b.dtype(logp);
  const TensorId count = m.b.sum(m.b.cast(rows[1], dtype), {0});
  if (m.integer(3) == 0) return {m.b.reshape(rows[0], m.result(0).shape), m.as_result(m.b.full(0, dtype), 1)};
  TensorId loss = m.b.sum(rows[0], {0});
  if (m.integer(3) == 1) loss = m.b.add("div", {loss, count});
  return {loss, m.as_result(count, 1)};
}
Ids nll_loss_backward(M& m) {  // (gradient, logp, target, weight, reduction, ignored, total weight)
  if (m.has(3)) M::unmapped("class weights");
  const Shape shape = m.b.shape(m.tensor(1));
  const Shape targets = m.b.shape(m.tensor(2));
  const Shape rows = {element_count(targets)};
  TensorId gradient = m.tensor(0);
  if (m.integer(4) == 1) gradient = m.b.add("div", {gradient, m.tensor(6, m.b.dtype(gradient))});
  gradient = m.b.reshape(m.b.expand(gradient, targets), rows);
  const Attrs attrs = {{"ignore_index", m.integer(5)}, {"classes", shape[shape.size() == 1 ? 0 : 1]}};
  const TensorId made = m.b.add("nll_loss_backward", {gradient, m.b.reshape(m.tensor(2), rows)}, attrs);
  return {from_rows_of_classes(m, made, shape)};
}
Ids mse_loss(M& m) {  // (x, target, reduction)
  const TensorId squares = m.b.add("square", {m.b.add("sub", {m.tensor(0), m.tensor(1)})});
  Shape dims;
  for (size_t d = 0; d < m.b.shape(squares).size(); ++d) dims.push_back(static_cast<int64_t>(d));
  const int64_t reduction = m.integer(2, 1);
  if (reduction == 0) return {squares};
  return {m.b.add(reduction == 1 ? "mean" : "sum", {squares}, {{"dims", dims}})};
}
Ids mse_loss_backward(M& m) {  // (gradient, x, target, reduction)
  const TensorId difference = m.b.add("sub", {m.tensor(1), m.tensor(2)});
  const double count = m.integer(3) == 1 ? static_cast<double>(element_count(m.b.shape(difference))) : 1;
  const TensorId slope = m.b.add("mul", {difference, m.b.full(2 / count, m.b.dtype(difference))});
  return {m.b.add("mul", {slope, m.tensor(0)})};
}

}  // namespace

std::vector<AtenRow> aten_neural_rows() {
  return {
      {"_softmax", softmax<false>},
      {"_log_softmax", softmax<true>},
      {"_softmax_backward_data", softmax_backward<false>},
      {"_log_softmax_backward_data", softmax_backward<true>},
      {"_safe_softmax", safe_softmax},
      {"native_layer_norm", native_layer_norm},
      {"native_layer_norm_backward", native_layer_norm_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", attention<kCpuAttention>},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward<kCpuAttentionBackward>},
      {"_scaled_dot_product_flash_attention", attention<kFlash>},
      {"_scaled_dot_product_flash_attention_backward", attention_backward<kFlashBackward>},
      {"_scaled_dot_product_cudnn_attention", attention<kCudnn>},
      {"_scaled_dot_product_cudnn_attention_backward", attention_backward<kCudnnBackward>},
      {"_scaled_dot_product_efficient_attention", attention<kEfficient>},
      {"_scaled_dot_product_efficient_attention_backward", attention_backward<kEfficientBackward>},
      {"_fused_rms_norm", rms_norm},
      {"_fused_rms_norm_backward", rms_norm_backward},
      {"nll_loss_forward", nll_loss_forward},
      {"nll_loss_backward", nll_loss_backward},
      {"nll_loss2d_forward", nll_loss_forward},
      {"nll_loss2d_backward", nll_loss_backward},
      {"mse_loss", mse_loss},
      {"mse_loss_backward", mse_loss_backward},
  };
}

}  // namespace stepc
