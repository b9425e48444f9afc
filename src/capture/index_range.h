// Whether the indices, classes and tokens of a call are in range. The kernel would report them, but a call that is
// compared and not computed runs no kernel.
#pragma once

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace stepc {

// False: the call's kernel would raise. Inspects only tensors for which `is_known` returns true: they hold what the
// kernel would find.
bool indices_in_range(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                      const std::function<bool(const at::Tensor&)>& is_known);

}  // namespace stepc
