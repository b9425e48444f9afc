// State of PyTorch's C++ optimizers, which keep them in types of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace stepc {

// Calls f(key, tensor) for every defined state tensor: "<parameter>.exp_avg". `name_of` names a parameter.
void for_each_state(torch::optim::Optimizer& optimizer, const std::function<std::string(const at::Tensor&)>& name_of,
                    const std::function<void(std::string, const at::Tensor&)>& f);

// The step counts that the states keep as host numbers, in the groups' order, and back.
std::vector<int64_t> step_counts(torch::optim::Optimizer& optimizer);
void set_step_counts(torch::optim::Optimizer& optimizer, const std::vector<int64_t>& counts);

}  // namespace stepc
