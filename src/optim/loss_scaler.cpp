#include "optim/loss_scaler.h"

#include <cmath>

#include "base/check.h"

namespace stepc::optim {

LossScaler::LossScaler(const LossScalerOptions& options, at::Device device) : options_(options) {
  USER_CHECK(std::isfinite(options.initial) && options.initial > 0.0,
             "the loss scale is {}; expected a positive number", options.initial);
  USER_CHECK(options.growth >= 1.0 && options.backoff > 0.0 && options.backoff <= 1.0 && options.interval > 0,
             "the loss scale grows by {} after {} steps and falls by {}; expected at least 1, at least 1, and a number "
             "from 0 to 1",
             options.growth, options.interval, options.backoff);
  scale_ = at::full({}, options.initial, at::TensorOptions(device).dtype(at::kFloat));
  good_steps_ = at::zeros({}, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor LossScaler::unscale_(const std::vector<at::Tensor>& parameters) const {
  const at::NoGradGuard no_grad;
  at::Tensor overflow = at::zeros_like(scale_);
  const at::Tensor factor = scale_.reciprocal();
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor wide = parameter.grad().to(at::kFloat);
    at::_amp_foreach_non_finite_check_and_unscale_({wide}, overflow, factor);
    parameter.mutable_grad() = wide;
  }
  return overflow;
}

void LossScaler::update_(const at::Tensor& overflow) {
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, good_steps_, overflow, options_.growth, options_.backoff, options_.interval);
}

std::vector<std::pair<std::string, at::Tensor>> LossScaler::named_state() const {
  return {{"loss_scale", scale_}, {"loss_scale.good_steps", good_steps_}};
}

}  // namespace stepc::optim
