#include "optim/lion.h"

namespace stepc::optim {

Lion::Lion(NamedTensors parameters, const LionOptions& options)
    : Optimizer(std::move(parameters), {"Lion", options.lr, options.weight_decay, options.rules}, {"exp_avg"}),
      options_(options) {
  check_range("beta1", options.beta1, 0.0, kBelowOne);
  check_range("beta2", options.beta2, 0.0, kBelowOne);
}

void Lion::update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) {
  const at::Tensor& average = slot.states[0];
  const at::Tensor direction = (average * options_.beta1 + grad * (1.0 - options_.beta1)).sign();
  if (slot.weight_decay != 0.0) value.mul_(1.0 - lr_ * slot.weight_decay);
  value.sub_(direction * lr_);
  average.mul_(options_.beta2).add_(grad, 1.0 - options_.beta2);
}

}  // namespace stepc::optim
