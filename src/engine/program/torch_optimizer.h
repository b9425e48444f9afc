// The state of PyTorch's C++ optimizers, which keep it in types of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace stepc {

// Calls f(key, tensor) for every defined state tensor: "<parameter>.exp_avg". `name_of` names a parameter.
void for_each_state(torch::optim::Optimizer& optimizer, const std::function<std::string(const at::Tensor&)>& name_of,
                    const std::function<void(std::string, const at::Tensor&)>& f);

// Makes the states that the optimizer would make in its first step, of zeros, so that this step is like all others;
// large tensors hold no memory. Those parameters that got one. UserError where the first step would be another.
std::vector<void*> make_states(torch::optim::Optimizer& optimizer);

// What the states keep beside tensors: which parameters have one, in the groups' order, and its step count (0: none).
struct OptimizerCounts {
  std::vector<void*> parameters;
  std::vector<int64_t> counts;
};
OptimizerCounts save_counts(torch::optim::Optimizer& optimizer);
// Puts them back; states that came since go.
void restore_counts(torch::optim::Optimizer& optimizer, const OptimizerCounts& saved);

}  // namespace stepc
