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

double default_scale(M& m, TensorId q) { return 1 / std::sqrt(static_cast<double>(m.b.shape(q).back())); }

// (q, k, v, dropout, causal, mask, scale) -> result, logsumexp
Ids attention(M& m) {
  if (m.real(3, 0.0) != 0) M::unmapped("attention with dropout");
  const TensorId q = m.tensor(0);
  Ids operands = {q, m.tensor(1), m.tensor(2)};
  if (m.has(5)) operands.push_back(m.tensor(5));
  const Ids out =
      m.b.add_all("attention", operands, {{"scale", m.real(6, default_scale(m, q))}, {"causal", m.flag(4, false)}});
  return {out[0], m.as_result(out[1], 1)};
}
// (gradient, q, k, v, result, logsumexp, dropout, causal, mask, scale) -> gradients of q, k, v
Ids attention_backward(M& m) {
  if (m.real(6) != 0) M::unmapped("attention with dropout");
  const TensorId q = m.tensor(1);
  Ids operands = {m.tensor(0), q, m.tensor(2), m.tensor(3), m.tensor(4), m.tensor(5)};
  if (m.has(8)) operands.push_back(m.tensor(8));
  return m.b.add_all("attention_backward", operands,
                     {{"scale", m.real(9, default_scale(m, q))}, {"causal", m.flag(7)}});
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
      {"_scaled_dot_product_flash_attention_for_cpu", attention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"nll_loss_forward", nll_loss_forward},
      {"nll_loss_backward", nll_loss_backward},
      {"nll_loss2d_forward", nll_loss_forward},
      {"nll_loss2d_backward", nll_loss_backward},
      {"mse_loss", mse_loss},
      {"mse_loss_backward", mse_loss_backward},
  };
}

}  // namespace stepc
