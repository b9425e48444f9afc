// Losses on ATen, for machines without the micro-kernels and for the plain Graph: the logits of some rows at a time.
#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "runtime/aten_ops/aten_ops.h"

namespace stepc::detail {

namespace {
using at::Tensor;
using Tensors = std::vector<Tensor>;
using Types = std::vector<TensorType>;

constexpr int64_t kRows = 256;      // that add to the gradient of the weight at a time,
constexpr int64_t kLogitRows = 64;  // and whose logits are there: three pieces of so many rows at once, of every class
constexpr int64_t kClasses = 4096;  // whose narrow gradient is widened at a time, before it is added

struct Loss {
  int64_t ignored;
  bool is_frozen;
  at::ScalarType wide;
};

Tensors rows_of(const Tensors& tensors, int64_t first, int64_t count) {
  Tensors rows;
  for (const Tensor& tensor : tensors) rows.push_back(tensor.defined() ? tensor.narrow(0, first, count) : tensor);
  return rows;
}

// x: (hidden, target[, gradient of the loss[, of the sum]]) of some rows. Writes their part of the results, and of the
// logits' gradient if there is one.
void add_rows(const Loss& of, const Tensors& x, const Tensor& weight, const Tensors& results, const Tensor& gradients) {
  const Tensor logp = at::log_softmax(mm_in_blocks(x[0], weight.t()), 1, of.wide);
  const Tensor target = x[1].contiguous();
  results[0].copy_(at::nll_loss(logp, target, {}, at::Reduction::None, of.ignored));
  results[1].copy_(logp.sum(1));
  if (x.size() == 2) return;
  const Tensor total = at::zeros({}, logp.options());
  Tensor gradient = at::nll_loss_backward(x[2].contiguous(), logp, target, {}, at::Reduction::None, of.ignored, total);
  if (x.size() > 3) gradient.add_(x[3].unsqueeze(1));
  gradients.copy_(at::_log_softmax_backward_data(gradient, logp, 1, of.wide));
  results[2].copy_(mm_in_blocks(gradients, weight));
}

// See ops/rows/loss.cpp.
Tensors linear_cross_entropy(const Tensors& x, const Attrs& attrs, const Types& types) {
  const bool is_backward = x.size() > 3;
  const Loss loss{attrs.get<int64_t>("ignore_index"), is_backward && attrs.get<bool>("frozen"),
                  x[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat};
  Tensors results;
  for (const TensorType& type : types)
    results.push_back(at::empty(type.shape, x[0].options().dtype(scalar_type_of(type.dtype))));
  const int64_t rows = x[0].size(0), block = std::min(rows, kRows);
  const bool has_weight_gradient = is_backward && !loss.is_frozen;
  const bool is_one_matmul = has_weight_gradient && block == rows && results[3].scalar_type() == x[0].scalar_type();
  Tensor weight_gradient;  // wide, where there is more to add than one matmul
  if (has_weight_gradient && !is_one_matmul && results[3].scalar_type() != loss.wide)
    weight_gradient = at::zeros_like(results[3], results[3].options().dtype(loss.wide));
  else if (is_backward)
    weight_gradient = is_one_matmul ? results[3] : results[3].zero_();
  const Tensor gradients = is_backward ? at::empty({block, x[1].size(0)}, x[0].options()) : Tensor();
  Tensors by_row = x;
  by_row.erase(by_row.begin() + 1);
  const Tensors made = {results[0], results[1], is_backward ? results[2] : Tensor()};
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min(kRows, rows - first);
    for (int64_t r = 0; r < count; r += kLogitRows) {
      const int64_t some = std::min(kLogitRows, count - r);
      add_rows(loss, rows_of(by_row, first + r, some), x[1], rows_of(made, first + r, some),
               rows_of({gradients}, r, some)[0]);
    }
    if (!has_weight_gradient) continue;
    const Tensor left = gradients.narrow(0, 0, count).t(), right = x[0].narrow(0, first, count);
    if (is_one_matmul)
      mm_out_in_blocks(weight_gradient, left, right);
    else if (weight_gradient.scalar_type() == left.scalar_type())
      weight_gradient.addmm_(left, right);
    else
      for (int64_t c = 0; c < left.size(0); c += kClasses) {
        const int64_t some = std::min(kClasses, left.size(0) - c);
        weight_gradient.narrow(0, c, some).add_(mm_in_blocks(left.narrow(0, c, some), right));
      }
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
