// Where a loss that is not a number comes from: runs code op by op and says which module's op first made a value that
// is NaN or +infinity. (-infinity is what attention masks are made of.)
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace stepc::train {

// "model.layers.0.mlp (mul)", "the backward of model.layers.0.mlp (mul)"; nullopt when every op's result was good.
// `run` computes on this thread; modules are known by their ModuleScope.
std::optional<std::string> find_nonfinite(const std::function<void()>& run);

// Whether there is such a value in it. Allocates nothing.
bool has_nonfinite(const at::Tensor& tensor);

}  // namespace stepc::train
