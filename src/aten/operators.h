// ATen operators by the names that a Trace gives them.
#pragma once

#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

namespace stepc {

// "aten::add_.Tensor": schema name and overload.
std::string name_of(const c10::OperatorHandle& op);

// Throws UserError when this LibTorch has no such operator.
c10::OperatorHandle find_operator(const std::string& name);

}  // namespace stepc
