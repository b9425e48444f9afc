// Hooks on parameters' gradients, as Python keeps them.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepc {

// Whether a hook runs when the parameter's gradient is accumulated. PyTorch keeps the container of removed hooks, so
// its existence does not show that. The caller holds the GIL.
bool has_gradient_hooks(const at::Tensor& parameter);

}  // namespace stepc
