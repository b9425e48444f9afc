#include "optim/adamw.h"

#include "base/check.h"

namespace stepc::optim {
namespace {
bool is_reduced(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

void check_range(const char* name, double value, double low, double high) {
  USER_CHECK(value >= low && value <= high, "AdamW: {} is {}; expected a number from {} to {}", name, value, low, high);
}
}  // namespace

AdamW::AdamW(NamedTensors parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  constexpr double kBelowOne = 1.0 - 1e-12;
  check_range("beta1", options.beta1, 0.0, kBelowOne);
  check_range("beta2", options.beta2, 0.0, kBelowOne);
  check_range("eps", options.eps, 0.0, 1.0);
  check_range("weight_decay", options.weight_decay, 0.0, 1e3);

  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) {
    Slot slot;
    if (options.master_weights && is_reduced(parameter.scalar_type())) slot.master = parameter.to(at::kFloat);
    const at::Tensor& updated = slot.master.defined() ? slot.master : parameter;
    slot.exp_avg = at::zeros_like(updated, updated.options().requires_grad(false));
    slot.exp_avg_sq = at::zeros_like(slot.exp_avg);
    slot.weight_decay = parameter.dim() >= 2 ? options.weight_decay : 0.0;
    slots_.push_back(std::move(slot));
  }
}

void AdamW::step() {
  const torch::NoGradGuard no_grad;
  step_.add_(1.0);
  // One call a parameter: an update then depends on its own gradient alone, and can be placed where that dies.
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const Slot& slot = slots_[i];
    if (!parameter.grad().defined()) continue;
    const at::Tensor& updated = slot.master.defined() ? slot.master : parameter;
    const at::Tensor grad = parameter.grad().to(updated.scalar_type());
    at::_fused_adamw_({updated}, {grad}, {slot.exp_avg}, {slot.exp_avg_sq}, /*max_exp_avg_sqs=*/{}, {step_}, lr_,
                      options_.beta1, options_.beta2, slot.weight_decay, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
    if (slot.master.defined()) parameter.copy_(slot.master);
  }
}

NamedTensors AdamW::named_state() const {
  NamedTensors state = Optimizer::named_state();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    state.emplace_back(name + ".exp_avg", slots_[i].exp_avg);
    state.emplace_back(name + ".exp_avg_sq", slots_[i].exp_avg_sq);
    if (slots_[i].master.defined()) state.emplace_back(name + ".master", slots_[i].master);
  }
  return state;
}

}  // namespace stepc::optim
