#include "optim/clip.h"

#include "base/check.h"

namespace stepc::optim {

// sum() adds in pairs. linalg_vector_norm() adds lane by lane, which in float32 is a percent off at ten million
// elements.
at::Tensor sum_of_squares(const at::Tensor& x) {
  const auto dtype = at::promote_types(x.scalar_type(), at::kFloat);
  return (x.scalar_type() == dtype ? x.square() : x.to(dtype).square_()).sum();
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm) {
  USER_CHECK(max_norm > 0.0, "the largest gradient norm is {}; expected a positive number", max_norm);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> squares;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    grads.push_back(grad);
    squares.push_back(sum_of_squares(grad));
  }
  USER_CHECK(!grads.empty(), "no parameter has a gradient to clip; run backward() first");
  at::Tensor total = at::stack(squares).sum().sqrt();
  const at::Tensor scale = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(scale);
  return total;
}

}  // namespace stepc::optim
