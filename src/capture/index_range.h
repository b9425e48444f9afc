// Indices, classes and tokens that a call is given, and whether they are in range: a kernel would say so at the call,
// but a call that is compared and not computed says nothing.
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
