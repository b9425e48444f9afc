// Parameters with known values, and gradients that change from step to step.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace stepc::optim {

inline at::Tensor parameter(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed = 1) {
  const at::Tensor values =
      at::empty(sizes, at::kDouble).normal_(0.0, 1.0, at::make_generator<at::CPUGeneratorImpl>(seed));
  return values.to(dtype).detach().requires_grad_(true);
}

inline void set_grad(const at::Tensor& p, int step) {
  p.mutable_grad() = (p.detach().to(at::kDouble) * (step + 1) * 0.3 + 0.1 * step).sin().to(p.scalar_type());
}

}  // namespace stepc::optim
