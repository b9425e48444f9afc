#include "optim/adamw.h"

namespace stepc::optim {

AdamW::AdamW(NamedTensors parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), {"AdamW", options.lr, options.weight_decay, options.rules},
                {"exp_avg", "exp_avg_sq"}),
      options_(options) {
  check_range("beta1", options.beta1, 0.0, kBelowOne);
  check_range("beta2", options.beta2, 0.0, kBelowOne);
  check_range("eps", options.eps, 0.0, 1.0);
}

void AdamW::update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) {
  at::_fused_adamw_({value}, {grad}, {slot.states[0]}, {slot.states[1]}, /*max_exp_avg_sqs=*/{}, {step_}, lr_,
                    options_.beta1, options_.beta2, slot.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

}  // namespace stepc::optim
