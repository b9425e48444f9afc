// State and hyper-parameters of PyTorch's C++ optimizers, which keep them in types of their own.
#pragma once

#include <functional>
#include <string>

#include <torch/optim/optimizer.h>

namespace stepc {

// Calls f(key, tensor) for every defined state tensor: "<parameter>.exp_avg". `name_of` names a parameter.
void for_each_state(torch::optim::Optimizer& optimizer, const std::function<std::string(const at::Tensor&)>& name_of,
                    const std::function<void(std::string, const at::Tensor&)>& f);

// The numbers of every parameter group, in order: learning rate, momentum, betas, ... as far as the type is known.
std::vector<double> hyper_parameters(torch::optim::Optimizer& optimizer);

}  // namespace stepc
