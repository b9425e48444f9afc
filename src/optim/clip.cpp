#include "optim/clip.h"

#include "base/check.h"

namespace stepc::optim {

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm) {
  USER_CHECK(max_norm > 0.0, "the largest gradient norm is {}; expected a positive number", max_norm);
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) continue;
    grads.push_back(grad);
    const auto dtype = at::promote_types(grad.scalar_type(), at::kFloat);
    norms.push_back(at::linalg_vector_norm(grad, 2.0, /*dim=*/{}, /*keepdim=*/false, dtype));
  }
  USER_CHECK(!grads.empty(), "no parameter has a gradient to clip; run backward() first");
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2.0);
  const at::Tensor scale = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(scale);
  return total;
}

}  // namespace stepc::optim
