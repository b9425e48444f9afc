// Hooks on parameters' gradients, as Python keeps them.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepc {

// Whether a hook runs when the parameter's gradient is accumulated. PyTorch keeps the container of hooks that were
// removed. Asked with the GIL.
bool has_gradient_hooks(const at::Tensor& parameter);

}  // namespace stepc
