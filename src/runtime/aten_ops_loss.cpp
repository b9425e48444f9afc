// Losses on ATen, for machines without the micro-kernels and for the plain Graph: the logits of some rows at a time.
#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "runtime/aten_ops.h"

namespace stepc::detail {

namespace {
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Types = std::vector<TensorType>;

constexpr int64_t kRows = 256;  // at a time: there are three such pieces at once, of every class

struct Loss {
  int64_t ignored;
  bool is_frozen;
  at::ScalarType wide;
};

// (hidden, weight, target[, gradient of the loss[, of the sum]]) of some rows; writes their part of the results, adds
// to the weight's gradient, in the wide type.
void add_rows(const Loss& of, const Tensors& x, const Tensors& results, Tensor& weight_gradient) {
  const Tensor logp = at::log_softmax(at::mm(x[0], x[1].t()), 1, of.wide);
  const Tensor target = x[2].contiguous();
  results[0].copy_(at::nll_loss(logp, target, {}, at::Reduction::None, of.ignored));
  results[1].copy_(logp.sum(1));
  if (x.size() == 3) return;
  const Tensor total = at::zeros({}, logp.options());
  Tensor gradient = at::nll_loss_backward(x[3].contiguous(), logp, target, {}, at::Reduction::None, of.ignored, total);
  if (x.size() > 4) gradient.add_(x[4].unsqueeze(1));
  gradient = at::_log_softmax_backward_data(gradient, logp, 1, of.wide).to(x[0].scalar_type());
  results[2].copy_(at::mm(gradient, x[1]));
  if (of.is_frozen) return;
  if (x[0].scalar_type() == of.wide)
    weight_gradient.addmm_(gradient.t(), x[0]);
  else
    weight_gradient.add_(at::mm(gradient.t(), x[0]));
}

// See ops/loss.cpp.
Tensors linear_cross_entropy(const Tensors& x, const Attrs& attrs, const Types& types) {
  const bool is_backward = x.size() > 3;
  const Loss loss{attrs.get<int64_t>("ignore_index"), is_backward && attrs.get<bool>("frozen"),
                  x[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat};
  Tensors results;
  for (const TensorType& type : types)
    results.push_back(at::empty(type.shape, x[0].options().dtype(scalar_type_of(type.dtype))));
  Tensor weight_gradient;
  if (is_backward)
    weight_gradient = results[3].scalar_type() == loss.wide
                          ? results[3].zero_()
                          : at::zeros_like(results[3], results[3].options().dtype(loss.wide));
  for (int64_t first = 0; first < x[0].size(0); first += kRows) {
    const int64_t count = std::min(kRows, x[0].size(0) - first);
    const auto rows = [&](const Tensor& tensor) { return tensor.narrow(0, first, count); };
    Tensors part = {rows(x[0]), x[1]};
    for (size_t i = 2; i < x.size(); ++i) part.push_back(rows(x[i]));
    add_rows(loss, part, {rows(results[0]), rows(results[1]), is_backward ? rows(results[2]) : Tensor()},
             weight_gradient);
  }
  if (is_backward && !weight_gradient.is_same(results[3])) results[3].copy_(weight_gradient);
  return results;
}
}  // namespace

const AtenOps& loss_aten_ops() {
  static const AtenOps kOps = {{"linear_cross_entropy", linear_cross_entropy}};
  return kOps;
}

}  // namespace stepc::detail
