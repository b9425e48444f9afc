// Clipping by the global norm of the gradients, without a host read.
#pragma once

#include <vector>

#include <ATen/ATen.h>

namespace stepc::optim {

// In float32 at least, and right to its last digits however many elements there are.
at::Tensor sum_of_squares(const at::Tensor& x);

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does, and
// returns the norm from before as a scalar tensor. Squares are summed in at least float32, whatever the gradients'
// dtype. Parameters without a gradient are skipped; throws UserError when none has one.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace stepc::optim
