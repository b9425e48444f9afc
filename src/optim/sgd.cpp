#include "optim/sgd.h"

#include "base/check.h"

namespace stepc::optim {

Sgd::Sgd(NamedTensors parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), {"SGD", options.lr, options.weight_decay, options.rules},
                options.momentum > 0.0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{}),
      options_(options) {
  check_range("momentum", options.momentum, 0.0, kBelowOne);
  USER_CHECK(!options.nesterov || options.momentum > 0.0, "SGD: nesterov needs a momentum above 0");
}

void Sgd::update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) {
  at::Tensor direction = slot.weight_decay == 0.0 ? grad : grad + value * slot.weight_decay;
  if (options_.momentum > 0.0) {
    const at::Tensor& velocity = slot.states[0];
    velocity.mul_(options_.momentum).add_(direction);
    direction = options_.nesterov ? direction + velocity * options_.momentum : velocity;
  }
  value.sub_(direction * lr_);
}

}  // namespace stepc::optim
