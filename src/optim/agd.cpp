#include "optim/agd.h"

#include "base/check.h"

namespace stepc::optim {
namespace {
std::vector<std::string> states_of(const AgdOptions& options) {
  std::vector<std::string> names = {"exp_avg", "exp_avg_diff_sq"};
  if (options.amsgrad) names.emplace_back("max_exp_avg_diff_sq");
  if (options.win) names.emplace_back("average");
  return names;
}
}  // namespace

Agd::Agd(NamedTensors parameters, const AgdOptions& options)
    : Optimizer(std::move(parameters), {"AGD", options.lr, options.weight_decay, options.rules}, states_of(options)),
      options_(options) {
  check_range("beta1", options.beta1, 0.0, kBelowOne);
  check_range("beta2", options.beta2, 0.0, kBelowOne);
  check_range("delta", options.delta, 1e-30, 1e30);
  if (options.clip) check_range("clip", *options.clip, 1e-30, 1e30);
  USER_CHECK(!options.fixed_decay || options.decoupled_decay, "AGD: fixed_decay needs decoupled_decay");
}

void Agd::begin_step() {
  const at::Tensor t = step_.to(at::kDouble);
  correction_ = 1.0 - at::pow(options_.beta1, t);
  previous_correction_ = at::where(t == 1.0, at::ones_like(t), 1.0 - at::pow(options_.beta1, t - 1.0));
  root_ = (1.0 - at::pow(options_.beta2, t)).sqrt();
  rate_ = lr_ * root_ / correction_;
}

void Agd::end_step() {
  for (at::Tensor* scalar : {&correction_, &previous_correction_, &root_, &rate_}) scalar->reset();
}

at::Tensor Agd::preconditioner(const Slot& slot, const at::Tensor& difference) const {
  const at::Tensor& average = slot.states[1];
  average.mul_(options_.beta2).add_(difference * difference, 1.0 - options_.beta2);
  if (!options_.amsgrad) return average.sqrt();
  slot.states[2].copy_(at::maximum(slot.states[2], average));
  return slot.states[2].sqrt();
}

void Agd::update(const Slot& slot, const at::Tensor& value, const at::Tensor& given) {
  const double decay = slot.weight_decay;
  at::Tensor grad = given;
  if (decay != 0.0 && !options_.win) {
    if (!options_.decoupled_decay)
      grad = grad + value * decay;
    else if (options_.fixed_decay)
      value.mul_(1.0 - decay);
    else
      value.mul_(1.0 - lr_ * decay);
  }
  const at::Tensor& momentum = slot.states[0];
  const at::Tensor before = momentum / previous_correction_;
  momentum.mul_(options_.beta1).add_(grad, 1.0 - options_.beta1);
  const at::Tensor scale = preconditioner(slot, momentum / correction_ - before);
  at::Tensor direction = momentum / at::maximum(scale, (root_ * options_.delta).to(scale.scalar_type()));
  if (options_.clip) direction = direction.clamp(-*options_.clip, *options_.clip);
  if (!options_.win) {
    value.sub_(direction * rate_);
    return;
  }
  const at::Tensor& average = slot.states.back();
  average.copy_((average - direction * rate_) / (1.0 + rate_ * decay));
  const at::Tensor twice = rate_ * 2.0;
  const at::Tensor tau = 1.0 / (3.0 + twice * decay);
  value.copy_((value - direction * twice + average * 2.0) * tau);
}

}  // namespace stepc::optim
