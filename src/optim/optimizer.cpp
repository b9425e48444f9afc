#include "optim/optimizer.h"

#include <cmath>
#include <map>
#include <set>

#include "base/check.h"

namespace stepc::optim {

Optimizer::Optimizer(NamedTensors parameters, double lr) : parameters_(std::move(parameters)) {
  USER_CHECK(!parameters_.empty(), "the optimizer has no parameters");
  std::set<std::string_view> names;
  for (const auto& [name, parameter] : parameters_) {
    USER_CHECK(names.insert(name).second, "two parameters have the name {}", name);
    USER_CHECK(parameter.defined() && parameter.is_leaf() && parameter.requires_grad(),
               "{} is not a parameter: an optimizer updates leaf tensors that require gradients", name);
  }
  const auto scalar = parameters_.front().second.options().requires_grad(false);
  lr_ = at::zeros({}, scalar.dtype(at::kDouble));
  step_ = at::zeros({}, scalar.dtype(at::kFloat));
  set_lr(lr);
}

NamedTensors Optimizer::named_state() const { return {{"lr", lr_}, {"step", step_}}; }

void Optimizer::zero_grad() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimizer::set_lr(double lr) {
  USER_CHECK(std::isfinite(lr) && lr >= 0.0, "the learning rate is {}; expected a finite number, 0 or more", lr);
  lr_.fill_(lr);
}

double Optimizer::lr() const { return lr_.item<double>(); }

void Optimizer::load_state(const NamedTensors& state) {
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [name, own] : named_state()) {
    const auto found = given.find(name);
    USER_CHECK(found != given.end(), "the optimizer state lacks {}", name);
    const at::Tensor& from = found->second;
    USER_CHECK(from.sizes() == own.sizes() && from.scalar_type() == own.scalar_type(),
               "{} is {} ({}) in the optimizer state; expected {} ({})", name, at::toString(from.scalar_type()),
               fmt::join(from.sizes(), ", "), at::toString(own.scalar_type()), fmt::join(own.sizes(), ", "));
    copies.emplace_back(own, from);
    given.erase(found);
  }
  USER_CHECK(given.empty(), "the optimizer state holds {}, which belongs to no parameter", given.begin()->first);

  const torch::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

}  // namespace stepc::optim
