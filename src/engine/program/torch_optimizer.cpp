#include "engine/program/torch_optimizer.h"

#include <memory>
#include <optional>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/check.h"
#include "capture/virtual/virtual_region.h"

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

// The step count that the state keeps as a host number, nullopt without one.
std::optional<int64_t> count_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) return adamw->step();
  if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(&state)) return adam->step();
  if (const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state)) return adagrad->step();
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state)) return rmsprop->step();
  return std::nullopt;
}

void set_count(torch::optim::OptimizerParamState& state, int64_t count) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) adamw->step(count);
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) adam->step(count);
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) adagrad->step(count);
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) rmsprop->step(count);
}

// A state of zeros; nullptr if the optimizer keeps no state.
std::unique_ptr<torch::optim::OptimizerParamState> first_state(const torch::optim::OptimizerParamGroup& group,
                                                               const at::Tensor& parameter) {
  const auto zeros = [&] { return at::zeros_like(parameter.detach()); };
  const auto of_adam = [&]<class State>(std::unique_ptr<State> state, bool has_largest) {
    state->step(0);
    state->exp_avg(zeros());
    state->exp_avg_sq(zeros());
    if (has_largest) state->max_exp_avg_sq(zeros());
    return state;
  };
  const torch::optim::OptimizerOptions& options = group.options();
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return of_adam(std::make_unique<torch::optim::AdamWParamState>(), adamw->amsgrad());
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return of_adam(std::make_unique<torch::optim::AdamParamState>(), adam->amsgrad());
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    if (sgd->momentum() == 0) return nullptr;
    USER_CHECK(sgd->dampening() == 0,
               "SGD cannot begin on ranks: with dampening its first step is another one than its later ones");
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(zeros());
    return state;
  }
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
    auto state = std::make_unique<torch::optim::RMSpropParamState>();
    state->step(0);
    state->square_avg(zeros());
    if (rmsprop->momentum() > 0) state->momentum_buffer(zeros());
    if (rmsprop->centered()) state->grad_avg(zeros());
    return state;
  }
  return nullptr;  // made when the optimizer is, or of an unknown kind
}

template <class F>
void for_each_param_state(torch::optim::Optimizer& optimizer, F&& f) {
  auto& states = optimizer.state();
  for (const auto& group : optimizer.param_groups()) {  // in the groups' order: the map's own is not deterministic
    for (const at::Tensor& parameter : group.params()) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found != states.end()) f(parameter, *found->second);
    }
  }
}
}  // namespace

void for_each_state(torch::optim::Optimizer& optimizer, const std::function<std::string(const at::Tensor&)>& name_of,
                    const std::function<void(std::string, const at::Tensor&)>& f) {
  for_each_param_state(optimizer, [&](const at::Tensor& parameter, torch::optim::OptimizerParamState& state) {
    for (const auto& [key, tensor] : tensors_of(state))
      if (tensor.defined()) f(name_of(parameter) + "." + key, tensor);
  });
}

std::vector<void*> make_states(torch::optim::Optimizer& optimizer) {
  const VirtualRegion without_memory;
  std::vector<void*> made;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state != nullptr || !parameter.requires_grad()) continue;
      state = first_state(group, parameter);
      if (state == nullptr)
        optimizer.state().erase(parameter.unsafeGetTensorImpl());
      else
        made.push_back(parameter.unsafeGetTensorImpl());
    }
  return made;
}

OptimizerCounts save_counts(torch::optim::Optimizer& optimizer) {
  OptimizerCounts saved;
  for_each_param_state(optimizer, [&](const at::Tensor& parameter, torch::optim::OptimizerParamState& state) {
    saved.parameters.push_back(parameter.unsafeGetTensorImpl());
    saved.counts.push_back(count_of(state).value_or(0));
  });
  return saved;
}

void restore_counts(torch::optim::Optimizer& optimizer, const OptimizerCounts& saved) {
  size_t next = 0;
  std::vector<void*> gone;
  for_each_param_state(optimizer, [&](const at::Tensor& parameter, torch::optim::OptimizerParamState& state) {
    void* key = parameter.unsafeGetTensorImpl();
    if (next < saved.parameters.size() && saved.parameters[next] == key)
      set_count(state, saved.counts[next++]);
    else
      gone.push_back(key);
  });
  for (void* key : gone) optimizer.state().erase(key);
}

}  // namespace stepc
