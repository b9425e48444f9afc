#include "engine/torch_optimizer.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace stepc {

namespace {
using NamedTensor = std::pair<const char*, at::Tensor>;

std::vector<NamedTensor> tensors_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    return {{"exp_avg", adamw->exp_avg()},
            {"exp_avg_sq", adamw->exp_avg_sq()},
            {"max_exp_avg_sq", adamw->max_exp_avg_sq()}};
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state))
    return {
        {"exp_avg", adam->exp_avg()}, {"exp_avg_sq", adam->exp_avg_sq()}, {"max_exp_avg_sq", adam->max_exp_avg_sq()}};
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state))
    return {{"momentum_buffer", sgd->momentum_buffer()}};
  if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state))
    return {{"sum", adagrad->sum()}};
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state))
    return {{"square_avg", rmsprop->square_avg()},
            {"momentum_buffer", rmsprop->momentum_buffer()},
            {"grad_avg", rmsprop->grad_avg()}};
  return {};  // an unknown optimizer's state is reported by the recorder as a tensor without owner
}

template <class... T>
void append(std::vector<double>& out, T... values) {
  (out.push_back(static_cast<double>(values)), ...);
}

void append_options(std::vector<double>& out, const torch::optim::OptimizerOptions& options) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    append(out, adamw->lr(), std::get<0>(adamw->betas()), std::get<1>(adamw->betas()), adamw->eps(),
           adamw->weight_decay(), adamw->amsgrad());
  else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    append(out, adam->lr(), std::get<0>(adam->betas()), std::get<1>(adam->betas()), adam->eps(), adam->weight_decay(),
           adam->amsgrad());
  else if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options))
    append(out, sgd->lr(), sgd->momentum(), sgd->dampening(), sgd->weight_decay(), sgd->nesterov());
  else if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradOptions*>(&options))
    append(out, adagrad->lr(), adagrad->lr_decay(), adagrad->weight_decay(), adagrad->eps());
  else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options))
    append(out, rmsprop->lr(), rmsprop->alpha(), rmsprop->eps(), rmsprop->weight_decay(), rmsprop->momentum(),
           rmsprop->centered());
  else
    append(out, options.get_lr());
}
}  // namespace

void for_each_state(torch::optim::Optimizer& optimizer, const std::function<std::string(const at::Tensor&)>& name_of,
                    const std::function<void(std::string, const at::Tensor&)>& f) {
  const auto& states = optimizer.state();
  for (const auto& group : optimizer.param_groups()) {  // in the groups' order: the map's own is not deterministic
    for (const at::Tensor& parameter : group.params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      for (const auto& [key, tensor] : tensors_of(*found->second))
        if (tensor.defined()) f(name_of(parameter) + "." + key, tensor);
    }
  }
}

std::vector<double> hyper_parameters(torch::optim::Optimizer& optimizer) {
  std::vector<double> out;
  for (const auto& group : optimizer.param_groups()) {
    append(out, group.params().size());
    if (group.has_options()) append_options(out, group.options());
  }
  return out;
}

}  // namespace stepc
