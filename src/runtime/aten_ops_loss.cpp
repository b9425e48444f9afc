// Losses on ATen, for machines without the micro-kernels: all logits exist.
#include <ATen/Functions.h>

#include "runtime/aten_ops.h"

namespace stepc::detail {

namespace {
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Types = std::vector<TensorType>;

// (hidden, weight, target[, gradient of the loss[, of the sum]]), see ops/loss.cpp.
Tensors linear_cross_entropy(const Tensors& x, const Attrs& attrs, const Types& types) {
  const int64_t ignored = attrs.get<int64_t>("ignore_index");
  const at::ScalarType wide = x[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor logp = at::log_softmax(at::mm(x[0], x[1].t()), 1, wide);
  const Tensor target = x[2].contiguous();
  const Tensor loss = at::nll_loss(logp, target, {}, at::Reduction::None, ignored);
  Tensors results = {loss, logp.sum(1), at::empty(types[2].shape, x[0].options()),
                     at::empty(types[3].shape, x[1].options())};
  if (x.size() == 3) return results;
  const Tensor total = at::zeros({}, logp.options());
  Tensor gradient = at::nll_loss_backward(x[3].contiguous(), logp, target, {}, at::Reduction::None, ignored, total);
  if (x.size() > 4) gradient.add_(x[4].unsqueeze(1));
  gradient = at::_log_softmax_backward_data(gradient, logp, 1, wide).to(x[0].scalar_type());
  results[2] = at::mm(gradient, x[1]);
  if (!attrs.get<bool>("frozen")) results[3] = at::mm(gradient.t(), x[0]);
  return results;
}
}  // namespace

const AtenOps& loss_aten_ops() {
  static const AtenOps kOps = {{"linear_cross_entropy", linear_cross_entropy}};
  return kOps;
}

}  // namespace stepc::detail
